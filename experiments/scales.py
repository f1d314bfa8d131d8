"""Rows of the paper's tables, and how large everything is: on two cores, at the paper's
scale, in tests.

At the small scale two cores train a row in some ten minutes: 12 passes of width 128
where the paper has 768, and for its E of 64, 128, 256 and 768 16, 32, 64 and 128, so
that the last is E = H in both and ALBERT's own is a quarter of H (a sixth in the
paper); 24 layers where it has 24, of widths up to 256; sequences of 64 pieces in
batches of 32, a vocabulary of 8,000, LAMB at 0.004, no dropout, 16 MB of Wikipedia, all
computed in bfloat16, which takes 0.7 of the time where the processor has its products.
The paper's scale has the settings of its section 4.1.
"""

from typing import Any, Mapping, NamedTuple

from albert_tf.config import AlbertConfig


class Row(NamedTuple):
    """A row of a table.

    Attributes:
      name: in the table.
      size: one of config.NAMED; the scale says how large that is.
      config: fields of AlbertConfig that differ, as the paper has them.
      sentence_objective: "order", "next" or "none".
      text: share of the articles to train on.
      as_long_as: a size; training takes as long as that one's, by the time of both.
      scale: one of OWN, which the row has in place of --scale=small.
      paper: what the paper prints of it.
    """

    name: str
    size: str = "base"
    config: Mapping[str, Any] = {}
    sentence_objective: str = "order"
    text: float = 1.0
    as_long_as: str = ""
    scale: str = ""
    paper: Mapping[str, float] = {}


class Scale(NamedTuple):
    """How large everything is.

    Attributes:
      shapes: size → layers and width; others are the published ones.
      embedding_sizes: the paper's E → ours.
      config: fields of AlbertConfig for all rows.
      records: flags of create_pretraining_data.py.
      batches: flags of run_pretraining.py and their values.
      computation: flags of all training.
      steps, warmup: of training; those of warm-up are a share.
      evaluated: batches of 64 held-out sequences.
      tasks: what is fine-tuned: name → script and flags, {data} and {work} being
        --data_dir and --work_dir.
      clock: what "as long" is measured by, of runs.cost.
      step: flags of benchmarks.training, to measure speed.
    """

    shapes: Mapping[str, tuple[int, int]]
    embedding_sizes: Mapping[int, int]
    config: Mapping[str, Any]
    records: Mapping[str, Any]
    batches: Mapping[str, Any]
    computation: Mapping[str, Any]
    steps: int
    warmup: float
    evaluated: int
    tasks: Mapping[str, tuple[str, Mapping[str, Any]]]
    clock: str
    step: Mapping[str, Any]


def _glue(task: str, steps: int, **more: Any) -> tuple[str, dict[str, Any]]:
    return "run_classifier.py", {
        "task_name": task, "data_dir": "{data}/glue", "train_step": steps,
        "warmup_step": steps // 10, "save_checkpoints_steps": steps,
        "learning_rate": 3e-4, "max_seq_length": 64, "train_batch_size": 32, **more}


def _squad(**more: Any) -> tuple[str, dict[str, Any]]:
    """40 articles of SQuAD 1.1's dev set to train, 8 to test."""
    return "run_squad.py", {
        "train_file": "{work}/squad_train.json",
        "predict_file": "{work}/squad_test.json", "do_predict": "true",
        "learning_rate": 3e-4, "max_seq_length": 128, "doc_stride": 64,
        "max_query_length": 24, "train_batch_size": 32, "num_train_epochs": 2, **more}


_RECIPE = {"recipe": "true", "max_seq_length": 512}
PAPER = Scale(
    {}, {}, {}, dict(max_seq_length=512, max_predictions_per_seq=77, dupe_factor=10),
    dict(train_batch_size=4096, learning_rate=0.00176), {}, 125_000, 0.025, 100,
    {"squad-1.1": ("run_squad.py", {
        "train_file": "{data}/squad/train-v1.1.json",
        "predict_file": "{data}/squad/dev-v1.1.json", "do_predict": "true", **_RECIPE}),
     "squad-2.0": ("run_squad.py", {
         "train_file": "{data}/squad/train-v2.0.json",
         "predict_file": "{data}/squad/dev-v2.0.json", "do_predict": "true",
         "version_2_with_negative": "true", **_RECIPE}),
     **{task: ("run_classifier.py", {
         "task_name": task, "data_dir": "{data}/glue", **_RECIPE})
        for task in ("mnli", "sst-2")},
     "race": ("run_race.py", {"data_dir": "{data}/race", **_RECIPE})},
    "seconds", dict(shapes="64x512", rounds=5))
SMALL = Scale(
    {"base": (12, 128), "large": (24, 128), "xlarge": (24, 192), "xxlarge": (12, 256)},
    {64: 16, 128: 32, 256: 64, 768: 128},
    dict(vocab_size=8000, max_position_embeddings=128, hidden_dropout_prob=0.0,
         attention_probs_dropout_prob=0.0),
    dict(max_seq_length=64, max_predictions_per_seq=10, dupe_factor=5),
    dict(train_batch_size=32, learning_rate=0.004), dict(dtype="bfloat16"), 4000, 0.05, 32,
    {"sst-2": _glue("sst-2", 2000), "mrpc": _glue("mrpc", 345), "squad": _squad()},
    "core_seconds", dict(shapes="4x128", dtypes="float32", rounds=2))
# Sentences of one kind are learned later than pieces, and only where segments are long
# enough to have a topic: sequences are longer, more steps are made by way of growing
# depth, and chunks of one sentence are left out, whose second segment would come from
# another document whatever the objective. Every answer then is right by chance in 50 %.
# Of five copies of the text a model learns the answers by heart; 20 are seen hardly more
# than once each. A point or two over chance counts, so more is evaluated.
SENTENCES = SMALL._replace(
    records=dict(max_seq_length=128, max_predictions_per_seq=20, dupe_factor=20,
                 single_segment="skip"),
    batches={**SMALL.batches, "depth_schedule": "3:0.5,6:0.25,12:0.25"}, steps=12_000,
    evaluated=64)
# What layers share matters only to a model that has begun to use the pieces around a
# mask, which takes more steps than learning which pieces are frequent: three times as
# many, of half the size, with 40 % masked and a rate that stays (--recipe=fast but for
# its growing depth, which needs shared layers), and embeddings not as narrow.
LONGER = SMALL._replace(
    embedding_sizes={128: 64, 768: 128},
    records={**SMALL.records, "masked_lm_prob": 0.4, "max_predictions_per_seq": 26},
    batches={**SMALL.batches, "train_batch_size": 16, "decay_share": 0.3}, steps=12_800)
# By the name in Row.scale.
OWN = {"sentences": SENTENCES, "longer": LONGER}
# For tests and trials, in minutes on the real data: Wikipedia's text has 392 characters,
# that of the tests has no more than some 450 pieces.
TINY = SMALL._replace(
    shapes={"base": (1, 32), "large": (2, 32), "xlarge": (2, 64), "xxlarge": (1, 64)},
    embedding_sizes={64: 4, 128: 8, 256: 16, 768: 32},
    config={**SMALL.config, "vocab_size": 450},
    records={**SMALL.records, "dupe_factor": 1},
    batches=dict(train_batch_size=4, learning_rate=0.004), computation={}, steps=2,
    evaluated=1,
    tasks={"sst-2": _glue("sst-2", 2, train_batch_size=4),
           "mrpc": _glue("mrpc", 2, train_batch_size=4),
           "squad": _squad(num_train_steps=2, train_batch_size=4)},
    step=dict(shapes="1x16", dtypes="float32", rounds=1, config_overrides=(
        "num_hidden_layers=1,hidden_size=64,num_attention_heads=1,"
        "intermediate_size=64,vocab_size=50")))
SCALES = {"small": SMALL, "paper": PAPER, "tiny": TINY}


def config_of(row: Row, of: Scale) -> AlbertConfig:
    """The row's model at a scale."""
    named = AlbertConfig.named(row.size, **{**of.config, **row.config})
    shape = of.shapes.get(row.size.removeprefix("bert-"))
    if shape is None:
        return named
    layers, hidden = shape
    return named.replace(
        num_hidden_layers=layers, hidden_size=hidden, intermediate_size=4 * hidden,
        num_attention_heads=hidden // 32, embedding_size=(
            hidden if named.embedding_size == named.hidden_size
            else of.embedding_sizes[named.embedding_size]))


def run_name(row: Row, seed: int, of: Scale, steps: int) -> str:
    """A folder's name: what the row is, and not what a table calls it."""
    config = config_of(row, of)
    return "_".join([
        f"{config.num_hidden_layers}x{config.hidden_size}", f"E{config.embedding_size}",
        config.parameter_sharing, *([f"dropout{config.hidden_dropout_prob:g}"]
                                    if config.hidden_dropout_prob else []),
        row.sentence_objective, *([f"text{row.text:g}"] if row.text != 1 else []),
        f"{steps}steps", f"seed{seed}"])
