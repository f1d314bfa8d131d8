"""Checks of flags that all scripts share: numbers, addresses, and flags that have an
effect only in combination with others."""

import os
import re
from typing import Any

from absl import flags, logging

from albert_tf.cli.define import Number, is_given  # noqa: F401
from albert_tf.errors import InputError

FLAGS = flags.FLAGS

# ---- values ------------------------------------------------------------------

# For flags whose bounds are checked elsewhere, with a sentence of its own.
ANY = dict(lower_bound=-1e38)

# The beginning of an address with a slash too few, such as s3:/bucket.
_HALF_SCHEME = re.compile(r"(gs|s3|hdfs|https?|file|hf|kaggle|grpc):(?!//)/?[\w.]")


def check_values() -> None:
    """Raises InputError for flags that are given without a value, as by the shell if a
    variable is empty, unless their default is empty, and for misspelled addresses.
    Expands paths that begin with ~/, which shells leave as they are after "="."""
    for name in FLAGS:
        flag = FLAGS[name]
        if not flag.present:
            continue
        if flag.default is None and flag.value in ("", []):
            raise InputError(f"--{name} is empty; give a value, or leave the flag out.")
        if isinstance(flag.value, list):
            flag.value = list(map(_expanded, flag.value))
        elif isinstance(flag.value, str):
            flag.value = _expanded(flag.value)
        for value in flag.value if isinstance(flag.value, list) else [flag.value]:
            scheme = isinstance(value, str) and _HALF_SCHEME.match(value)
            if scheme and not os.path.exists(value):
                rest = value[len(scheme[1]) + 1:].lstrip("/")
                raise InputError(
                    f"--{name}={value}: an address begins with two slashes after its "
                    f"scheme; give {scheme[1]}://{rest}, or ./{value} for a local file "
                    "of that name.")


def _expanded(value: str) -> str:
    """Returns paths, separated by commas, of which each may begin with ~/."""
    return re.sub('(^|,)( *"?)~(?=/)', lambda begin: (
        f"{begin[1]}{begin[2]}{os.path.expanduser('~')}"), value)


# ---- combinations ------------------------------------------------------------


def check_needs(names: str, is_used: Any, needed: str) -> None:
    """Raises InputError if one of these flags is given, but not what it belongs to.

        check_needs("start_n_top end_n_top", FLAGS.version_2_with_negative,
                    "--version_2_with_negative")
    """
    for name in names.split() if not is_used else ():
        if is_given(FLAGS, name):
            raise InputError(f"--{name} has an effect only with {needed}: give that "
                             f"too, or leave --{name} out.")


def say_unused(names: str, is_used: Any, why: str) -> None:
    """Logs which of these flags are given without having an effect.

        say_unused("learning_rate train_step", FLAGS.do_train, "without --do_train")

    This is for flags that one command line may have in several uses, such as those of
    training if the trained model is evaluated.
    """
    given = [f"--{name}" for name in names.split() if not is_used and is_given(FLAGS, name)]
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
