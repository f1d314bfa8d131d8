"""Flags that have an effect only in combination with others."""

from typing import Any

from absl import flags, logging

from albert_tf.errors import InputError

FLAGS = flags.FLAGS


def is_given(name: str) -> bool:
    """Returns whether the script has a flag, and its value differs from the default."""
    return (name in FLAGS and FLAGS[name].present > 0
            and FLAGS[name].value != FLAGS[name].default)


def check_needs(names: str, is_used: Any, needed: str) -> None:
    """Raises InputError if one of these flags is given, but not what it belongs to.

        check_needs("start_n_top end_n_top", FLAGS.version_2_with_negative,
                    "--version_2_with_negative")
    """
    for name in names.split() if not is_used else ():
        if is_given(name):
            raise InputError(f"--{name} has an effect only with {needed}: give that "
                             f"too, or leave --{name} out.")


def say_unused(names: str, is_used: Any, why: str) -> None:
    """Logs which of these flags are given without having an effect.

        say_unused("learning_rate train_step", FLAGS.do_train, "without --do_train")

    This is for flags that one command line may have in several uses, such as those of
    training if the trained model is evaluated.
    """
    given = [f"--{name}" for name in names.split() if not is_used and is_given(name)]
    if given:
        logging.warning("%s %s no effect %s.", ", ".join(given),
                        "has" if len(given) == 1 else "have", why)


def check_predictions(max_seq_length: int, most: int) -> None:
    """Raises InputError if --max_predictions_per_seq is given, and is more than `most`,
    the number of tokens of a sequence that can be masked."""
    count = FLAGS.max_predictions_per_seq
    if FLAGS["max_predictions_per_seq"].present and count > most:
        raise InputError(
            f"--max_predictions_per_seq={count} is more than the {most} tokens that a "
            f"sequence of --max_seq_length={max_seq_length} has besides [CLS] and "
            f"[SEP]; give {most} or less.")
