"""Real texts: exported models give in a plain process, by saved_model_cli and over HTTP
what Python's predict gives: `pytest -m slow tests/serving/test_real_texts.py`.

The models are tiny, with the release's vocabulary.
"""

import asyncio
import csv
import itertools
import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import albert_tf
from albert_tf.finetuning.race import task as race
from albert_tf.finetuning.squad.dataset import read_questions
from albert_tf.finetuning.tagging.readers import Reading
from albert_tf.serving.options import Ask
from tests.commands import run_commands
from tests.helpers import SHARED, run_python
from tests.serving import tiny_models
from tests.serving.test_http import ask, running
from tests.tokenization.test_in_graph import equally_likely

COUNT = 1000
SIZES = dict(max_seq_length=96, doc_stride=32)
# Asked by saved_model_cli, too, with the command in docs/EXPORT.md.
BY_CLI = ("sentences", "questions", "tags")
CLI = ("import tensorflow_text; "
       "from tensorflow.python.tools.saved_model_cli import main; main()")
# Imports TensorFlow and its text operations alone.
PLAIN = """
import json, sys
import tensorflow as tf, tensorflow_text
folder, inputs, found = sys.argv[1:]
signatures = tf.saved_model.load(folder).signatures
columns = json.load(open(inputs))
size = len(next(iter(columns.values())))
rows = []
for first in range(0, size, 20):
    part = {name: tf.constant(values[first:first + 20])
            for name, values in columns.items()}
    for name in ("tokenize", "serving_default"):
        rows.append({key: value.numpy().tolist()
                     for key, value in signatures[name](**part).items()})
json.dump(rows, open(found, "w"), default=bytes.decode)
assert not any("albert" in name for name in sys.modules)
"""


# ---- inputs ----------------------------------------------------------------


def _table(path, *columns):
    with open(path, encoding="utf-8-sig", newline="") as stream:
        for row in csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE):
            yield [row[column] for column in columns]


def _questions(name):
    questions = read_questions(str(SHARED / "data" / "squad" / name))
    # One in five, as questions of a passage follow each other.
    return [{"question": one.question_text, "passage": one.paragraph_text}
            for one in questions[::5]]


def _choices():
    return [{"passage": one.article, "question": one.question,
             "options": list(one.options)} for one in race.RaceTask().read(
                 str(SHARED / "data" / "race"), "dev").examples[:200]]


def inputs_of(kind):
    data = SHARED / "data"
    pairs = ({"text": first, "text_pair": second} for first, second in _table(
        data / "glue" / "MRPC" / "train.tsv", "#1 String", "#2 String"))
    return list(itertools.islice({
        "sentences": lambda: ({"text": text} for text, in _table(
            data / "glue" / "SST-2" / "train.tsv", "sentence")),
        "pairs": lambda: pairs, "order": lambda: itertools.islice(pairs, 200),
        "questions": lambda: _questions("dev-v1.1.json"),
        "questions of 2.0": lambda: _questions("v2.0-16-articles.json"),
        "choices": _choices,
        "tags": lambda: ({"text": sentence.text} for sentence in Reading().read(
            str(data / "tagging" / "wnut17" / "train.conll"))[0]),
    }[kind](), COUNT))


# Kind of inputs → of tiny_models, and flags of the export.
KINDS = {"sentences": ("classes", []), "pairs": ("classes", ["--pairs"]),
         "questions": ("spans", []), "questions of 2.0": ("spans2", []),
         "choices": ("choices", []), "tags": ("tags", []),
         "order": ("pretrained", ["--task=order"])}


# ---- answers ---------------------------------------------------------------


def close(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(
            close(value, other[name]) for name, value in one.items())
    if isinstance(one, list):
        return len(one) == len(other) and all(map(close, one, other))
    return abs(one - other) <= 1e-5 * max(1, abs(one)) if isinstance(
        one, float) else one == other


def as_answers(outputs):
    """The signature's outputs as predict has them, without padding."""
    for values in zip(*outputs.values()):
        row = dict(zip(outputs, values))
        if "tags" in row:
            count = len([word for word in row["words"] if word])
            row["words"], row["tags"] = row["words"][:count], row["tags"][:count]
            entities = {name.removeprefix("entity_"): row.pop(name)
                        for name in outputs if name.startswith("entity_")}
            row["entities"] = [dict(zip(entities, entity)) for entity in zip(
                *entities.values()) if entity[[*entities].index("end")]]
        yield row


def as_outputs(answers):
    """Answers of predict as the signature has them: probabilities as a list."""
    return [{name: [*value.values()] if name == "probabilities" and isinstance(
        value, dict) else value for name, value in answer.items()} for answer in answers]


def check_plain(rows, wanted, requests, tokenizer):
    """Compares ids of each sequence, and answers; returns the numbers of the inputs
    that the graph cuts another, equally likely way, whose answers may differ."""
    ids = iter([[i for i, m in zip(*both) if m] for part in rows[::2] for both in zip(
        flat(part["input_ids"]), flat(part["input_mask"]))])
    ties = set()
    for number, request in enumerate(requests):
        for row in request.sequences:
            given = [i for i, m in zip(row["input_ids"], row["input_mask"]) if m]
            if (one := next(ids)) != given:
                assert equally_likely(tokenizer, one, given), number
                ties.add(number)
    assert not [*ids]
    found = [answer for part in rows[1::2] for answer in as_answers(part)]
    wanted = as_outputs(wanted)
    differ = [i for i, pair in enumerate(zip(found, wanted, strict=True))
              if i not in ties and not close(*pair)]
    assert not differ, (len(differ), found[differ[0]], wanted[differ[0]])
    return ties


def flat(rows):
    """Rows of ids; of choices those of each."""
    return [row for part in rows for row in part] if rows and isinstance(
        rows[0][0], list) else rows


def check_cli(folder, inputs, wanted, out):
    given = {name: [row[name] for row in inputs[:3]] for name in inputs[0]}
    subprocess.run([
        sys.executable, "-c", CLI, "run", f"--dir={folder}", "--tag_set=serve",
        "--signature_def=serving_default", f"--outdir={out}", "--input_exprs=" + ";".join(
            f"{name}={values!r}" for name, values in given.items())],
        check=True, cwd=out, capture_output=True)
    outputs = {path.stem: np.load(path, allow_pickle=True).tolist()
               for path in sorted(pathlib.Path(out).glob("*.npy"))}
    outputs = json.loads(json.dumps(outputs, default=bytes.decode))
    for one, other in zip(
            as_answers(outputs), as_outputs(wanted[:3]), strict=True):
        assert close(dict(sorted(one.items())), dict(sorted(other.items())))


async def check_http(model, inputs, wanted, task, ties):
    async with running(model, instances=256) as (_, session):
        for first in range(0, len(inputs), 100):
            status, found = await ask(session, {
                "instances": inputs[first:first + 100], "signature_name": task})
            assert status == 200, found
            assert all(first + i in ties or close(one, wanted[first + i])
                       for i, one in enumerate(found["predictions"]))


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize("kind", KINDS)
def test_exports_and_the_server_answer_as_python_does(kind, tmp_path):
    pytest.importorskip("tensorflow_text")
    work, exported, inputs = tmp_path, tmp_path / "exported", inputs_of(kind)
    folder = tiny_models.write(
        tmp_path / "model", KINDS[kind][0], SHARED / "data/spm_en/30k-clean.model",
        tiny_models.TINY.replace(vocab_size=30000, max_position_embeddings=96), **SIZES)
    model = albert_tf.load(folder)
    with run_commands("export_model", {"export": [
            f"--model={folder}", f"--export_dir={exported}", *KINDS[kind][1]]}) as results:
        results.ok("export")
    task = "order" if kind == "order" else ""
    wanted = model.predict(inputs, task=task)
    requests = [model.request(given, Ask(task)) for given in inputs]
    (work / "inputs.json").write_text(json.dumps(
        {name: [row[name] for row in inputs] for name in inputs[0]}))
    run_python("-c", PLAIN, str(exported), "inputs.json", "found.json", check=True,
               cwd=work)
    ties = check_plain(json.loads((work / "found.json").read_text()), wanted, requests,
                       model.tokenizer)
    asyncio.run(check_http(model, inputs, wanted, task, ties))
    if kind in BY_CLI:
        (work / "cli").mkdir()
        check_cli(exported, inputs, wanted, work / "cli")
    print(f"{kind}: {len(inputs)} inputs, {sum(len(r.sequences) for r in requests)} "
          f"sequences: equal, {len(ties)} ties", flush=True)
