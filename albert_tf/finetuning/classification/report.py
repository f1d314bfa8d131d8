"""The confusions of a classifier, as text and as a picture."""

from typing import Sequence

import numpy as np

from albert_tf import pictures

# More labels do not fit in the lines of a report, or their counts in a picture's cells.
_MOST_IN_TEXT, _MOST_IN_CELLS = 12, 20
_LONGEST_NAME = 24


def matrix_text(matrix: np.ndarray, names: Sequence[str]) -> str:
    """Returns a confusion matrix as text; "" if it has too many labels.

        print(matrix_text(confusion_matrix(labels, predictions), ["no", "yes"]))
    """
    if len(names) > _MOST_IN_TEXT:
        return ""
    cells = [["", *map(_short, names)],
             *([_short(name), *map(str, row)] for name, row in zip(names, matrix))]
    widths = [max(map(len, column)) for column in zip(*cells)]
    return "\n\nRows are the labels, columns the predictions:\n\n" + "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths))
        for line in cells)


def draw(path: str, title: str, matrix: np.ndarray, names: Sequence[str]) -> None:
    """Draws a confusion matrix as PNG."""
    from sklearn.metrics import ConfusionMatrixDisplay

    side = min(3 + 0.32 * len(names), 25)
    figure = pictures.figure(side + 1, side)
    axes = figure.subplots()
    axes.set_title(title)
    ConfusionMatrixDisplay(
        matrix, display_labels=[_short(name).replace("$", r"\$") for name in names]
        ).plot(ax=axes, cmap="Blues", xticks_rotation="vertical",
               include_values=len(names) <= _MOST_IN_CELLS)
    pictures.save(figure, path)


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else name[:_LONGEST_NAME - 1] + "…"
