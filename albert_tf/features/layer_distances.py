"""Measures how much each layer changes its input: the L2 distance and the angle between
input and output, over the tokens of texts (paper, section 3.1). With shared parameters
they change more smoothly from layer to layer.

Shapes: S tokens of a text, H hidden, L layers.
"""

from typing import Any, Iterable, Mapping

import numpy as np

from albert_tf import pictures
from albert_tf.features.extract import Row

MEASURES = ("l2_distance", "cosine_similarity", "degrees")


def moved(states: np.ndarray) -> np.ndarray:
    """Returns each of MEASURES, [3, S, L], from the input of the first layer and the
    output of each, [S, 1 + L, H]."""
    lengths = np.linalg.norm(states, axis=-1, keepdims=True)
    directions = states / np.where(lengths, lengths, 1.0)
    one, other = directions[:, :-1], directions[:, 1:]
    # Computing a small angle from its cosine would lose half of the digits.
    angle = 2 * np.arctan2(
        np.linalg.norm(one - other, axis=-1), np.linalg.norm(one + other, axis=-1))
    return np.stack([np.linalg.norm(np.diff(states, axis=1), axis=-1), np.cos(angle),
                     np.degrees(angle)])


def measure(rows: Iterable[Row]) -> dict[str, Any]:
    """Measures over the rows of texts (extract.stream) with `pieces` of the layers 0 to L.

    Returns:
      `texts` and `positions`, the number of texts and of their tokens;
      for each of MEASURES its `mean` and `standard_deviation` over the tokens, lists of
      one number per layer; and `l2_unevenness`, the standard deviation of the mean
      distances over the layers, divided by their mean.
    """
    texts = positions = 0
    sums = squares = np.zeros(())
    for row in rows:
        values = moved(row["piece_vectors"].astype(np.float64))
        sums, squares = sums + values.sum(1), squares + (values ** 2).sum(1)
        texts, positions = texts + 1, positions + values.shape[1]
    means = sums / positions
    deviations = np.sqrt(np.maximum(squares / positions - means ** 2, 0))
    return {"texts": texts, "positions": positions, **{
        name: {"mean": mean.tolist(), "standard_deviation": deviation.tolist()}
        for name, mean, deviation in zip(MEASURES, means, deviations)},
        "l2_unevenness": float(means[0].std() / (means[0].mean() or 1.0))}


def table(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns a table with a line for each layer of each model; `found` maps the title
    of a model to what `measure` returns."""
    lines = ["layer        L2    cosine   degrees"]
    for title, each in found.items():
        lines.append(f"{title}: standard deviation of L2 over the layers, divided by the "
                     f"mean: {each['l2_unevenness']:.3f}")
        for layer, row in enumerate(zip(*(each[name]["mean"] for name in MEASURES)), 1):
            lines.append("{:>5}  {:8.3f}  {:8.4f}  {:8.2f}".format(layer, *row))
    return "\n".join(lines)


def draw(found: Mapping[str, Mapping[str, Any]], path: str) -> None:
    """Draws a panel for the distance and one for the angle; bands show one standard
    deviation over the tokens."""
    figure = pictures.figure(10, 4)
    if not figure:
        return
    for name, label, axes in zip(("l2_distance", "degrees"), (
            "L2 distance", "angle in degrees"), figure.subplots(1, 2)):
        for title, each in found.items():
            mean, spread = map(np.array, each[name].values())
            layers = np.arange(1, len(mean) + 1)
            axes.plot(layers, mean, marker=".", label=title)
            axes.fill_between(layers, mean - spread, mean + spread, alpha=0.15)
        axes.set(title=f"{label} of input and output", xlabel="layer", ylabel=label)
        axes.set_ylim(bottom=0)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend(fontsize=8)
        axes.grid(alpha=0.3)
    pictures.save(figure, path)
