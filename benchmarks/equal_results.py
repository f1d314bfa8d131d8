"""Checks that fine-tuning results do not depend on the padding.

The same weights evaluate the same examples under several paddings. Metrics must be equal
and logits within 1e-4. The weights are random. The head is scaled and shifted so that
logits spread by 1 around the decision boundary: a model that gives every example the same
label would always have equal metrics.
"""

from typing import Any, Mapping, Sequence

import numpy as np

from albert_tf.config import AlbertConfig
from albert_tf.finetuning.classification import task as classification
from albert_tf.finetuning.common import ExampleSet

LARGEST_LOGIT_DIFFERENCE = 1e-4


def compare(task: classification.ClassificationTask, config: AlbertConfig, table: Any,
            examples: Sequence[Any], lengths: Mapping[str, Sequence[int]],
            batch_size: int) -> dict[str, Any]:
    """Returns metrics and logits of the same weights under every padding.

    Args:
      task: a task with two labels.
      config: config of the model.
      table: features of the examples (feature_table.FeatureTable).
      examples: the examples of these features.
      lengths: name of a padding, "by length" among them → its static lengths.
      batch_size: batch size of the evaluation.

    Returns:
      JSON values; "equal" says whether the results are equal.
    """
    from albert_tf.finetuning.length_batching import FeatureBatches, Padded
    from albert_tf.finetuning.classification.head import Classification
    from albert_tf.modeling.models import AlbertForTask
    from albert_tf.training import losses, steps

    # Weights that preserve the size of activations. Otherwise a narrow model with
    # random weights gives nearly the same logits for every text.
    config = config.replace(initializer_range=config.hidden_size ** -0.5)
    model = AlbertForTask(config, Classification(task.num_outputs))

    def score(predictions):
        return task.score(ExampleSet(examples), predictions, None)

    made = losses.Task(
        model, model.head.objective(), task.main_metric, score)

    def evaluate(padded_to):
        evaluator = steps.Evaluator(made, FeatureBatches(
            evaluation=Padded(table, padded_to),
            eval_batch_size=batch_size).evaluation())
        metrics = evaluator.evaluate()
        return metrics, np.stack(evaluator.predictions["logits"])

    _, logits = evaluate(lengths["by length"])
    scale = _spread(model.head_layers["classification"]["output_layer"], logits)
    results = {padding: evaluate(padded_to)
               for padding, padded_to in lengths.items()}
    _, expected = results["by length"]
    # The loss is a mean of floats and may differ; the scores count decisions.
    scores = {padding: {name: value for name, value in metrics.items()
                        if name != "loss"}
              for padding, (metrics, _) in results.items()}
    difference = max(float(np.abs(logits - expected).max())
                     for _, logits in results.values())
    return {
        "examples": len(examples),
        "head_scaled_by": scale,
        "labels_predicted": np.bincount(expected.argmax(axis=1)).tolist(),
        "metrics": scores, "largest_logit_difference": difference,
        "equal": (all(found == scores["by length"] for found in scores.values())
                  and difference <= LARGEST_LOGIT_DIFFERENCE)}


def _spread(layer, logits: np.ndarray) -> float:
    """Scales the difference of two logits to spread by 1 around 0; returns the scale."""
    if logits.shape[1] != 2:
        raise ValueError(f"{logits.shape[1]} logits; a task of two labels is needed.")
    difference = logits[:, 1] - logits[:, 0]
    scale = 1 / max(float(difference.std()), 1e-6)
    layer.output_weights.assign(layer.output_weights * scale)
    means = logits.mean(axis=0)
    # The median may lie on an example, whose decision is then arbitrary.
    border = float(np.median(difference)) - (means[1] - means[0])
    layer.output_bias.assign(-scale * (means + [0.0, border]))
    return scale
