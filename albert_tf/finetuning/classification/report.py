"""The scores and confusions of a classifier's classes, as text and as a picture."""

from typing import Sequence

import numpy as np

from albert_tf import pictures

# More labels do not fit in the lines of a report, or their counts in a picture's cells.
_MOST_IN_TEXT, _MOST_IN_CELLS = 12, 20
_LONGEST_NAME = 24


def by_class(labels: np.ndarray, predictions: np.ndarray, names: Sequence[str]) -> str:
    """Returns precision, recall and F1 of each class as text, and what is confused, given
    class ids [N]; without confusions, given 1 or 0 for each label, [N, K]."""
    from sklearn.metrics import classification_report

    several = labels.ndim == 2
    # As in macro_f1, a class that occurs nowhere has no F1 to average.
    listed = (range(len(names)) if several
              else np.union1d(labels, predictions).tolist())
    single = several and len(names) == 1
    if single:  # Given or not: scikit-learn takes this for two classes.
        labels, predictions = labels[:, 0], predictions[:, 0]
    text = classification_report(
        labels, predictions, labels=[1] if single else listed, digits=4,
        target_names=[names[i] for i in listed], zero_division=0.0).rstrip()
    if absent := [name for i, name in enumerate(names) if i not in listed]:
        text += f"\n\nNeither in the data nor predicted: {', '.join(absent)}."
    if several or len(listed) > _MOST_IN_TEXT:
        return text
    matrix, names = _matrix(labels, predictions, names)
    cells = [["", *names],
             *([name, *map(str, row)] for name, row in zip(names, matrix))]
    widths = [max(map(len, column)) for column in zip(*cells)]
    return text + "\n\nRows are the labels, columns the predictions:\n\n" + "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths))
        for line in cells)


def draw(path: str, title: str, labels: np.ndarray, predictions: np.ndarray,
         names: Sequence[str]) -> None:
    """Draws a confusion matrix as PNG."""
    from sklearn.metrics import ConfusionMatrixDisplay

    matrix, names = _matrix(labels, predictions, names)
    side = min(3 + 0.32 * len(names), 25)
    figure = pictures.figure(side + 1, side)
    axes = figure.subplots()
    axes.set_title(f"{title}: {len(labels)} examples")
    ConfusionMatrixDisplay(
        matrix, display_labels=[name.replace("$", r"\$") for name in names]
        ).plot(ax=axes, cmap="Blues", xticks_rotation="vertical",
               include_values=len(names) <= _MOST_IN_CELLS)
    pictures.save(figure, path)


def _matrix(labels, predictions, names) -> tuple[np.ndarray, list[str]]:
    """Returns the matrix of the labels that occur, and their names, shortened."""
    from sklearn.metrics import confusion_matrix

    listed = np.union1d(labels, predictions)
    return confusion_matrix(labels, predictions, labels=listed), [
        name if len(name) <= _LONGEST_NAME else name[:_LONGEST_NAME - 1] + "…"
        for name in map(names.__getitem__, listed)]
