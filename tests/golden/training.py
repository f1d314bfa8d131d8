"""The release's short training runs, as tests compare with them: two of them in
tests/fixtures/pretraining_run, of the final word embeddings every 16th row.
"""

import json

import numpy as np

from tests.helpers import FIXTURES, SHARED

FOLDER = FIXTURES / "pretraining_run"
FIXTURE_RUNS = ("lamb_high_lr", "lamb_groups_from_group0")
ROW_STEP = 16


def shared_folder():
    return SHARED / "golden" / "pretraining_run"


def start_checkpoint(run: dict) -> str:
    return run.get("start_checkpoint", run["init_checkpoint"])


def fixture_run(name: str) -> tuple[dict, dict, dict]:
    """(settings and results, variables at the start, some of those at the end)."""
    run = json.loads((FOLDER / "runs.json").read_text())[name]
    return (run, dict(np.load(FOLDER / f"start_{name}.npz")),
            dict(np.load(FOLDER / f"final_{name}.npz")))


def shared_run(name: str, final: str = "") -> tuple[dict, dict, dict]:
    """As fixture_run, with all of the variables at the end."""
    from albert_tf.checkpoints.folders import read_tensors

    folder = shared_folder()
    run = json.loads((folder / "runs.json").read_text())[name]
    return (run, read_tensors(str(folder / start_checkpoint(run))),
            read_tensors(str(folder / (final or run["final_checkpoint"]))))


def compared(name: str, value: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """The rows of `value` that a reduced final variable holds."""
    return value[::ROW_STEP] if value.shape != expected.shape else value
