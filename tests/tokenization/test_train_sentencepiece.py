"""train_sentencepiece: the release's settings, symbols and errors; extend_vocabulary: old
ids stay, new pieces are used, their weights are means."""

import collections
import dataclasses
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import sentencepiece

from albert_tf.checkpoints import tokenizer_files, vocabulary
from albert_tf.checkpoints.checkpoint import shapes_of, with_new_pieces
from albert_tf.config import AlbertConfig
from albert_tf.errors import InputError
from albert_tf.finetuning.squad.alignment import align_paragraph
from albert_tf.tokenization import train_sentencepiece
from albert_tf.tokenization.tokenizer import FullTokenizer, marks_of, model_proto
from albert_tf.tokenization.train_sentencepiece import (
    ExtendOptions, Options, extend, train, vocab_lines)
from tests.checkpoints.test_convert import checkpoint, write_release
from tests.commands import run_commands
from tests.helpers import ROOT, SHARED

SMALL = Options(vocab_size=110, num_threads=2)
FIRST = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]",
         "(", ")", '"', "-", ".", "–", "£", "€"]


def sentences(syllables, count, num_words=60):
    """Sentences of words of three syllables."""
    generator = random.Random(syllables)
    words = ["".join(generator.choices(syllables.split(), k=3)) for _ in range(num_words)]
    return [" ".join(generator.choices(words, k=9)) for _ in range(count)]


def lines():
    return sentences(" ".join(a + b for a in "bdKlmnrt" for b in "aéiou"), 400, 200)


def processor(model):
    return sentencepiece.SentencePieceProcessor(model_proto=model)


def pieces(vocab):
    return [line.split("\t")[0] for line in vocab.decode().splitlines()]


@pytest.fixture(scope="module")
def small():
    return train(lines(), SMALL)


def test_symbols_and_ids(small):
    model = processor(small.model)
    assert pieces(small.vocab)[:13] == FIRST and len(model) == 110
    assert [model.pad_id(), model.unk_id(), model.bos_id(), model.eos_id()] == [
        0, 1, -1, -1]
    assert [model.is_control(i) for i in range(6)] == [
        True, False, True, True, True, False]
    assert '"' in model.encode('bo"da', out_type=str)
    assert 4 not in model.encode("bo [MASK] da")
    text = "".join(pieces(small.vocab)[13:])
    assert text == text.lower() and "é" not in text


def test_equal_input_gives_an_equal_result():
    options = dataclasses.replace(
        SMALL, vocab_size=90, input_sentence_size=200, do_lower_case=False)
    drawn = train(lines(), options)
    assert drawn == train(lines(), options)
    assert drawn.sentences == 400 and "K" in "".join(pieces(drawn.vocab)[13:])
    assert drawn.vocab != train(
        lines(), dataclasses.replace(options, input_sentence_size=300)).vocab


def test_long_words_and_lines_are_cut():
    counts = collections.Counter()
    parts = list(train_sentencepiece.sentences(
        ["x" * 9_000, "ab " * 50_000], Options(), counts))
    assert parts[:3] == ["x" * 4096, "x" * 4096, "x" * 808]
    assert " ".join(parts[3:]) == ("ab " * 50_000).rstrip() and counts["sentences"] == 2
    assert max(map(len, parts)) == 4096


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


def test_text_that_is_too_short():
    for text, message in ([""], "0 sentences"), (["a short text"], "1 sentences .*30000"):
        with pytest.raises(InputError, match=message):
            train(text)


WRONG = {  # message → flags
    "--vocab_size=30000": [], "--output_prefix": ["--output_prefix={0}/a.txt/o"],
    "is a folder; add": ["--output_prefix={0}/"],
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


# ---- extend_vocabulary -----------------------------------------------------

OPTIONS = ExtendOptions(num_pieces=8)


GENERAL = sentences("ba di ko lu me ra", 400)
# Its words have the same letters in other syllables.
DOMAIN = sentences("abd kol rumi deb", 150)


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vocabularies")
    made = train(GENERAL, Options(vocab_size=80, num_threads=2))
    (folder / "old.model").write_bytes(made.model)
    (folder / "domain.txt").write_text("\n".join(DOMAIN))
    return folder


def test_new_pieces_shorten_the_domain_and_leave_the_rest(folder):
    found = extend(str(folder / "old.model"), DOMAIN, OPTIONS)
    old, new = (processor((folder / "old.model").read_bytes()), processor(found.model))
    assert len(found.pieces) == len(found.parts) == 8
    assert [new.id_to_piece(i) for i in range(len(old))] == [
        old.id_to_piece(i) for i in range(len(old))]
    assert [new.id_to_piece(len(old) + i) for i in range(8)] == list(found.pieces)
    for piece, parts in zip(found.pieces, found.parts):
        assert "".join(map(old.id_to_piece, parts)) == piece and len(parts) > 1
    assert found.pieces_before == sum(map(len, old.encode(DOMAIN)))
    assert found.pieces_after == sum(map(len, new.encode(DOMAIN)))
    assert found.pieces_after < 0.8 * found.pieces_before
    used = {i for row in new.encode(DOMAIN) for i in row}
    assert any(i >= len(old) for i in used)
    # A sentence without the new pieces is what it was.
    plain = [line for line in GENERAL if not any(
        piece.strip("\u2581") in line for piece in found.pieces)]
    assert plain and old.encode(plain) == new.encode(plain)
    assert extend(str(folder / "old.model"), DOMAIN, OPTIONS) == found
    rows = with_new_pieces(checkpoint(EXTENDED, {}), found.parts).tensors[
        "bert/embeddings/word_embeddings"].read()
    np.testing.assert_allclose(
        rows[80:], [rows[[*parts]].mean(axis=0) for parts in found.parts], 1e-5)


def test_only_words_that_the_old_vocabulary_cuts_up_give_pieces(folder):
    old = processor((folder / "old.model").read_bytes())
    whole = [word for line in GENERAL for word in line.split()
             if len(old.encode(word)) == 1]
    assert len(set(whole)) > 5
    with pytest.raises(InputError, match="no piece that the vocabulary lacks"):
        extend(str(folder / "old.model"), whole, OPTIONS)


EXTENDED = AlbertConfig(
    vocab_size=80, embedding_size=4, hidden_size=4, num_hidden_layers=1,
    num_attention_heads=1, intermediate_size=4)


@pytest.fixture(scope="module", name="extended")
def _extended(folder):
    from albert_tf.checkpoints.bundle import Tensor

    (folder / "model").mkdir()
    model = checkpoint(EXTENDED, {"masked_lm": 1})
    rows = np.arange(80 * 4, dtype=np.float32).reshape(80, 4)
    model.tensors.update({"bert/embeddings/word_embeddings": Tensor.of(rows),
                          "cls/predictions/output_bias": Tensor.of(rows[:, 0])})
    write_release(model, str(folder / "model"), optimizer_state=True)
    (folder / "config.json").write_text(EXTENDED.to_json())
    (folder / "other.json").write_text(AlbertConfig(vocab_size=81).to_json())
    # Models beside which is another vocabulary, of the same size.
    pieces = FullTokenizer(spm_model_file=str(folder / "old.model")).vocab
    for name in ("words", "pieces"):
        shutil.copytree(folder / "model", folder / name)
    (folder / "words/vocab.txt").write_text("[PAD]\n[UNK]\n" + "".join(
        f"{piece}\n" for piece in list(pieces)[2:]))
    other = model_proto().FromString((folder / "old.model").read_bytes())
    other.pieces[-1].piece = "q"
    (folder / "pieces/spiece.model").write_bytes(other.SerializeToString())

    def arguments(**changes):
        given = {"input_file": folder / "domain.txt",
                 "spm_model_file": folder / "old.model", "init_checkpoint":
                 folder / "model", "albert_config_file": folder / "config.json",
                 "output_dir": folder / "new", "num_pieces": 8, **changes}
        return [f"--{name}={value}" for name, value in given.items()]

    with run_commands("extend_vocabulary", {
            "made": arguments(), "exists": arguments(output_dir=folder / "words"),
            "other config": arguments(albert_config_file=folder / "other.json",
                                      output_dir=folder / "n2"),
            **{name: arguments(init_checkpoint=folder / name, output_dir=folder / "n3")
               for name in ("words", "pieces")},
    }, light={"exists", "other config", "words", "pieces"}) as results:
        yield results


@pytest.mark.long
def test_rows_of_new_pieces_are_means(folder, extended):
    extended.ok("made")
    from albert_tf.checkpoints.folders import read_tensors

    tensors = read_tensors(str(folder / "new"))
    assert {*tensors} == {*shapes_of(EXTENDED, {"masked_lm": 1})}
    rows = tensors["bert/embeddings/word_embeddings"]
    lines = (folder / "new/new_pieces.tsv").read_text().splitlines()
    new = FullTokenizer(spm_model_file=str(folder / "new/spm.model"))
    assert rows.shape == (88, 4) and new.vocab_size == 88 and len(lines) == 8
    for number, line in enumerate(lines):
        piece, parts = line.split("\t")
        ids = new.convert_tokens_to_ids([piece, *parts.split()])
        assert ids[0] == 80 + number
        np.testing.assert_allclose(rows[ids[0]], rows[ids[1:]].mean(axis=0), 1e-6)
    np.testing.assert_allclose(tensors["cls/predictions/output_bias"], rows[:, 0], 1e-6)
    assert AlbertConfig.from_json_file(
        str(folder / "new/albert_config.json")).vocab_size == 88


@pytest.mark.parametrize("name, sentence", [
    ("exists", "--output_dir=.*words"), ("other config", r"is \[80, 4\], but the config .* \[81, "),
    ("words", "does not have the tokens of .*vocab.txt"),
    ("pieces", "does not have the tokens of .*spiece.model")])
def test_wrong_input_gives_one_sentence(folder, extended, name, sentence):
    extended.refused(name, sentence, False)
    assert not list(folder.glob("n[0-9]*"))


# ---- accents: stripped as in the release, or kept and remembered -----------

ACCENTS = ["schön ist die Größe", "schon war es groß", "ガラス と カラス", "ça va déjà là"] * 30


@pytest.fixture(scope="module", name="models")
def _models(tmp_path_factory):
    """Models without and with accents."""
    made = {}
    for strips in (True, False):
        path = tmp_path_factory.mktemp("spm") / "spm.model"
        path.write_bytes(train(ACCENTS, Options(
            60, strip_accents=strips, num_threads=1), False).model)
        made[strips] = str(path)
    return made


def test_the_model_says_so_and_a_mismatch_is_refused(models):
    for strips, text in ((True, "schon ist カ"), (False, "schön ist ガ")):
        for given in (None, strips):
            tokenizer = FullTokenizer(spm_model_file=models[strips], strip_accents=given)
            assert tokenizer.strip_accents == strips
            assert tokenizer.decode(tokenizer.encode("Schön ist ガ")) == text
    with pytest.raises(InputError, match="give --strip_accents=false"):
        FullTokenizer(spm_model_file=models[False], strip_accents=True)
    # A folder of Hugging Face may say so; the scripts refuse the flag.
    kept = FullTokenizer(spm_model_file=models[True], strip_accents=False)
    with pytest.raises(InputError, match="give --strip_accents=true"):
        kept.check_keeps_accents()
    tokenizer.check_keeps_accents()
    assert tokenizer.keeps == {"strip_accents": False}


def test_batches_places_passages_extensions_and_folders_keep_them_too(models, tmp_path):
    tokenizer = FullTokenizer(spm_model_file=models[False])
    text = "Schön, die Größe: ガラス!"
    assert tokenizer.prepare_batch([text]) == [tokenizer.prepare(text)] == [text.lower()]
    assert tokenizer.encode_batch([text]) == [tokenizer.encode(text)]
    spans = tokenizer.tokenize_with_offsets(text)
    assert [span.id for span in spans] == tokenizer.encode(text)
    assert all(text[span.start:span.end].lower() == span.piece.strip("▁")
               for span in spans)
    found = align_paragraph(text, tokenizer)
    assert found and text[found.starts[0]:found.ends[-1] + 1] == text
    extension = extend(models[False], ACCENTS + [
        f"{a} {b}" for a in ("schöner", "größer", "schönes", "größtes")
        for b in ("schöner", "große", "schöne", "größer")] * 9, ExtendOptions(3))
    assert marks_of(extension.model) == {"strip_accents": "false"}
    assert any("ö" in piece for piece in extension.pieces)
    for strips, model in models.items():
        own, folder = FullTokenizer(spm_model_file=model), str(tmp_path / str(strips))
        os.mkdir(folder)
        tokenizer_files.write_huggingface(own, folder, 64)
        again = tokenizer_files.find(folder)
        assert again.strip_accents == strips
        assert again.encode("Größe") == own.encode("Größe")


def test_models_remember():
    kept, without = ({"file": "a", "sha256": "1", **more} for more in (
        {"strip_accents": False}, {}))
    vocabulary.check(kept, kept, "runs")
    for known, given, flag in (kept, without, "false"), (without, kept, "true"):
        with pytest.raises(InputError, match=f"--strip_accents={flag}"):
            vocabulary.check(known, given, "runs")
