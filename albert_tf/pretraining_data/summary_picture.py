"""Draws the summary of a pretraining data set as a picture."""

from typing import Any, Mapping, Sequence

from albert_tf import pictures
from albert_tf.pretraining_data.options import (
    FOLLOWING, ONE_SEGMENT, RANDOM_DOCUMENT, SWAPPED)

_BLUE = "#4472a8"
_ORIGINS = {  # label, words, colour
    FOLLOWING: (0, "the text that follows", _BLUE),
    ONE_SEGMENT: (0, "missing", "#9bb7d4"),
    SWAPPED: (1, "the text before", "#d1803a"),
    RANDOM_DOCUMENT: (1, "from a different document", "#e8b98d"),
}


# Headings, which may have a number too, and the names (summary.figures) below them.
_TEXT = {
    "Text": ("documents", "sentences", "tokens", "unknown tokens",
             "lines without tokens"),
    "Instances": ("mean / median length", "padding", "label 1"),
    "Predicted tokens": ("share of all tokens", "mean per instance",
                         "instances without"),
    "Left out": ("tokens cut off to fit", "single sentences")}


def draw_summary(made: Mapping[str, Any], figures: Mapping[str, str]) -> bytes:
    """Draws lengths, labels, predictions and the counts as text; returns a PNG.

    It has 1200 x 800 pixels. `made` is the result of InstanceCounts.as_dict, `figures`
    that of summary.figures.
    """
    # Margins are given here, because computing them takes as long as all the drawing.
    figure = pictures.figure(12, 8)
    figure.subplots_adjust(0.07, 0.08, 0.97, 0.89, wspace=0.3, hspace=0.3)
    figure.suptitle(f"Pretraining data: {made['instances']:,} instances", fontsize=15)
    axes = figure.subplots(2, 3)
    _draw_lengths(axes[0, 0], made)
    _draw_predictions(axes[0, 1], made)
    _draw_text(axes[0, 2], figures)
    _draw_labels(axes[1, 0], made)
    shown = made["shown_instead"]
    _draw_shares(axes[1, 1], "Replacements of predicted tokens",
                 {"[MASK]": shown["mask"], "unchanged": shown["same"],
                  "random token": shown["other"]}, "share of predicted tokens")
    _draw_shares(axes[1, 2], "Masked n-grams",
                 {f"{n} {'word' if n == '1' else 'words'}": share
                  for n, share in made["ngram_words"].items()}, "share of n-grams")
    return pictures.png(figure)


def _draw_lengths(axis, made: Mapping[str, Any]) -> None:
    axis.set_title("Lengths")
    if not made["instances"]:
        return _leave_empty(axis, "no instances")
    histogram = made["length_histogram"]
    width, counts = histogram["bin_width"], histogram["instances"]
    last = histogram["longest"]
    edges = [last + 0.5 - width * (len(counts) - i) for i in range(len(counts) + 1)]
    _draw_stairs(axis, counts, edges)
    axis.set_xlim(0, last + 0.5)
    axis.set_xlabel("tokens in a sequence"
                    if width == 1 else f"tokens in a sequence (bins of {width})")


def _draw_predictions(axis, made: Mapping[str, Any]) -> None:
    axis.set_title("Predictions per instance")
    if not made["predicted_pieces"]:
        return _leave_empty(axis, "no predictions")
    counted = {int(n): count
               for n, count in made["predicted_per_instance"]["instances"].items()}
    counts = [counted.get(n, 0) for n in range(max(counted, default=0) + 1)]
    _draw_stairs(axis, counts, [n - 0.5 for n in range(len(counts) + 1)])
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.set_xlabel("predicted tokens in a sequence")


def _draw_labels(axis, made: Mapping[str, Any]) -> None:
    """Draws a bar for each label, divided by the origin of the second segment."""
    axis.set_title("Labels and second segments")
    if not made["instances"]:
        return _leave_empty(axis, "no instances")
    origins = made["second_segment"]
    heights = {0: 0.0, 1: 0.0}
    for origin, (label, words, color) in _ORIGINS.items():
        share = origins.get(origin, 0) / made["instances"]
        if share:
            axis.bar(label, share, 0.6, heights[label], color=color,
                     label=f"{words}: {share:.1%}")
            heights[label] += share
    for label, height in heights.items():
        axis.annotate(f"{height:.1%}", (label, height), ha="center", va="bottom",
                      xytext=(0, 2), textcoords="offset points")
    axis.set_xticks([0, 1], ["label 0", "label 1"])
    axis.set_xlim(-0.6, 1.6)
    axis.set_yticks([tick for tick in axis.get_yticks() if 0 <= tick <= 1])
    axis.set_ylim(0, 1.6 * max(heights.values()))  # room for the legend
    axis.set_ylabel("share of instances")
    axis.legend(loc="upper center", fontsize=9, title="the second segment is")
    _in_percent(axis)


def _draw_shares(axis, title: str, shares: Mapping[str, float], unit: str) -> None:
    axis.set_title(title)
    if not any(shares.values()):
        return _leave_empty(axis, "no predictions")
    bars = axis.bar(list(shares), list(shares.values()), 0.6, color=_BLUE)
    axis.bar_label(bars, [f"{share:.1%}" for share in shares.values()], padding=2)
    axis.set_ylim(0, 1.12 * max(shares.values()))
    axis.set_ylabel(unit)
    _in_percent(axis)


def _draw_text(axis, figures: Mapping[str, str]) -> None:
    rows = [(name, figures.get(name.lower(), ""))
            for heading, names in _TEXT.items() for name in (heading, *names)]
    axis.axis("off")
    for row, (name, value) in enumerate(rows):
        heading = name in _TEXT
        y = 1 - (row + 0.5) / len(rows)
        weight = "bold" if heading else "normal"
        axis.text(0.04 if heading else 0.1, y, name, va="center", weight=weight)
        axis.text(0.98, y, value, va="center", ha="right", weight=weight)


def _leave_empty(axis, reason: str) -> None:
    axis.axis("off")
    axis.text(0.5, 0.5, reason, ha="center", va="center")


def _draw_stairs(axis, counts: Sequence[int], edges: Sequence[float]) -> None:
    """Draws shares of instances on a logarithmic axis, because one bin often holds
    nearly all instances."""
    shares = [count / sum(counts) for count in counts]
    axis.stairs(shares, edges, fill=True, color=_BLUE)
    axis.set_ylabel("share of instances, logarithmic")
    axis.set_yscale("log")
    axis.set_ylim(min(filter(None, shares)) / 2, 1)
    axis.minorticks_off()
    _in_percent(axis)


def _in_percent(axis) -> None:
    axis.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.6g}%")
    axis.grid(axis="y", alpha=0.3)
    axis.set_axisbelow(True)
