"""Curves of score against mean passes, which show what early exit costs in score. One
evaluation, which keeps the answers of all passes, is enough for all points.

    confidence   a sequence stops after the first pass whose exit gives an answer a
                 probability above the threshold
    patience     a sequence stops once N consecutive passes agree (PABEE); numbers agree
                 if they differ by less than a tenth of their standard deviation

Sequences that never exit get the ordinary answer of the last pass.
Shapes: N examples, L passes, K labels.
"""

from typing import Any, Callable, Mapping, Sequence

import numpy as np

from albert_tf import pictures

THRESHOLDS = (0.0, 0.4, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.925, 0.95,
              0.97, 0.98, 0.99, 0.995, 0.999, 0.9999, 1.0)
TOLERANCE = 0.1
LOSS = 0.005  # The loss of score that `cheapest` accepts for fewer passes.
Curve = list[dict[str, float]]


def curves(outputs: Mapping[str, Sequence[np.ndarray]],
           score: Callable[[np.ndarray], Mapping[str, float]]) -> dict[str, Curve]:
    """Returns the points of the curves "confidence" and "patience", each with its
    "threshold" or "patience", its mean "passes" and the metrics. A regression has no
    confidence, and therefore only the curve of patience.

    Args:
      outputs: an objective's predictions with `exit_logits`.
      score: a function: class ids, or numbers, [N] → metrics.
    """
    logits = np.concatenate([np.stack(outputs["exit_logits"]),
                             np.stack(outputs["logits"])[:, np.newaxis]], axis=1)
    numbers = logits.shape[2] == 1
    answers = logits[..., 0] if numbers else logits.argmax(axis=-1)  # [N, L]
    last = answers.shape[1]

    def point(name: str, value: float, stops: np.ndarray) -> dict[str, float]:
        stops[:, -1] = True
        passes = stops.argmax(axis=1)
        return {name: value, "passes": float(np.mean(passes + 1)),
                **score(answers[np.arange(len(answers)), passes])}

    same = (np.abs(np.diff(answers)) < TOLERANCE * np.std(answers[:, -1]) if numbers
            else np.diff(answers) == 0)
    # How many consecutive answers up to and including each pass agree.
    agreeing = np.ones(answers.shape, int)
    for i in range(1, last):
        agreeing[:, i] += agreeing[:, i - 1] * same[:, i - 1]
    patience = {"patience": [point("patience", k, agreeing >= k)
                             for k in range(1, last + 1)]}
    if numbers:
        return patience
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    surest = (shifted / shifted.sum(axis=-1, keepdims=True)).max(axis=-1)
    return {"confidence": [point("threshold", threshold, surest > threshold)
                           for threshold in THRESHOLDS], **patience}


def cheapest(found: Mapping[str, Curve], metric: str) -> dict[str, float]:
    """Returns the point with the fewest passes, on the first curve, that loses at most
    LOSS of the last pass' score."""
    curve = next(iter(found.values()))
    least = curve[-1][metric] - LOSS
    return min((point for point in curve if point[metric] >= least - 1e-9),
               key=lambda point: point["passes"])


def table(found: Mapping[str, Curve]) -> str:
    """Returns the curves as text."""
    lines = []
    for name, curve in found.items():
        widths = [max(12, len(key) + 2) for key in curve[0]]
        lines += [f"Early exit by {name}:", "".join(
            f"{key:>{width}}" for key, width in zip(curve[0], widths))]
        lines += ["".join(f"{value:{width}.6g}" for value, width in zip(
            point.values(), widths)) for point in curve] + [""]
    return "\n".join(lines)


def draw(panels: Mapping[str, tuple[Mapping[str, Curve], str]], path: str) -> None:
    """Draws score against mean passes; `panels` maps each panel's title to its curves
    and their metric."""
    if not pictures.possible():
        return
    figure = pictures.figure(4.2 * len(panels) + 0.4, 3.6)
    for number, (title, (named, metric)) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(1, len(panels), number)
        for name, curve in named.items():
            points: list[dict[str, Any]] = sorted(
                curve, key=lambda point: point["passes"])
            axes.plot([point["passes"] for point in points],
                      [point[metric] for point in points], marker=".", label=name)
        whole = next(iter(named.values()))[-1][metric]
        axes.axhline(whole, color="gray", linewidth=0.8, label="all passes")
        axes.axhline(whole - LOSS, color="gray", linewidth=0.8, linestyle=":",
                     label="half a point less")
        axes.set(title=title, xlabel="mean passes", ylabel=metric)
        axes.legend(fontsize=8)
    pictures.save(figure, path)
