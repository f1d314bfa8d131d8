"""PNG pictures of what was measured, by Matplotlib, which is imported late."""

import io

from albert_tf import files


def figure(width: float, height: float):
    """An empty figure of that many inches, 100 dots each; without a display, and
    without pyplot's global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    made = Figure(figsize=(width, height))
    FigureCanvasAgg(made)
    return made


def png(made) -> bytes:
    stream = io.BytesIO()
    made.savefig(stream, format="png", dpi=100, pil_kwargs={"compress_level": 1})
    return stream.getvalue()


def save(made, path: str) -> None:
    """Writes a figure, its panels moved so that no words overlap."""
    made.tight_layout()
    files.write(path, png(made))
