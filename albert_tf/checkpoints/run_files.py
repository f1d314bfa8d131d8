"""The names of all files that a run writes into its output_dir. It replaces them, and
therefore starts only in a folder that holds none of them, or that has RUN_FILE.
"""

import functools
import importlib
import os
import pkgutil
import re
from typing import Iterable, Optional

import albert_tf
from albert_tf import files, text_files
from albert_tf.errors import InputError

RUN_FILE = "albert_tf-run.json"  # Marks the folder of a run.
# Patterns of names. The files that hold a model are also written by conversions.
_MODEL = (r"checkpoint", r"model\.ckpt-(\d+|best)\..*", r"albert_config\.json")
_RUN = (
    re.escape(RUN_FILE), r"(options|task|vocabulary|best_metric|eval_results"
    r"|evaluation_set|first_save|seeds)\.json", r"metrics\.jsonl", r"curves\.png",
    r"run\.lock")
# The folder of rows that were given from Python.
PYTHON_DATA = "finetune_data"
_FOLDERS = (r"tensorboard", r"eval_predictions", PYTHON_DATA, r"seed-\d+(-retry-\d+)?")


@functools.cache
def tasks() -> dict[str, tuple[str, ...]]:
    """Returns the folder of each task in finetuning → what its runs write besides."""
    package = importlib.import_module("albert_tf.finetuning")
    return {each.name: importlib.import_module(f"{package.__name__}.{each.name}").FILES
            for each in pkgutil.iter_modules(package.__path__) if each.ispkg}


def is_of_run(name: str, of: Optional[Iterable[str]] = None) -> bool:
    """Returns whether pretraining, or one of these tasks (default: any), writes it."""
    return bool(re.fullmatch("|".join((*_MODEL, *_RUN, *(
        pattern for task in (tasks() if of is None else of)
        for pattern in tasks()[task]))), name))


def files_of_run(folder: str) -> list[str]:
    """Returns the paths of the files in a run's folder that the run overwrites."""
    return [path for place in (folder, os.path.join(folder, "eval_predictions"))
            for name in files.names_in(place) if is_of_run(name)
            and not files.is_folder(path := os.path.join(place, name))]


def check_run_folder(folder: str, task: str = "") -> None:
    """Raises InputError if a run would replace a file that no run of ours wrote, or if
    TensorFlow cannot write there; `task` is a key of `tasks`, or "" for pretraining."""
    files.check_in_tensorflow(folder, "--output_dir")
    names = files.names_in(folder)
    owned = re.compile("|".join((*_RUN, *_FOLDERS, *tasks().get(task, ()))))
    if RUN_FILE not in names and (found := [*filter(owned.fullmatch, names)]):
        raise InputError(
            f"--output_dir={folder} holds {found[0]}, which a run would replace, but is "
            "not the folder of a run. Move that file away, or choose a different one.")


def claim_run_folder(folder: str, task: str = "") -> None:
    """Marks an existing folder as that of a run, after check_run_folder."""
    check_run_folder(folder, task)
    path = os.path.join(folder, RUN_FILE)
    if not files.exists(path):
        text_files.write_json(path, {"written_by": "albert_tf",
                                     "version": albert_tf.__version__})
