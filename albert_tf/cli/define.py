"""Options as flags.

    define(SquadTask)                     # --doc_stride, --max_query_length, ...
    task = given(SquadTask, flags.FLAGS)  # options.given, after flags are parsed

`values` may also be flags.FlagValues() of its own, as for `albert_tf.finetune`.
"""

from typing import Any, Iterable, Mapping, Optional

from absl import flags, logging

from albert_tf.errors import InputError
from albert_tf.options import Option, checked, options_of

flags.disclaim_key_flags()  # Flags belong to the script that calls `define`.


class Number(flags.FloatParser):
    """Parses a finite number within bounds, for flags.DEFINE; `below` itself is
    refused.

    absl's own parser lets nan pass every bound."""

    def __init__(self, upper_bound: float = 1e38, below: Optional[float] = None,
                 lower_bound: float = 0.0):
        super().__init__(lower_bound, upper_bound)
        self._below = below
        if (lower_bound, upper_bound) == (-1e38, 1e38):
            self.syntactic_help = "a finite number"
        if below is not None:
            self.syntactic_help = f"a number of at least 0 and below {below:g}"

    def is_outside_bounds(self, val: float) -> bool:
        return not self.lower_bound <= val <= self.upper_bound or (
            self._below is not None and val >= self._below)


def define(cls: type, values: flags.FlagValues = flags.FLAGS, without: str = "",
           **defaults: Any) -> None:
    """Defines a flag for each option of a dataclass, but those named in `without`;
    `defaults` replace the fields' own."""
    for option in options_of(cls):
        if option.name in without.split():
            continue
        default = defaults.get(option.name, option.default)
        what = (option.name, [*default] if isinstance(default, tuple) else default)
        if option.choices:
            flags.DEFINE_enum(*what, option.choices, option.help, values)
        elif option.kind is int:
            flags.DEFINE_integer(
                *what, option.help, flag_values=values, lower_bound=int(option.least),
                upper_bound=int(option.most))
        elif option.kind is float:
            flags.DEFINE(Number(option.most, option.below, option.least), *what,
                         option.help, flag_values=values)
        else:
            {bool: flags.DEFINE_bool, str: flags.DEFINE_string,
             list: flags.DEFINE_list}[option.kind](
                 *what, option.help, flag_values=values)
        values[option.name].option = option


def options_in(values: flags.FlagValues) -> list[Option]:
    """Returns the options of which `define` made flags."""
    return [values[name].option for name in values if hasattr(values[name], "option")]


def take(values: flags.FlagValues, options: Iterable[Option], source: Mapping[str, Any]
         ) -> None:
    """Sets flags that are not given to the checked values of a mapping, such as the
    flags in task.json."""
    for option in options:
        if option.name in source and not values[option.name].present:
            values[option.name].value = checked(option, source[option.name])


def is_given(values: flags.FlagValues, name: str) -> bool:
    """Returns whether there is a flag of this name whose value is given and not the
    default."""
    return name in values and bool(
        values[name].present and values[name].value != values[name].default)


def check_needs(values: flags.FlagValues) -> None:
    """Warns of options that are given without what they need, and raises InputError for
    those that are a mistake (Option.only_with)."""
    unused: dict[str, list[str]] = {}
    for option in options_in(values):
        if not is_given(values, option.name):
            continue
        if not _has(values, option.needs):
            unused.setdefault(option.needs, []).append(f"--{option.name}")
        elif not _has(values, option.only_with):
            raise InputError(
                f"--{option.name} has an effect only with "
                f"{_named(values, option.only_with)}: give that too, or leave "
                f"--{option.name} out.")
    for needed, names in unused.items():
        logging.warning("%s %s no effect without %s.", ", ".join(names),
                        "has" if len(names) == 1 else "have", _named(values, needed))


def _has(values: flags.FlagValues, needed: str) -> bool:
    """Returns whether one of these options is set, or has the value after its =."""
    for each in needed.split():
        name, _, wanted = each.partition("=")
        value = name in values and values[name].value
        if value == wanted if wanted else value:
            return True
    return not needed


def _named(values: flags.FlagValues, needed: str) -> str:
    return " or ".join(f"--{each}" for each in needed.split()
                       if each.partition("=")[0] in values)
