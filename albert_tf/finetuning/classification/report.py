"""A report on what a classifier confuses, and a picture of it with the scores of each
label."""

from typing import Sequence

import numpy as np

from albert_tf import pictures

# A matrix of more labels does not fit in the lines of a report, and its numbers do not
# fit in the cells of a picture.
_MOST_IN_TEXT, _MOST_IN_CELLS, _MOST_IN_PICTURE = 12, 20, 60
_MOST_CONFUSIONS = 10
_LONGEST_NAME = 24


def confusions(labels: np.ndarray, predictions: np.ndarray, count: int) -> np.ndarray:
    """Returns int64 [K, K]: how many examples of each class (row) are predicted as each
    class (column), given class ids [N] of `count` classes."""
    return np.bincount(labels * count + predictions, minlength=count ** 2).reshape(
        count, count)


def matrix_text(matrix: np.ndarray, names: Sequence[str]) -> str:
    """Returns a matrix of confusions as text; of many labels the largest confusions.

        print(matrix_text(confusions(labels, predictions, 2), ["no", "yes"]))
    """
    if len(names) <= _MOST_IN_TEXT:
        cells = [["", *map(_short, names)], *(
            [_short(name), *map(str, row)] for name, row in zip(names, matrix))]
        widths = [max(map(len, column)) for column in zip(*cells)]
        return "Rows are the labels, columns the predictions:\n\n" + "\n".join(
            "  ".join(cell.rjust(width) for cell, width in zip(line, widths))
            for line in cells)
    wrong = np.where(np.eye(len(names), dtype=bool), 0, matrix)
    largest = np.argsort(-wrong, axis=None, kind="stable")[:_MOST_CONFUSIONS]
    lines = [f"{wrong[place]:6}  {names[place[0]]} as {names[place[1]]}"
             for place in zip(*np.unravel_index(largest, wrong.shape)) if wrong[place]]
    return "\n".join(["The most frequent confusions:", "", *(lines or ["  none"])])


def draw(path: str, title: str, names: Sequence[str], scores: np.ndarray,
         support: Sequence[int], matrix: np.ndarray | None) -> None:
    """Draws precision, recall and F1 of each label, and what is confused, as PNG.

    Args:
      path: the file.
      title: a line above.
      names: the K labels.
      scores: precision, recall and F1, [3, K].
      support: the number of examples of each label.
      matrix: `confusions`; None if a text has any number of labels.
    """
    kept = np.sort(np.argsort(-np.asarray(support), kind="stable")[:_MOST_IN_PICTURE])
    if len(kept) < len(names):
        title += f"; the {len(kept)} most frequent of {len(names)} labels"
    shown = [_short(names[i]).replace("$", r"\$") for i in kept]
    side = max(3.5, 0.32 * len(kept) + 1.5)
    figure = pictures.figure(5 + (side + 1.5 if matrix is not None else 0), side + 0.5)
    figure.suptitle(title, fontsize=10)
    if matrix is None:
        bars = figure.subplots()
    else:
        panel, bars = figure.subplots(1, 2)
        _draw_matrix(panel, matrix[np.ix_(kept, kept)], shown)
    for i, name in enumerate(("precision", "recall", "F1")):
        bars.barh(np.arange(len(kept)) + 0.27 * (i - 1), scores[i][kept], 0.25, label=name)
    bars.set_yticks(range(len(kept)), [
        f"{name} ({support[i]:,})" for name, i in zip(shown, kept)], fontsize=8)
    bars.set_xlim(0, 1)
    bars.invert_yaxis()
    bars.grid(axis="x", alpha=0.3)
    bars.legend(fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
    pictures.save(figure, path)


def _draw_matrix(panel, matrix: np.ndarray, names: Sequence[str]) -> None:
    """Draws counts, coloured by their share of the label's row."""
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    panel.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    places = range(len(names))
    panel.set_xticks(places, names, rotation=90, fontsize=8)
    panel.set_yticks(places, names, fontsize=8)
    panel.set_xlabel("prediction")
    panel.set_ylabel("label")
    for row, column in np.ndindex(*matrix.shape) if (
            len(names) <= _MOST_IN_CELLS) else ():
        panel.text(column, row, str(matrix[row, column]), ha="center", va="center",
                   fontsize=7, color="white" if shares[row, column] > 0.5 else "black")


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else name[:_LONGEST_NAME - 1] + "…"
