"""The README's commands, as they are written, but for sizes and places.

A command runs in a folder that holds what it names: text, labelled data, a tiny model for
each name of a released one. What makes it small is appended to its flags. `make`, pip and
what needs a browser are left out, and so is nothing else.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import urllib.request

import pytest

import albert_tf
from albert_tf.checkpoints import convert
from albert_tf.tokenization import train_sentencepiece
from tests.commands import free_ports
from tests.helpers import ROOT

pytestmark = pytest.mark.long

README = (ROOT / "README.md").read_text(encoding="utf-8")
LEFT_OUT = ("cd ", "make ", "source ", "pip ", "tensorboard ", "curl ")
MODEL = "hf://albert/albert-base-v2"
TINY = dict(vocab_size=60, embedding_size=4, hidden_size=8, num_hidden_layers=2,
            num_attention_heads=2, intermediate_size=8, max_position_embeddings=64)
OVERRIDES = "--config_overrides=" + ",".join(
    f"{name}={value}" for name, value in TINY.items())
# What makes a script's commands small; the last of two equal flags counts.
SMALL = {
    "run_classifier": "--train_step=2 --warmup_step=1 --max_seq_length=32 "
                      "--train_batch_size=4 --save_checkpoints_steps=2",
    "run_squad": "--num_train_steps=2 --num_warmup_steps=1 --max_seq_length=64 "
                 "--doc_stride=16 --max_query_length=16 --train_batch_size=4 "
                 "--save_checkpoints_steps=2",
    "run_tagger": "--train_step=2 --warmup_step=1 --max_seq_length=32 "
                  "--train_batch_size=4 --save_checkpoints_steps=2",
    "run_race": "--train_step=2 --warmup_step=1 --max_seq_length=48 "
                "--max_qa_length=16 --train_batch_size=8 --save_checkpoints_steps=2",
    "train_sentencepiece": "--vocab_size=60",
    "create_pretraining_data": "--max_seq_length=32 --max_predictions_per_seq=5 "
                               "--dupe_factor=2 --num_workers=1",
    "run_pretraining": "--max_seq_length=32 --max_predictions_per_seq=5 "
                       "--train_batch_size=8 --gradient_accumulation_steps=2 "
                       "--eval_batch_size=4 --num_train_steps=2 --num_warmup_steps=1 "
                       f"--save_checkpoints_steps=2 {OVERRIDES}",
    "prepare_corpus": "--heldout_share=0.4"}


def blocks(kind):
    return re.findall(rf"```{kind}\n(.*?)```", README, re.S)


def commands():
    """The lines of all shell blocks, continued lines joined."""
    for block in blocks("sh"):
        for line in re.sub(r"\\\n *", " ", block).splitlines():
            line = line.partition("  #")[0].strip()
            if line and not line.startswith("#"):
                yield line


def sentences(count):
    words = ("all some many few most these those other layers weights share learn grow "
             "jump quickly brown foxes vex bold zebras").split()
    return [f"The {words[i % 20]} {words[i * 7 % 19]} of step {i} {words[i * 3 % 17]} "
            f"{words[i * 5 % 18]}." for i in range(count)]


@pytest.fixture(scope="module", name="place")
def _place(tmp_path_factory):
    """A folder with the files that the README's commands name."""
    place = tmp_path_factory.mktemp("readme")
    for folder in ("text", "glue/MNLI", "release"):
        (place / folder).mkdir(parents=True)
    for number in range(12):
        (place / "text" / f"{number}.txt").write_text(
            "\n".join(f"{line} Document {number} is over."
                      for line in sentences(8 + number)))
    for split in ("train", "dev_matched", "dev_mismatched", "test_matched",
                  "test_mismatched"):
        columns = ["index", *"abcdefg", "sentence1", "sentence2", "x", "gold_label"]
        rows = [[str(i), *"abcdefg", line, line, "x",
                 ("entailment", "neutral", "contradiction")[i % 3]]
                for i, line in enumerate(sentences(6))]
        (place / "glue" / "MNLI" / f"{split}.tsv").write_text(
            "\n".join("\t".join(row) for row in [columns, *rows]) + "\n")
    passage = " ".join(sentences(6))
    answer = {"text": "step", "answer_start": passage.index("step")}
    for split in ("train", "dev"):
        (place / f"{split}.csv").write_text("review,sentiment\n" + "".join(
            f"{line},{('positive', 'negative')[i % 2]}\n"
            for i, line in enumerate(sentences(12))))
        (place / f"{split}-v2.0.json").write_text(json.dumps({"data": [{"paragraphs": [{
            "context": passage, "qas": [
                {"id": f"{split}{i}", "question": f"What do steps share, case {i}?",
                 "is_impossible": i % 2 == 1, "answers": [] if i % 2 else [answer]}
                for i in range(4)]}]}]}))
        (place / f"{split}.conll").write_text(
            "The O\nlayers B-PART\nof O\nALBERT B-MODEL\n\n" * 4)
        for level in ("middle", "high"):
            folder = place / "RACE" / split / level
            folder.mkdir(parents=True)
            for name in (f"{level}{split}0.txt", f"{level}{split}1.txt"):
                (folder / name).write_text(json.dumps({
                    "article": passage, "id": name,
                    "questions": ["What is shared?"], "answers": ["A"],
                    "options": [["weights", "text", "steps", "words"]]}))
    # A tiny model in Hugging Face's format, with a vocabulary of the text.
    release = place / "release"
    (release / "30k-clean.model").write_bytes(train_sentencepiece.train(
        sentences(64), train_sentencepiece.Options(vocab_size=60), exactly=False).model)
    config = albert_tf.AlbertConfig(**TINY)
    (release / "albert_config.json").write_text(config.to_json())
    albert_tf.checkpoints.export_tf1(
        albert_tf.AlbertForPreTraining(config), str(release / "model.ckpt-best"))
    convert(str(release), str(place / "albert_hf"), "hf")
    return place


def run(words, place, **options):
    """A command in `place`, with a script of this project and what makes it small."""
    script = re.fullmatch(r"(\w+)\.py", words[1])
    if words[0] == "python" and script:
        words = [sys.executable, str(ROOT / words[1]), *words[2:],
                 *shlex.split(SMALL.get(script[1], ""))]
    elif words[0] == "python":
        words = [sys.executable, *words[1:]]
    return subprocess.run(
        [word.replace(MODEL, str(place / "albert_hf")) for word in words], cwd=place,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True, capture_output=True,
        check=False, timeout=300, **options)


def exports():
    """The commands in the table of exports; "..." stands for the command above it."""
    command = ""
    for cell in re.findall(r"^\|[^|]*\| `([^`]*)`", README, re.M):
        if cell.startswith("export_model.py "):
            command = f"python {cell}"
            yield command
        elif cell.startswith("... "):
            flags = cell.removeprefix("... ")
            yield f"{command}{flags.replace('--format=', '_').split()[0]} {flags}"


SERVE = next(line for line in commands() if "serve.py" in line)
ORDER = [line for line in [*commands(), *exports()]
         if not line.startswith(LEFT_OUT) and line != SERVE]


@pytest.fixture(scope="module", name="after")
def _after(place):
    """Runs the commands up to one, of those that have not run, and returns its result."""
    results = []

    def run_up_to(number):
        for command in ORDER[len(results):number + 1]:
            results.append(run(shlex.split(command), place))
        return results[number]

    return run_up_to


@pytest.mark.parametrize("number", range(len(ORDER)),
                         ids=lambda number: f"{number}-{shlex.split(ORDER[number])[1]}")
def test_command_runs(number, after):
    assert shlex.split(ORDER[number])[0] == "python", (
        f"{ORDER[number]}: add it to LEFT_OUT, or run it")
    done = after(number)
    assert done.returncode == 0, f"{ORDER[number]}\n{done.stdout}\n{done.stderr}"


def test_every_part_of_a_batch_has_as_many_sequences_on_all_hardware():
    rows = re.findall(r"^\| ([^|]*) \| `[^`]*--gradient_accumulation_steps=(\d+)`", README,
                      re.M)
    replicas = {"eight GPUs": 8, "two hosts with eight GPUs each": 16, "TPU v3-8": 8,
                "TPU v3-32 (pod)": 32}
    assert {where for where, _ in rows} == {*replicas}
    for where, parts in rows:
        assert 4096 == 32 * int(parts) * replicas[where], where


def test_outputs_are_where_the_readme_says(place, after):
    after(len(ORDER) - 1)
    assert (place / "runs" / "base" / "model.ckpt-2.index").exists()
    assert (place / "runs" / "reviews" / "model.ckpt-best.index").exists()
    assert (place / "reviews_hf" / "config.json").exists()
    assert (place / "exported" / "reviews" / "saved_model.pb").exists()
    assert (place / "exported" / "reviews_onnx" / "portable.json").exists()


def test_server_answers(place, after):
    """The README's curl command as predict.py does, and stops cleanly."""
    after(ORDER.index(next(line for line in ORDER if "predict.py" in line)))
    [curl] = [line for line in commands() if line.startswith("curl ")]
    [port] = free_ports(1)
    words = shlex.split(SERVE)
    server = subprocess.Popen(
        [sys.executable, str(ROOT / words[1]), *words[2:], f"--port={port}"], cwd=place,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True)
    try:
        _, _, body, url = shlex.split(curl)
        request = urllib.request.Request(
            url.replace("8501", str(port)), data=body.encode())
        assert any("Serving at" in line for line in server.stdout)
        with urllib.request.urlopen(request, timeout=60) as answer:
            [prediction] = json.load(answer)["predictions"]
        assert prediction["label"] in ("positive", "negative")
    finally:
        server.terminate()
        log, _ = server.communicate(timeout=60)
    assert server.returncode == 0 and "Stopped." in log, log


def test_python_example_runs_after_them(place, after):
    after(ORDER.index(next(line for line in ORDER if "predict.py" in line)))
    [code] = blocks("python")
    names = {}
    exec(code.replace("albert_base", str(place / "albert_hf")).replace(
        '"runs/', f'"{place}/runs/'), names)
    [answer] = names["classifier"].predict(["A fine film."])
    assert answer["label"] in ("positive", "negative")
