"""Draws PNG pictures with Matplotlib, which is imported only when needed."""

import functools
import importlib.util

from absl import logging

from albert_tf import files


@functools.cache
def possible() -> bool:
    """Returns whether Matplotlib is installed, and warns once if it is not."""
    if importlib.util.find_spec("matplotlib"):
        return True
    logging.warning("No pictures are drawn, because the package matplotlib is not "
                    "installed; run pip install matplotlib to have them.")
    return False


def figure(width: float, height: float):
    """Returns an empty figure, which needs no display; its size is in inches with 100
    dots each."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height))


def save(made, path: str) -> None:
    """Writes a figure as PNG, with panels placed so that texts do not overlap."""
    made.tight_layout()
    with files.atomic_write(path) as stream:
        made.savefig(stream, format="png", dpi=100, pil_kwargs={"compress_level": 1})
