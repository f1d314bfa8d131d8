"""Real texts: exported models give what Python's predict gives.

The models are tiny, with the release's vocabulary.
"""

import csv
import itertools

import pytest

import albert_tf
from albert_tf.finetuning.race import task as race
from albert_tf.finetuning.squad.dataset import read_questions
from albert_tf.finetuning.tagging.readers import Reading
from albert_tf.serving.options import Ask
from tests.commands import run_commands
from tests.helpers import load_export, SHARED
from tests.serving import tiny_models
from tests.serving.test_export import as_answers, as_outputs, close, outputs_of
from tests.tokenization.test_in_graph import equally_likely

COUNT = 1000
# Kind of inputs → of tiny_models, and flags of the export.
KINDS = {"sentences": ("classes", []), "pairs": ("classes", ["--pairs"]),
         "questions": ("spans", []), "questions of 2.0": ("spans2", []),
         "choices": ("choices", []), "tags": ("tags", []),
         "order": ("pretrained", ["--task=order"])}


def inputs_of(kind):
    data = SHARED / "data"
    if kind == "sentences":
        found = ({"text": row["sentence"]} for row in table(data / "glue/SST-2/train.tsv"))
    elif kind in ("pairs", "order"):
        found = ({"text": row["#1 String"], "text_pair": row["#2 String"]}
                 for row in table(data / "glue/MRPC/train.tsv"))
    elif kind == "tags":
        found = ({"text": sentence.text} for sentence in Reading().read(
            str(data / "tagging/wnut17/train.conll"))[0])
    elif kind == "choices":
        found = ({"passage": one.article, "question": one.question,
                  "options": list(one.options)} for one in race.RaceTask().read(
                      str(data / "race"), "dev").examples)
    else:  # One in five, as questions of a passage follow each other.
        found = ({"question": one.question_text, "passage": one.paragraph_text}
                 for one in read_questions(str(data / "squad" / (
                     "dev-v1.1.json" if kind == "questions" else "v2.0-16-articles.json"
                     )))[::5])
    return list(itertools.islice(found, 200 if kind in ("choices", "order") else COUNT))


def table(path):
    with open(path, encoding="utf-8-sig", newline="") as stream:
        yield from csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE)


def flat(rows):
    """Rows of ids; of choices those of each."""
    return [row for part in rows for row in part] if rows and isinstance(
        rows[0][0], list) else rows


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize("kind", KINDS)
def test_exports_answer_as_python_does(kind, tmp_path):
    pytest.importorskip("tensorflow_text")
    inputs, exported = inputs_of(kind), tmp_path / "exported"
    folder = tiny_models.write(
        tmp_path / "model", KINDS[kind][0], SHARED / "data/spm_en/30k-clean.model",
        tiny_models.TINY.replace(vocab_size=30000, max_position_embeddings=96),
        max_seq_length=96, doc_stride=32)
    model = albert_tf.load(folder)
    with run_commands("export_model", {"export": [
            f"--model={folder}", f"--export_dir={exported}", *KINDS[kind][1]]}) as results:
        results.ok("export")
    task = "order" if kind == "order" else ""
    tokenized, answers = [], []
    for first in range(0, len(inputs), 20):
        columns = {name: [row[name] for row in inputs[first:first + 20]]
                   for name in inputs[0]}
        found, answered = (outputs_of(load_export(exported).signatures[name], columns)
                           for name in ("tokenize", "serving_default"))
        for ids, mask in zip(flat(found["input_ids"]), flat(found["input_mask"])):
            tokenized.append([i for i, m in zip(ids, mask) if m])
        answers += as_answers(answered)
    # The inputs that the graph cuts another, equally likely way may differ.
    ties, rows = set(), iter(tokenized)
    for number, given in enumerate(inputs):
        for row in model.request(given, Ask(task)).sequences:
            ids = [i for i, m in zip(row["input_ids"], row["input_mask"]) if m]
            if (one := next(rows)) != ids:
                assert equally_likely(model.tokenizer, one, ids), number
                ties.add(number)
    assert not [*rows]
    wanted = as_outputs(model.predict(inputs, task=task))
    differ = [i for i, pair in enumerate(zip(answers, wanted, strict=True))
              if i not in ties and not close(*pair)]
    assert not differ, (len(differ), answers[differ[0]], wanted[differ[0]])
    print(f"{kind}: {len(inputs)} inputs, {len(tokenized)} sequences: equal, "
          f"{len(ties)} ties", flush=True)
