"""Draws PNG pictures with Matplotlib, which is imported only when needed."""

import io

from albert_tf import files


def figure(width: float, height: float):
    """Returns an empty figure; its size is in inches with 100 dots each.

    It needs no display and does not use pyplot's global state.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    new_figure = Figure(figsize=(width, height))
    FigureCanvasAgg(new_figure)
    return new_figure


def png(made) -> bytes:
    stream = io.BytesIO()
    made.savefig(stream, format="png", dpi=100, pil_kwargs={"compress_level": 1})
    return stream.getvalue()


def save(made, path: str) -> None:
    """Writes a figure as PNG, with panels placed so that texts do not overlap."""
    made.tight_layout()
    files.write(path, png(made))
