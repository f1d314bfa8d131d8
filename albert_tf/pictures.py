"""Draws PNG pictures with Matplotlib, which is imported only when needed."""

from absl import logging

from albert_tf import files


def figure(width: float, height: float):
    """Returns an empty figure, which needs no display; its size is in inches with 100
    dots each. Without Matplotlib there is none, and one warning."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        logging.log_first_n(
            logging.WARNING, "No pictures are drawn, because the package matplotlib is not "
            "installed; run pip install matplotlib to have them.", 1)
        return None
    return Figure(figsize=(width, height))


def save(made, path: str) -> None:
    """Writes a figure as PNG, with panels placed so that texts do not overlap."""
    made.tight_layout()
    with files.atomic_write(path) as stream:
        made.savefig(stream, format="png", dpi=100, pil_kwargs={"compress_level": 1})
