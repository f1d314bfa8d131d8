"""Rows of the paper's tables and the scales at which they can be trained: small (two
cores), paper, and tiny (tests).

At the small scale two cores train a row in about ten minutes:

- 12 layers of width 128 where the paper has 768, and 24 layers of widths up to 256 where
  the paper has 24 layers
- E of 16, 32, 64 and 128 for the paper's 64, 128, 256 and 768, so that the last means
  E = H at both scales and ALBERT's default is a quarter of H (a sixth in the paper)
- sequences of 64 tokens in batches of 32, a vocabulary of 8,000, 16 MB of Wikipedia
- LAMB at a learning rate of 0.004, no dropout
- bfloat16, which takes 0.7 of the time on processors that multiply in bfloat16

The paper's scale has the settings of the paper's section 4.1.
"""

from typing import Any, Mapping, NamedTuple

from albert_tf.config import AlbertConfig


class Row(NamedTuple):
    """A row of a table.

    Attributes:
      name: in the table.
      size: one of config.NAMED; the scale determines its shape.
      config: fields of AlbertConfig that differ, with the paper's values.
      sentence_objective: "order", "next" or "none".
      text: share of the articles to train on.
      as_long_as: a size; training takes the time that training this size took.
      scale: one of OWN, used for this row instead of --scale=small.
      paper: the numbers that the paper prints for this row.
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
    """The sizes and settings of all rows.

    Attributes:
      shapes: size → (layers, width); sizes without an entry keep their published shape.
      embedding_sizes: the paper's E → the E used here.
      config: fields of AlbertConfig for all rows.
      records: flags of create_pretraining_data.py.
      batches: flags of run_pretraining.py.
      computation: flags of pretraining and fine-tuning.
      steps: training steps.
      warmup: share of the steps used for warm-up.
      evaluated: number of evaluation batches, of 64 held-out sequences each.
      tasks: fine-tuning tasks: name → (script, flags), where {data} and {work} stand for
        --data_dir and --work_dir.
      clock: key of runs.cost that measures equal time.
      step: flags of benchmarks.training, for measuring speed.
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
    """Returns SQuAD on its 1.1 dev set: 40 articles to train on, 8 to test on."""
    return "run_squad.py", {
        "train_file": "{work}/squad_train.json",
        "predict_file": "{work}/squad_test.json", "do_predict": "true",
        "learning_rate": 3e-4, "max_seq_length": 128, "doc_stride": 64,
        "max_query_length": 24, "train_batch_size": 32,
        **({} if "num_train_steps" in more else {"num_train_epochs": 2}), **more}


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
# Models learn sentence objectives later than tokens, and only where segments are long
# enough to have a topic. Sequences are therefore longer, and growing depth pays for more
# steps. Chunks of one sentence are left out, because their second segment would come from
# a different document whatever the objective; chance is then 50 % for every answer. Five
# copies of the text would be memorised, while 20 are seen hardly more than once each. One
# or two points above chance matter, so more sequences are evaluated.
SENTENCES = SMALL._replace(
    records=dict(max_seq_length=128, max_predictions_per_seq=20, dupe_factor=20,
                 single_segment="skip"),
    batches={**SMALL.batches, "depth_schedule": "3:0.5,6:0.25,12:0.25"}, steps=12_000,
    evaluated=64)
# Sharing matters only once a model uses the tokens around a mask, which takes more steps
# than learning which tokens are frequent. These rows train for three times as many steps,
# of half the size, with 40 % masked and a constant learning rate before the final decay
# (--recipe=fast without its growing depth, which needs shared layers), and with wider
# embeddings.
LONGER = SMALL._replace(
    embedding_sizes={128: 64, 768: 128},
    records={**SMALL.records, "masked_lm_prob": 0.4, "max_predictions_per_seq": 26},
    batches={**SMALL.batches, "train_batch_size": 16, "decay_share": 0.3}, steps=12_800)
# Name in Row.scale → scale.
OWN = {"sentences": SENTENCES, "longer": LONGER}
# For tests and trials; takes minutes on the real data. The vocabulary has 450 tokens
# because Wikipedia's text has 392 characters and the tests' text allows few more tokens.
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
    """Returns the config of a row's model at a scale."""
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
    """Returns a folder name that describes the row itself, not its name in a table."""
    config = config_of(row, of)
    return "_".join([
        f"{config.num_hidden_layers}x{config.hidden_size}", f"E{config.embedding_size}",
        config.parameter_sharing, *([f"dropout{config.hidden_dropout_prob:g}"]
                                    if config.hidden_dropout_prob else []),
        row.sentence_objective, *([f"text{row.text:g}"] if row.text != 1 else []),
        f"{steps}steps", f"seed{seed}"])
