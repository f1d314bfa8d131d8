"""What the tasks share: sets of examples, their labels, files of predictions, the
paper's settings (recipes)."""

import dataclasses
import json
import os
from typing import Any, Iterable, Mapping, NamedTuple, Sequence

from albert_tf import files
from albert_tf.errors import InputError


# Outputs of a model: name → a row for each record of a set.
Outputs = Mapping[str, Sequence]


class ExampleSet(NamedTuple):
    """The examples of a split in the order of the file, the files they came from, and
    notes for the user, a sentence each."""

    examples: list
    paths: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def check_labelled(examples: Iterable, use: str = "scored",
                   missing: str = "there is no label") -> None:
    """Refuses a set to be `use` if an example has no label."""
    for example in examples:
        if example.label is None:
            raise InputError(
                f"{example.where}: {missing}, so this set can be predicted but not "
                f"{use}.")


def as_table(rows: Iterable[Iterable[str]], clean: bool = True) -> str:
    """Lines of cells with tabs between them. `clean` writes white space within a cell
    as one blank: a tab or a line end there would break the table."""
    return "".join(
        "\t".join(" ".join(cell.split()) if clean else cell for cell in row) + "\n"
        for row in rows)


def as_json(value: Any, indent: int = 2) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=False) + "\n"


def write_files(folder: str, contents: Mapping[str, str]) -> list[str]:
    """Writes texts by file name; returns the paths."""
    paths = [os.path.join(folder, name) for name in contents]
    for path, content in zip(paths, contents.values()):
        with files.atomic_write(path) as stream:
            stream.write(content.encode())
    return paths


# ---- recipes ---------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Settings for fine-tuning on a task; `source` says whose they are.

    `albert_dropout` is both dropout rates inside the model, of hidden values and of
    attention probabilities; `classifier_dropout` is that before the task's head. Steps
    include `warmup_steps`, at whose end the rate is `learning_rate`.

        RECIPES["sst-2"].batch_size  # 32
    """

    albert_dropout: float
    classifier_dropout: float
    batch_size: int
    learning_rate: float
    num_train_steps: int
    warmup_steps: int
    max_seq_length: int
    source: str = "the paper's table 14"


_MNLI = Recipe(0.0, 0.1, 128, 3e-5, 10000, 1000, 512)

# By task name, as --task_name has it.
RECIPES = {
    "cola": Recipe(0.0, 0.1, 16, 1e-5, 5336, 320, 512),
    "sts-b": Recipe(0.0, 0.1, 16, 2e-5, 3598, 214, 512),
    "sst-2": Recipe(0.0, 0.1, 32, 1e-5, 20935, 1256, 512),
    "mnli": _MNLI,
    # The same training set as MNLI; AX is predicted with an MNLI model.
    "mismnli": _MNLI,
    "ax": _MNLI,
    "qnli": Recipe(0.0, 0.1, 32, 1e-5, 33112, 1986, 512),
    "qqp": Recipe(0.1, 0.1, 128, 5e-5, 14000, 1000, 512),
    "rte": Recipe(0.1, 0.1, 32, 3e-5, 800, 200, 512),
    "mrpc": Recipe(0.0, 0.1, 32, 2e-5, 800, 200, 512),
    "wnli": Recipe(0.1, 0.1, 16, 2e-5, 2000, 250, 512),
    "squad-1.1": Recipe(0.0, 0.1, 48, 5e-5, 3649, 365, 384),
    "squad-2.0": Recipe(0.0, 0.1, 48, 3e-5, 8144, 814, 512),
    "race": Recipe(0.1, 0.1, 32, 2e-5, 12000, 1000, 512),
    # For version 2 of the released models, which diverge with the line above (the
    # release's README).
    "race-v2": Recipe(0.0, 0.1, 32, 1e-5, 12000, 1000, 512,
                      "the release's README, for version 2"),
}


class HighestRate(NamedTuple):
    """A rate at which models of a size are known to train, None where that of the task
    will do, and who says so."""

    rate: float | None
    source: str


# The paper's table has one row for each task, whatever the size, and is of version 1.
_PAPER = HighestRate(None, "the paper's table 14")
# Nothing published says which rates version 2 needs, but for RACE (race-v2).
_NO_SOURCE = HighestRate(None, "the paper's table 14, which is of version 1")
# Whose model does not say its version: of either.
_XLARGE = HighestRate(5e-6, "google-research issue 151: xlarge needed 5e-6")

# By size and version. Reports that large and larger models end at chance at the usual
# rates (transformers issue 2104, albert issues 29, 120, 132 and 135) name no rate that
# is known to be good, but for xlarge: hence --num_seeds and --restart_on_failure.
HIGHEST_RATES = {
    ("base", 1): _PAPER, ("base", 2): _NO_SOURCE,
    ("large", 1): _PAPER, ("large", 2): _NO_SOURCE,
    ("xlarge", 1): _XLARGE, ("xlarge", 2): _XLARGE,
    ("xxlarge", 1): _PAPER, ("xxlarge", 2): _NO_SOURCE,
}


def recipe_for(name: str, size: str = "", version: int = 1) -> Recipe:
    """The recipe of RECIPES for a model of a published size; of another, for "".

        recipe_for("mrpc", "xlarge", 2).learning_rate  # 5e-6
    """
    recipe = RECIPES[name]
    most = HIGHEST_RATES.get((size, version), _PAPER)
    if most.rate is not None and most.rate < recipe.learning_rate:
        return dataclasses.replace(
            recipe, learning_rate=most.rate,
            source=f"{recipe.source}; the rate by {most.source}")
    if most is _NO_SOURCE and recipe is not RECIPES["race-v2"]:
        return dataclasses.replace(recipe, source=most.source)
    return recipe
