"""Flags of distillation: the teacher, and how much of it is learned
(training.distillation)."""

from absl import flags

from albert_tf.cli import flags as cli_flags
from albert_tf.errors import InputError

FLAGS = flags.FLAGS
NUMBERS = ("teacher_weight", "temperature", "teacher_hidden_weight")


def define_flags(teacher: str, what: str) -> None:
    """`teacher`: what it must be; `what` is learned besides its outputs."""
    flags.DEFINE_string(
        "teacher", None, f"{teacher}, in any format that --init_checkpoint takes: what "
        f"it says of each example is learned besides the {what} (distillation). The "
        "same vocabulary, any shape; give fewer layers with "
        "--config_overrides=num_hidden_layers=4 and the teacher itself as "
        "--init_checkpoint for the same weights at fewer passes.")
    flags.DEFINE(
        cli_flags.Number(upper_bound=1), "teacher_weight", 0.5,
        f"The teacher's share of the loss; with 1 the {what} do not count.")
    flags.DEFINE(
        cli_flags.Number(lower_bound=0.01, upper_bound=100), "temperature", 2.0,
        "What the scores of --teacher and model are divided by for the teacher's loss: "
        "the higher, the more unlikely classes count.")
    flags.DEFINE(
        cli_flags.Number(), "teacher_hidden_weight", 0.0,
        "Of the difference of the last hidden states, pooled for a head of sequences, "
        "from those of a --teacher of the same hidden_size; added to the loss.")


def check() -> None:
    """Raises InputError where flags of distillation would do nothing."""
    if FLAGS.teacher and not FLAGS.do_train:
        raise InputError("--teacher is for training: give --do_train, or leave it out.")
    given = [name for name in NUMBERS if FLAGS[name].present]
    if given and not FLAGS.teacher and FLAGS.do_train:
        raise InputError(f"--{given[0]} is of distillation: give --teacher too, or leave "
                         "it out.")
