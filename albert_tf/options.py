"""Options: fields of a dataclass that users set as flags, in Python and in task.json.

    @dataclasses.dataclass(frozen=True)
    class SquadTask:
        doc_stride: int = option(128, "Tokens from one window's start to the next.",
                                 least=1)

A field is all that there is of an option. `cli.define` makes the flag --doc_stride=128 of
it, with this help and this bound; `checked` checks a value from elsewhere.
"""

import dataclasses
import types
import typing
from typing import Any, Optional, Sequence

from albert_tf.errors import InputError

# The largest step, size or count: TensorFlow holds them in 32 bits.
MOST = 2 ** 31 - 1


class Option(typing.NamedTuple):
    """An option; `kind` is bool, int, float, str or list (of texts)."""

    name: str  # of the flag
    field: str
    kind: type
    default: Any
    help: str
    least: float  # the bounds of a number
    most: float
    below: Optional[float] = None  # itself refused
    choices: Optional[Sequence[str]] = None  # all values, if they are few
    kept: bool = False  # in task.json, for later runs
    required: bool = False  # on the command line
    # The option that must be set, or have a value (objective=permutation), for this one
    # to have an effect, or several, separated by blanks, of which one is enough. Else a
    # warning says so, since one command line may serve several uses,
    needs: str = ""
    only_with: str = ""  # or the option is a mistake and refused.


def option(default: Any, help: str = "", *, flag: str = "", **more: Any) -> Any:
    """Returns the field of an option, with `more` fields of Option; the flag has the
    field's name, and whole numbers are from 0 up to MOST, unless others are given."""
    return dataclasses.field(default=default, metadata={
        "help": help, **({"name": flag} if flag else {}), **more})


def options_of(cls: type) -> list[Option]:
    """Returns the options among the fields of a dataclass, in their order."""
    options = []
    for field in dataclasses.fields(cls):
        if "help" in field.metadata:
            kind: Any = field.type
            if typing.get_origin(kind) in (typing.Union, types.UnionType):
                kind = typing.get_args(kind)[0]  # that of Optional[int]
            kind = typing.get_origin(kind) or kind
            options.append(Option(**{
                "name": field.name, "field": field.name, "kind": kind,
                "default": field.default, "least": 0,
                "most": 1e38 if kind is float else MOST, **field.metadata}))
    return options


def given(cls: type, values: Any, **fields: Any) -> Any:
    """Returns an object of a dataclass whose options have the values of the flags that
    are defined; `fields` are its other fields, and replace options."""
    return cls(**{
        option.field: values[option.name].value for option in options_of(cls)
        if option.name in values and option.field not in fields}, **fields)


def checked(option: Option, value: Any, before: str = "--") -> Any:
    """Returns a value that an option can have. Raises InputError for others, with the
    name and what stands `before` it."""
    value = value.item() if hasattr(value, "item") else value  # NumPy's
    if value is None and option.default is None:
        return None
    kind, what = option.kind, "text"
    fits = isinstance(value, kind)
    if option.choices:
        fits, what = value in option.choices, f"one of {', '.join(option.choices)}"
    elif kind is bool:
        what = "True or False"
    elif kind in (int, float):
        fits = (type(value) in (int, kind) and option.least <= value <= option.most
                and (option.below is None or value < option.below))
        what = (f"a {'whole ' * (kind is int)}number from {option.least:.15g} to "
                f"{option.below or option.most:.15g}")
    elif kind is list:
        fits, what = isinstance(value, (list, tuple)), "a list"
    if not fits:
        raise InputError(f"{before}{option.name}={value!r:.40}: give {what}.")
    return list(value) if kind is list else value


def check(options: Any, before: str = "--") -> None:
    """Raises InputError if an option of a dataclass has a value that it cannot have."""
    for each in options_of(type(options)):
        checked(each, getattr(options, each.field), before)
