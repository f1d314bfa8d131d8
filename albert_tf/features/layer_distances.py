"""Measures how much each layer changes its input: the L2 distance and the angle between
input and output, over the tokens of texts (paper, section 3.1). With shared parameters
they change more smoothly from layer to layer.

Shapes: B texts, S tokens of the longest, H hidden, L layers.
"""

import itertools
from typing import Any, Callable, Iterable, Mapping

import numpy as np
import tensorflow as tf

from albert_tf import pictures
from albert_tf.checkpoints.restore import Loaded
from albert_tf.finetuning.answer import Answering, answers
from albert_tf.text import inputs as text_inputs

MEASURES = ("l2_distance", "cosine_similarity", "degrees")


class _Layers(Answering):
    """Computes the sums over a text's tokens of each measure and of its square."""

    def __init__(self, loaded: Loaded, max_length: int):
        super().__init__(loaded, None)
        self.max_length = max_length

    def outputs(self, features):
        encoded = self.bert(features, computation=self.computation,
                          padding_is_read=False)
        # A layer may consist of several blocks.
        states = [self.bert.encoder.enter(encoded["embedding_output"]),
                  *encoded["encoder_outputs"][self.config.inner_group_num - 1::
                                            self.config.inner_group_num]]
        values = tf.stack(list(itertools.starmap(moved, itertools.pairwise(states))),
                          axis=2)  # [B, 3, L, S]
        mask = tf.cast(features["input_mask"], tf.bool)[:, tf.newaxis, tf.newaxis]
        values = tf.cast(tf.where(mask, values, 0.0), tf.float64)
        return {"sums": tf.reduce_sum(values, -1),
                "squares": tf.reduce_sum(values * values, -1),
                "positions": tf.reduce_sum(features["input_mask"], -1)}

    def answer(self, outputs):
        return outputs


def moved(before: tf.Tensor, after: tf.Tensor) -> tf.Tensor:
    """Returns each of MEASURES, [B, 3, S], for hidden states before and after a layer,
    [B, S, H]."""
    one, other = (tf.math.divide_no_nan(state, tf.norm(state, axis=-1, keepdims=True))
                  for state in (before, after))
    # Computing a small angle from its cosine would lose half of the digits.
    angle = 2 * tf.atan2(tf.norm(one - other, axis=-1), tf.norm(one + other, axis=-1))
    return tf.stack([tf.norm(after - before, axis=-1), tf.cos(angle),
                     angle * (180 / np.pi)], axis=1)


def measure(loaded: Loaded, inputs: Iterable[Any], max_seq_length: int,
            batch_size: int = 32, held: int = 1024,
            on_texts: Callable[[int], None] = lambda count: None) -> dict[str, Any]:
    """Measures a model's layers on texts in the form of `predict`'s inputs, at most
    `held` of which are in memory at a time.

        found = measure(albert_tf.load("runs/base"), ["ALBERT shares."], 512)
        found["l2_distance"]["mean"][0]   # of the first layer

    Returns:
      A dict for JSON: `texts`, `positions`, the numbers of texts and of their tokens;
      for each of MEASURES its `mean` and `standard_deviation` over the tokens, lists of
      one number per layer; and `l2_unevenness`, the standard deviation of the mean
      distances over the layers, divided by their mean.
    """
    head, remaining = _Layers(loaded, max_seq_length), iter(inputs)
    texts = positions = sums = squares = 0
    while part := list(itertools.islice(remaining, held)):
        for of_text in answers([
                head.request(text_inputs.named(each, head.fields), 1)
                for each in part], batch_size):
            sums, squares = sums + of_text["sums"], squares + of_text["squares"]
            positions += int(of_text["positions"])
        texts += len(part)
        on_texts(len(part))
    means = sums / positions
    deviations = np.sqrt(np.maximum(squares / positions - means ** 2, 0))
    return {"texts": texts, "positions": positions, **{
        name: {"mean": mean.tolist(), "standard_deviation": deviation.tolist()}
        for name, mean, deviation in zip(MEASURES, means, deviations)},
        "l2_unevenness": float(means[0].std() / (means[0].mean() or 1.0))}


def table(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns a table with a line for each layer; `found` maps the title of each model
    to what `measure` returns."""
    width = max(26, *(len(title) + 2 for title in found))
    columns = [[title, "L2    cosine   degrees", *(
        "{:.3f}  {:8.4f}  {:8.2f}".format(*row)
        for row in zip(*(each[name]["mean"] for name in MEASURES)))]
        for title, each in found.items()]
    labels = itertools.chain(["layer", ""], itertools.count(1))
    lines = [f"{label:>5}" + "".join(f"{cell:>{width}}" for cell in cells)
             for label, cells in zip(
                 labels, itertools.zip_longest(*columns, fillvalue=""))]
    unevenness = ", ".join(
        f"{title} {each['l2_unevenness']:.3f}" for title, each in found.items())
    return "\n".join([*lines, "Standard deviation of L2 over the layers, divided by "
                      f"the mean: {unevenness}"])


def draw(found: Mapping[str, Mapping[str, Any]], path: str) -> None:
    """Draws a panel for the distance and one for the angle; bands show one standard
    deviation over the tokens."""
    if not pictures.possible():
        return
    figure = pictures.figure(10, 4)
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
