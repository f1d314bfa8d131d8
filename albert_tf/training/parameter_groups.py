"""Which variables an optimizer treats how, told by patterns in their names."""

import dataclasses
import re
from typing import Iterable, Mapping, Sequence, Union

from albert_tf.errors import InputError

# Regular expressions, searched in variable names. The release keeps weight decay
# and LAMB's ratio from the same variables.
NO_DECAY_PATTERNS = ("LayerNorm", "layer_norm", "bias")

# Weight decay, and LAMB's ratio; neither; not trained.
DECAY = "decay"
NO_DECAY = "no_decay"
EXCLUDED = "excluded"


def _checked(name: str, patterns: Union[str, Iterable[str]]) -> tuple[str, ...]:
    """Regular expressions as a tuple; a single string counts as one."""
    patterns = (patterns,) if isinstance(patterns, str) else tuple(patterns)
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise InputError(f"{name}: '{pattern}' is not a regular expression "
                             f"({error}); correct it.") from error
    return patterns


def _matches(patterns: Iterable[str], name: str) -> bool:
    return any(re.search(pattern, name) for pattern in patterns)


@dataclasses.dataclass(frozen=True)
class GroupPatterns:
    """Regular expressions that put variables into groups.

    Attributes:
      no_decay: found in the names of variables without weight decay and ratio.
      excluded: found in the names of variables that are not trained; goes before
        `no_decay`.

    Raises:
      InputError: if a pattern is malformed.
    """

    no_decay: tuple[str, ...] = NO_DECAY_PATTERNS
    excluded: tuple[str, ...] = ()

    def __post_init__(self):
        for field in dataclasses.fields(self):
            checked = _checked(field.name, getattr(self, field.name))
            object.__setattr__(self, field.name, checked)

    def group(self, name: str) -> str:
        """The group of the variable called `name` (without ":0")."""
        if _matches(self.excluded, name):
            return EXCLUDED
        return NO_DECAY if _matches(self.no_decay, name) else DECAY

    def groups(self, names: Sequence[str]) -> dict[str, list[str]]:
        """The names by group, every group present, in the order given.

        Raises:
          InputError: if a name occurs twice, a pattern of `excluded` is found in
            none, or all are excluded.
        """
        groups = {DECAY: [], NO_DECAY: [], EXCLUDED: []}
        for name in names:
            groups[self.group(name)].append(name)
        check_groups(groups, names)
        for pattern in self.excluded:
            if not any(_matches([pattern], name) for name in names):
                raise InputError(
                    f"excluded: '{pattern}' matches no variable; give a pattern that "
                    "is found in the name of a variable.")
        if names and len(groups[EXCLUDED]) == len(names):
            raise InputError(
                "excluded: the patterns match every variable, so that nothing would "
                "be trained; leave some out.")
        return groups


def check_groups(groups: Mapping[str, Sequence[str]], names: Sequence[str]) -> None:
    """Makes sure that every name is in exactly one group, once.

    Raises:
      InputError: names a variable that is in none, or more than once.
    """
    placed: dict[str, list[str]] = {}
    for group, members in groups.items():
        for name in members:
            placed.setdefault(name, []).append(group)
    for name in names:
        where = placed.get(name, [])
        if len(where) != 1:
            raise InputError(
                f"The variable '{name}' is {len(where)} times in the optimizer's "
                f"groups ({', '.join(where) or 'in none'}); each must be in exactly "
                "one, under a name of its own.")
