"""What a user can switch on compiles for a TPU.

    pip install -r benchmarks/requirements-tpu.txt
    python -m pytest -m tpu

Each case is a command of tiny size. A TPU's compiler refuses operations, shapes and
types that XLA's for CPUs takes.
"""

import importlib.util
import json

import numpy as np
import pytest

from tests import tiny_run
from tests.commands import arguments
from tests.helpers import run_python
from tests.scripts import (
    test_run_classifier as classifier, test_run_pretraining as pretraining,
    test_run_race as race, test_run_squad as squad, test_run_tagger as tagger)

pytestmark = [pytest.mark.tpu, pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None,
    reason="needs benchmarks/requirements-tpu.txt")]

PRETRAINING = dict(pretraining.FLAGS, albert_config_file="{data}/four.json",
                   num_train_steps=4, num_warmup_steps=1, save_checkpoints_steps=2,
                   iterations_per_loop=2)
DYNAMIC = dict(pretraining.DYNAMIC, eval_input_file=None)
PERMUTATION = dict(pretraining.PERMUTATION, eval_input_file=None)
# Name → flags, and the (step, passes) that are compiled.
STEPS = {
    "float32": dict(do_eval="true", eval_input_file="{data}/dev.tfrecord"),
    "bfloat16, adamw": dict(dtype="bfloat16", optimizer="adamw", do_eval="true",
                            eval_input_file="{data}/dev.tfrecord"),
    "recompute": dict(recompute="true", dtype="bfloat16"),
    "accumulation": dict(gradient_accumulation_steps=2, dtype="bfloat16"),
    "accumulation and recompute": dict(
        gradient_accumulation_steps=2, recompute="true", dtype="bfloat16"),
    "sum of replicas, no sentence objective": dict(
        replica_gradients="sum", sentence_objective="none"),
    "permutation": dict(PERMUTATION, dtype="bfloat16", do_eval="true",
                        eval_input_file="{data}/unmasked.tfrecord"),
    "permutation, depth schedule, recompute": dict(
        PERMUTATION, depth_schedule="3:0.5,4:0.5", recompute="true",
        gradient_accumulation_steps=2),
    "dynamic masking": dict(DYNAMIC, sentence_objective="order", dtype="bfloat16"),
    "dynamic, next sentence": dict(DYNAMIC, sentence_objective="next"),
    "depth schedule": dict(depth_schedule="2:0.5,4:0.5", dtype="bfloat16"),
    "depth schedule, recompute": dict(
        depth_schedule="3:0.5,4:0.5", recompute="true", dtype="bfloat16"),
    "BERT": dict(albert_config_file="{data}/bert.json", dtype="bfloat16"),
    "groups": dict(albert_config_file="{data}/groups.json", recompute="true"),
    "inner groups": dict(albert_config_file="{data}/inner.json", recompute="true"),
    "wide embeddings, relu": dict(albert_config_file="{data}/wide.json"),
    "attention shared, tanh, sparse norm": dict(
        albert_config_file="{data}/attention.json", sparse_gradient_norm="true"),
    "feed-forward shared, erf": dict(
        albert_config_file="{data}/ffn.json", dtype="bfloat16"),
}
CONFIGS = {
    "four": dict(num_hidden_layers=4),
    "bert": dict(num_hidden_layers=2, parameter_sharing="none", embedding_size=8),
    "groups": dict(num_hidden_layers=4, num_hidden_groups=2),
    "inner": dict(num_hidden_layers=3, inner_group_num=2),
    "attention": dict(
        num_hidden_layers=2, parameter_sharing="attention", hidden_act="tanh"),
    "ffn": dict(num_hidden_layers=2, parameter_sharing="ffn", hidden_act="gelu_erf"),
    "wide": dict(num_hidden_layers=2, embedding_size=8, hidden_act="relu")}


def compiled(script, data, flags):
    """The lines of the steps of a command, compiled."""
    process = run_python("-m", "tests.tpu.compile_run", script, *arguments(
        data, "output", flags))
    assert process.returncode == 0, process.stderr[-3000:]
    rows = [json.loads(line) for line in process.stdout.splitlines()
            if line.startswith('{"step"')]
    assert rows, process.stderr[-3000:]
    return rows


@pytest.fixture(scope="module", name="records")
def _records(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    for name, changes in CONFIGS.items():
        config = tiny_run.config(**{
            "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, **changes})
        (folder / f"{name}.json").write_text(config.to_json())
    pretraining.write(folder / "train.tfrecord", tiny_run.examples(30, 1))
    pretraining.write(folder / "dev.tfrecord", tiny_run.examples(9, 2))
    pretraining.write(folder / "unmasked.tfrecord", pretraining.rows_with_words(30, 1))
    return folder


@pytest.mark.parametrize("name", STEPS)
def test_pretraining(name, records, tmp_path):
    flags = {**PRETRAINING, **STEPS[name], "output_dir": tmp_path / "run"}
    rows = compiled("run_pretraining", records, flags)
    kinds = [(row["step"], row.get("passes")) for row in rows]
    depths = {"depth schedule": [2, 4], "depth schedule, recompute": [3, 4],
              "permutation, depth schedule, recompute": [3, 4]}.get(name, [None])
    assert set(kinds) - {("evaluate", None)} <= {("train", depth) for depth in depths}
    assert ("evaluate", None) in kinds or "do_eval" not in flags
    parts = flags.get("gradient_accumulation_steps", 1)
    assert {row["parts"] for row in rows if row["step"] == "train"} == {parts}


# Name → script and flags; classes have several lengths.
FINE_TUNING = {
    "classes": ("run_classifier", dict(
        classifier.OWN, dev_file="dev.tsv", do_eval="true")),
    "several labels": ("run_classifier", dict(classifier.TOPICS, multi_label="true")),
    "regression": ("run_classifier", dict(
        classifier.COLA, task_name="sts-b", do_eval="true")),
    **{name: ("run_squad", dict(
        squad.FLAGS, do_train="true", do_eval="true", version_2_with_negative=version_2))
       for name, version_2 in (("questions", "false"), ("questions 2.0", "true"))},
    "multiple choice": ("run_race", race.FLAGS),
    "tags": ("run_tagger", dict(tagger.FLAGS, train_step=4, save_checkpoints_steps=2))}


@pytest.mark.parametrize("name", FINE_TUNING)
def test_fine_tuning(name, tmp_path):
    script, flags = FINE_TUNING[name]
    words, length = {"run_race": (race.WORDS, 32), "run_squad": (
        squad.VOCABULARY[5:], 64)}.get(script, ([",", ".", *tagger.WORDS], 12))
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    (tmp_path / "config.json").write_text(tiny_run.config(
        vocab_size=len(vocabulary), max_position_embeddings=length).to_json())
    if script == "run_classifier":
        classifier.write(tmp_path)
    race.write_race(tmp_path / "race")
    for file in ("train", "predict"):
        squad.write(tmp_path / f"{file}.json", squad.article(
            range(20), version_2=name == "questions 2.0"))
    random = np.random.default_rng(0)
    for split in ("train", "dev"):
        (tmp_path / f"{split}.conll").write_text("\n".join("".join(
            f"{word}\t{tag}\n" for word, tag in tagger.sentence(random))
            for _ in range(40)))
    rows = compiled(script, tmp_path, dict(
        flags, dtype="bfloat16", output_dir="{data}/output"))
    assert {row["step"] for row in rows} == {"train", "evaluate"}
    assert name != "classes" or len({tuple(row["input_ids"]) for row in rows}) >= 2
