"""Options as flags.

    define(SquadTask)                     # --doc_stride, --max_query_length, ...
    check_needs()                         # what has no effect without something else
    task = given(SquadTask, flags.FLAGS)  # options.given, after flags are parsed

`values` may also be flags.FlagValues() of its own, as for `albert_tf.finetune`.
"""

import itertools
import os
import re
from typing import Any, Iterable, Mapping

from absl import flags, logging

from albert_tf.errors import InputError
from albert_tf.options import Option, checked, options_of

flags.disclaim_key_flags()  # Flags belong to the script that calls `define`.

Values = flags.FlagValues


class _Number(flags.FloatParser):
    """Parses the number of an option, which is finite; absl's own lets nan pass every
    bound."""

    def __init__(self, option: Option):
        super().__init__(option.least, option.most)
        self._option = option
        if option.least == -option.most:
            self.syntactic_help = "a finite number"
        if option.below is not None:
            self.syntactic_help = f"a number of at least 0 and below {option.below:g}"

    def is_outside_bounds(self, val: float) -> bool:
        option = self._option
        return not option.least <= val <= option.most or (
            option.below is not None and val >= option.below)


def define(*classes: type, values: Values = flags.FLAGS, without: str = "",
           **defaults: Any) -> None:
    """Defines a flag for each option of the dataclasses, but those named in `without`;
    `defaults` replace the fields' own."""
    for option in itertools.chain(*map(options_of, classes)):
        if option.name in without.split():
            continue
        default = defaults.get(option.name, option.default)
        how = dict(name=option.name, help=option.help, flag_values=values,
                   default=[*default] if isinstance(default, tuple) else default,
                   required=option.required)
        if option.choices:
            flags.DEFINE_enum(enum_values=option.choices, **how)
        elif option.kind is int:
            flags.DEFINE_integer(
                lower_bound=int(option.least), upper_bound=int(option.most), **how)
        elif option.kind is float:
            flags.DEFINE(_Number(option), **how)
        else:
            {bool: flags.DEFINE_bool, str: flags.DEFINE_string,
             list: flags.DEFINE_list}[option.kind](**how)
        values[option.name].option = option


def options_in(values: Values) -> list[Option]:
    """Returns the options of which `define` made flags."""
    return [values[name].option for name in values if hasattr(values[name], "option")]


def take(values: Values, options: Iterable[Option], source: Mapping[str, Any]) -> None:
    """Sets flags that are not given to the checked values of a mapping, such as the
    flags in task.json."""
    for option in options:
        if option.name in source and not values[option.name].present:
            values[option.name].value = checked(option, source[option.name])


def use_recipe(name: str, recipe: Mapping[str, Any], source: str,
               values: Values = flags.FLAGS) -> None:
    """Sets flags that are not given to the values of a recipe, and logs them."""
    logging.info("Using the settings of the recipe %s (source: %s).", name, source)
    taken, others = [], []
    for flag, value in sorted(recipe.items()):
        if not values[flag].present:
            values[flag].value = value
            taken.append(f"--{flag}={value}")
        elif values[flag].value != value:
            others.append(f"--{flag}={values[flag].value} (the recipe: {value})")
    logging.info("The recipe sets %s.", ", ".join(taken) or "nothing")
    if others:
        logging.info("Flags override it: %s.", ", ".join(others))


# ---- checks ------------------------------------------------------------------


def check_values() -> None:
    """Raises InputError for flags that are given without a value, as by the shell if a
    variable is empty, unless their default is empty, and for misspelled addresses.
    Expands paths that begin with ~/, which shells leave as they are after "="."""
    for flag in map(flags.FLAGS.__getitem__, flags.FLAGS):
        if not flag.present or not isinstance(flag.value, (str, list)):
            continue
        if flag.default is None and not flag.value:
            raise InputError(f"--{flag.name} is empty; give a value, or leave the flag "
                             "out.")
        texts = flag.value if isinstance(flag.value, list) else [flag.value]
        # Paths are also separated by commas in one text.
        texts = [re.sub('((?:^|,) *"?)~(?=/)', lambda begin: (
            begin[1] + os.path.expanduser("~")), text) for text in texts]
        flag.value = texts if isinstance(flag.value, list) else texts[0]
        for text in texts:
            scheme = re.match(
                r"(gs|s3|hdfs|https?|file|hf|kaggle|grpc):(?!//)/?(?=[\w.])", text)
            if scheme and not os.path.exists(text):
                raise InputError(
                    f"--{flag.name}={text}: an address begins with two slashes; give "
                    f"{scheme[1]}://{text[scheme.end():]}, or ./{text} for a local file.")


def check_needs(values: Values = flags.FLAGS) -> None:
    """Warns of options that are given without what they need, and raises InputError for
    those that are a mistake (Option.only_with)."""
    unused: dict[str, list[str]] = {}
    for option in options_in(values):
        flag = values[option.name]
        if not flag.present or flag.value == flag.default:
            continue
        if not _has(values, option.needs):
            unused.setdefault(option.needs, []).append(f"--{option.name}")
        elif not _has(values, option.only_with):
            raise InputError(
                f"--{option.name} has an effect only with "
                f"{_named(values, option.only_with)}: give that too, or leave "
                f"--{option.name} out.")
    for needed, given in unused.items():  # One command line may serve several uses.
        logging.warning("%s %s no effect without %s.", ", ".join(given),
                        "has" if len(given) == 1 else "have", _named(values, needed))


def _has(values: Values, needed: str) -> bool:
    """Returns whether one of these options is set, or has the value after its =."""
    pairs = [each.partition("=") for each in needed.split()]
    return not pairs or any(
        str(values[name].value) == wanted if wanted else values[name].value
        for name, _, wanted in pairs if name in values)


def _named(values: Values, needed: str) -> str:
    return " or ".join(f"--{each}" for each in needed.split()
                       if each.partition("=")[0] in values)
