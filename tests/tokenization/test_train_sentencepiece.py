"""train_sentencepiece: the release's settings, symbols and errors."""

import collections
import dataclasses
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import pytest
import sentencepiece

from albert_tf.errors import InputError
from albert_tf.tokenization import train_sentencepiece
from albert_tf.tokenization.train_sentencepiece import (
    Options, train, vocab_lines)
from tests.commands import run_commands
from tests.helpers import ROOT, SHARED

SMALL = Options(vocab_size=110, num_threads=2)
FIRST = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]",
         "(", ")", '"', "-", ".", "–", "£", "€"]


def lines():
    """Sentences of 200 words that are built from 40 syllables."""
    generator = random.Random(5)
    syllables = [a + b for a in "bdKlmnrt" for b in "aéiou"]
    words = ["".join(generator.choices(syllables, k=3)) for _ in range(200)]
    return [" ".join(generator.choices(words, k=9)) + "." for _ in range(400)]


def pieces(vocab):
    return [line.split("\t")[0] for line in vocab.decode().splitlines()]


@pytest.fixture(scope="module")
def small():
    return train(lines(), SMALL)


def test_symbols_and_ids(small):
    processor = sentencepiece.SentencePieceProcessor(model_proto=small.model)
    assert pieces(small.vocab)[:13] == FIRST
    assert processor.get_piece_size() == 110
    assert processor.pad_id() == 0 and processor.unk_id() == 1
    assert processor.bos_id() == -1 and processor.eos_id() == -1
    assert [processor.is_control(i) for i in range(6)] == [
        True, False, True, True, True, False]
    assert '"' in processor.encode('bo"da', out_type=str)
    assert 4 not in processor.encode("bo [MASK] da")


def test_preprocessing(small):
    text = "".join(pieces(small.vocab)[13:])
    assert text == text.lower() and "é" not in text
    cased = train(lines(), dataclasses.replace(SMALL, do_lower_case=False))
    assert "K" in "".join(pieces(cased.vocab)[13:])


def test_equal_input_gives_an_equal_result(small):
    assert train(lines(), SMALL) == small
    options = dataclasses.replace(SMALL, vocab_size=90, input_sentence_size=200)
    drawn = train(lines(), options)
    assert drawn == train(lines(), options)
    assert drawn.sentences == 400
    assert drawn.vocab != train(
        lines(), dataclasses.replace(options, input_sentence_size=300)).vocab


def test_long_words_and_lines_are_cut():
    counts = collections.Counter()
    parts = list(train_sentencepiece.sentences(
        ["x" * 9_000, "ab " * 50_000], Options(), counts))
    assert parts[0] == "x" * 4096 + f" {'x' * 4096} " + "x" * 808
    assert " ".join(parts[1:]) == ("ab " * 50_000).rstrip() and counts["sentences"] == 2
    assert max(map(len, parts)) <= 1 + train_sentencepiece._LONGEST_LINE


def test_ctrl_c_ends_the_trainer(tmp_path):
    """The trainer's process, too; nothing is left."""
    text = tmp_path / "a.txt"
    text.write_text("\n".join(lines() * 400))
    with subprocess.Popen(
            [sys.executable, "train_sentencepiece.py", f"--input_file={text}",
             "--vocab_size=200", f"--output_prefix={tmp_path}/spm"], text=True, cwd=ROOT,
            stderr=subprocess.PIPE, env={**os.environ, "PYTHONUNBUFFERED": "1"}) as done:
        said = ""
        while "Training starts" not in said:
            said += done.stderr.readline()
            assert done.poll() is None, said
        children = pathlib.Path(f"/proc/{done.pid}/task/{done.pid}/children")
        while not (child := children.read_text().strip()):
            assert done.poll() is None, "it ended by itself"
            time.sleep(0.01)
        done.send_signal(signal.SIGINT)
        said = done.stderr.read()
    assert done.returncode == 130 and "stopped by Ctrl-C" in said, said
    assert "Traceback" not in said and os.listdir(tmp_path) == ["a.txt"]
    assert not os.path.exists(f"/proc/{child}/exe")


@pytest.mark.parametrize("text, options, message", [
    (["", "  "], {}, "0 sentences"),
    (["a short text"], {}, "1 sentences .*30000"),
    (lines(), {"character_coverage": 1.5}, "character_coverage"),
])
def test_refusals(text, options, message):
    with pytest.raises(InputError, match=message):
        train(text, Options(**options))


def test_an_error_in_the_input_comes_through():
    def damaged():
        yield from lines()
        raise InputError("line 7 is damaged")

    with pytest.raises(InputError, match="line 7 is damaged"):
        train(damaged(), SMALL)


WRONG = {  # message → flags
    "--vocab_size=30000": [], "--output_prefix": ["--output_prefix={0}/a.txt/o"],
    "--sampling_exponent=0.7": ["--sampling_exponent=0.7"],
    "a.jsonl is not text": ["--input_file={0}/*"],
    "--num_threads=0": ["--num_threads=0"],
    "a.vocab is also an input": ["--input_file={0}/*", "--output_prefix={0}/a"]}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """message (or "right") → folder, result; in one process without TensorFlow."""
    folders = {name: tmp_path_factory.mktemp("command") for name in (*WRONG, "right", "sampled")}
    (folders["right"] / "a.txt").write_text("\n".join(lines()[:200]) + "\n\n")
    (folders["right"] / "b.txt").write_text("\n".join(lines()[200:]))
    commands = {"right": [
        f"--input_file={folders['right']}/*.txt", "--vocab_size=110",
        f"--output_prefix={folders['right']}/o/spm", "--num_threads=2"]}
    commands["sampled"] = [
        f"--input_file={folders['right']}/a.txt,{folders['right']}/b.txt",
        f"--output_prefix={folders['sampled']}/spm", *commands["right"][1::2],
        "--sampling_exponent=0.5"]
    for name, flags in WRONG.items():
        (folders[name] / "a.txt").write_text("good text\n")
        if name.startswith(("a.vocab", "a.jsonl")):
            os.symlink("a.txt", folders[name] / name.split()[0])
        commands[name] = [flag.format(folders[name]) for flag in (
            "--input_file={0}/a.txt", "--output_prefix={0}/spm", *flags)]
    with run_commands("train_sentencepiece", commands, light=commands) as found:
        yield {name: (folders[name], found[name]) for name in commands}


def test_script(results, small):
    folder, done = results["right"]
    assert done["status"] == 0, done["stderr"]
    assert (folder / "o/spm.model").read_bytes() == small.model
    assert (folder / "o/spm.vocab").read_bytes() == small.vocab
    # Shares that are equal stay so.
    folder, done = results["sampled"]
    assert done["status"] == 0 and "50.00 %" in done["log"], done["stderr"]
    assert (folder / "spm.model").read_bytes() == small.model


@pytest.mark.parametrize("message", WRONG)
def test_script_refuses(message, results):
    folder, done = results[message]
    assert done["status"] == 1 and message in done["stderr"]
    assert {path.name for path in folder.iterdir()} - {message.split()[0]} == {"a.txt"}
    assert (folder / "a.txt").read_text() == "good text\n"


@pytest.mark.shared
def test_vocab_file_is_written_as_the_trainer_writes_it():
    for folder, name in (("golden/spm", "en4k"), ("data/spm_en", "30k-clean")):
        model = (SHARED / folder / f"{name}.model").read_bytes()
        wanted = (SHARED / folder / f"{name}.vocab").read_bytes()
        assert vocab_lines(model) == wanted
