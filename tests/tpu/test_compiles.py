"""What a user can switch on compiles for a TPU.

    pip install -r benchmarks/requirements-tpu.txt
    python -m pytest -m tpu

Each case is a command of tiny size. A TPU's compiler refuses operations, shapes and
types that XLA's for CPUs takes.
"""

import importlib.util
import json

import pytest

from tests import tiny_run
from tests.helpers import run_python
from tests.scripts import (
    test_run_classifier as classifier, test_run_pretraining as pretraining,
    test_run_race as race, test_run_squad as squad, test_run_tagger as tagger)

pytestmark = [pytest.mark.tpu, pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None,
    reason="needs benchmarks/requirements-tpu.txt")]

PRETRAINING = dict(
    input_file="{data}/train.tfrecord", max_seq_length=tiny_run.LENGTH,
    max_predictions_per_seq=tiny_run.PREDICTIONS, train_batch_size=8, eval_batch_size=4,
    num_train_steps=4, num_warmup_steps=1, save_checkpoints_steps=2,
    iterations_per_loop=2, albert_config_file="{data}/four.json")
DYNAMIC = dict(
    input_file="{data}/unmasked.tfrecord", max_predictions_per_seq=2,
    dynamic_masking="true", masked_lm_prob=0.3, cls_id=2, sep_id=3, mask_id=4)
PERMUTATION = {**DYNAMIC, "dynamic_masking": None, "objective": "permutation"}
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
    words = [f"--{name}={value}".replace("{data}", str(data))
             for name, value in flags.items() if value is not None]
    output = data / "output"
    process = run_python("-m", "tests.tpu.compile_run", script, *words,
                         *([] if "output_dir" in flags else [f"--output_dir={output}"]))
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
    classifier.write_models(folder)
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


# Flags for a user's own classes.
OWN = dict(
    task_name="custom", train_file="{data}/own/train.csv", dev_file="{data}/own/dev.tsv",
    text_column="review", label_column="stars", vocab_file="{data}/vocab.txt",
    albert_config_file="{data}/config.json", max_seq_length=16, train_batch_size=4,
    eval_batch_size=3, train_step=4, save_checkpoints_steps=2, num_length_buckets=2,
    from_scratch="true", do_train="true", do_eval="true", dtype="bfloat16")


def test_classes_with_lengths_and_several_labels(tmp_path):
    data = classifier_data(tmp_path)
    rows = compiled("run_classifier", data, OWN)
    lengths = {tuple(row["input_ids"]) for row in rows}
    assert len(lengths) >= 2  # Training and evaluation, each length.
    topics = compiled("run_classifier", data, dict(
        OWN, train_file="{data}/own/topics.jsonl", dev_file="{data}/own/topics.jsonl",
        text_column="text", label_column="topics", multi_label="true",
        output_dir=tmp_path / "topics"))
    assert {row["step"] for row in topics} == {"train", "evaluate"}


def classifier_data(folder):
    classifier.write_own(folder / "own")
    classifier.write_glue(folder / "glue")
    (folder / "config.json").write_text(
        tiny_run.config(**{**classifier.CONFIG, "num_hidden_layers": 2}).to_json())
    (folder / "vocab.txt").write_text(
        "\n".join(classifier.PIECES) + "\n", encoding="utf-8")
    return folder


def test_regression(tmp_path):
    rows = compiled("run_classifier", classifier_data(tmp_path), dict(
        task_name="sts-b", data_dir="{data}/glue", vocab_file="{data}/vocab.txt",
        albert_config_file="{data}/config.json", max_seq_length=16, train_batch_size=4,
        train_step=4, num_length_buckets=1, from_scratch="true", do_train="true",
        do_eval="true"))
    assert {row["step"] for row in rows} == {"train", "evaluate"}


@pytest.mark.parametrize("version_2", [False, True])
def test_questions(version_2, tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(squad.VOCABULARY) + "\n")
    (tmp_path / "config.json").write_text(squad.CONFIG.to_json())
    for name in ("train", "predict"):
        squad.write(tmp_path / f"{name}.json", squad.article(
            range(20), version_2=version_2))
    rows = compiled("run_squad", tmp_path, dict(
        squad.FLAGS, do_train="true", do_eval="true", dtype="bfloat16",
        **({"version_2_with_negative": "true"} if version_2 else {})))
    assert {row["step"] for row in rows} == {"train", "evaluate"}


def write_model(folder, words, length):
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    (folder / "config.json").write_text(tiny_run.config(
        vocab_size=len(vocabulary), max_position_embeddings=length).to_json())


def test_multiple_choice(tmp_path):
    race.write_race(tmp_path / "race")
    write_model(tmp_path, race.WORDS, 32)
    rows = compiled("run_race", tmp_path, dict(
        race.FLAGS, do_train="true", do_eval="true", dtype="bfloat16"))
    assert {row["step"] for row in rows} == {"train", "evaluate"}


def test_tags(tmp_path):
    random = tagger.np.random.default_rng(0)
    for split in ("train", "dev"):
        (tmp_path / f"{split}.conll").write_text("\n".join("".join(
            f"{word}\t{tag}\n" for word, tag in tagger.sentence(random))
            for _ in range(40)))
    write_model(tmp_path, [",", ".", *tagger.WORDS], 12)
    rows = compiled("run_tagger", tmp_path, dict(
        tagger.FLAGS, train_step=4, save_checkpoints_steps=2, dtype="bfloat16"))
    assert {row["step"] for row in rows} == {"train", "evaluate"}
