r"""How much faster fine-tuning is in batches by length than with padding.

    python -m benchmarks.finetuning --output=benchmarks/results/finetuning.json

Real SST-2 and MRPC, in one run and with the same weights, three ways to pad:

  by length   to one of --num_length_buckets lengths, as the scripts do by default
  128, 512    everything to one length, as the release does

Measured is what the scripts run: input pipeline, forward and backward pass, clipping
and AdamW in training, forward pass and kept predictions in evaluation. The time of a
step depends on the length that its batch is padded to, not on the text. So a few
steps of each length are timed after one that warms up, in rounds that go through all
lengths, and the median of each length is weighted with the share of the steps that
have it: in training over an epoch of the plan, in evaluation over all of dev. Ranges
are those of the rounds.

A batch of more than --max_pieces_in_memory pieces is computed in parts of equal size
(gradient accumulation), however it is padded: 16 sequences of 512 need about 20 GB.

Then, with equal weights, dev is evaluated under the three paddings: all of it by a
small model, some of it by the model that was timed. Metrics must be equal and logits
within 1e-4. The weights are random; the head's are scaled and shifted so that logits
spread by 1 around the decision's border, since metrics of a model that gives every
example the same label would always be equal.
"""

import collections
import functools
import json
import os
import platform
import time

import numpy as np
from absl import flags, logging

from albert_tf import command_line, featurizing, files
from albert_tf.config import AlbertConfig
from albert_tf.errors import InputError
from albert_tf.tasks import classification, glue
from albert_tf.tokenization import FullTokenizer

FLAGS = flags.FLAGS

_SHARED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "shared")
command_line.define_model_flags()
flags.DEFINE_string("data_dir", os.path.join(_SHARED, "data", "glue"),
                    "Folder of the GLUE download, with SST-2 and MRPC.")
flags.DEFINE_string("spm_model_file",
                    os.path.join(_SHARED, "data", "spm_en", "30k-clean.model"),
                    "SentencePiece model; its size is the model's vocab_size.")
flags.DEFINE_integer("train_batch_size", 32, "Sequences a step; by default that of "
                     "both tasks' recipes.", lower_bound=1)
flags.DEFINE_integer("eval_batch_size", 8, "Sequences a batch in evaluation.",
                     lower_bound=1)
flags.DEFINE_integer("num_length_buckets", 8, "As in the scripts.", lower_bound=1)
flags.DEFINE_integer("num_repeats", 3, "Rounds of measurements.", lower_bound=1)
flags.DEFINE_integer("max_pieces_in_memory", 2048,
                     "Batches of more are computed in parts.", lower_bound=1)
flags.DEFINE_integer("num_compared", 32, "Examples of each dev set whose logits are "
                     "compared by the model that is timed.", lower_bound=2)
flags.DEFINE_string("output", "", "JSON file to write the results to.")

PADDINGS = (128, 512)
TARGETS = {"sst-2": {128: 6.0, 512: 20.0}, "mrpc": {128: 1.8, 512: 6.0}}
# What is longer is cut, so that all paddings see the same pieces.
MAX_SEQ_LENGTH = min(PADDINGS)
LARGEST_LOGIT_DIFFERENCE = 1e-4
# Short steps are measured several at a time.
PIECES_OF_A_MEASUREMENT = 64
SMALL_MODEL = dict(embedding_size=32, hidden_size=64, num_hidden_layers=2,
                   num_attention_heads=2, intermediate_size=256)


class TaskData:
    """A task's sets as features, and the static lengths of each padding.

    Args:
      name: of the task.
      tokenizer: makes the features.
    """

    def __init__(self, name: str, tokenizer: FullTokenizer):
        from albert_tf import length_batching

        self.task = glue.TASKS[name]
        self._tokenizer = tokenizer
        self.dev_examples = self.task.read(FLAGS.data_dir, "dev").examples
        self.train = self._table(self.task.read(FLAGS.data_dir, "train").examples)
        self.dev = self._table(self.dev_examples)
        lengths = length_batching.choose_lengths(
            self.train.lengths, MAX_SEQ_LENGTH, FLAGS.num_length_buckets)
        longest = length_batching.choose_lengths(self.dev.lengths, MAX_SEQ_LENGTH, 2)[-1]
        self.lengths = {
            "by length": lengths if longest <= lengths[-1] else (*lengths, longest),
            **{str(padding): (padding,) for padding in PADDINGS}}

    def _table(self, examples):
        from albert_tf import feature_specs, feature_table

        function = functools.partial(
            classification.featurize, tokenizer=self._tokenizer,
            labels=self.task.labels, max_seq_length=MAX_SEQ_LENGTH)
        return feature_table.FeatureTable.from_dicts(
            feature_specs.classification_spec(
                self.task.num_outputs, self._tokenizer.vocab_size),
            (features for found in featurizing.featurize_all(
                examples, function, what=self.task.name) for features in found))

    def sample(self, count: int):
        """(table, examples) of `count` dev examples at equal distances."""
        chosen = np.linspace(0, len(self.dev_examples) - 1,
                             min(count, len(self.dev_examples))).astype(int)
        examples = [self.dev_examples[i] for i in chosen]
        return self._table(examples), examples

    def plan(self, padding: str):
        from albert_tf import length_batching

        return length_batching.BatchPlan(
            self.train.lengths, self.lengths[padding], FLAGS.train_batch_size, seed=1)

    def training_shares(self, padding: str) -> dict[int, float]:
        """Static length → share of an epoch's steps that have it."""
        plan = self.plan(padding)
        steps = max(1, self.train.num_rows // FLAGS.train_batch_size)
        counts = collections.Counter(map(plan.shape_of_step, range(steps)))
        return {plan.shapes[shape]: count / steps
                for shape, count in sorted(counts.items())}

    def evaluation_batches(self, padding: str) -> dict[int, int]:
        """Static length → batches of dev that have it."""
        found = {}
        for shape, length in enumerate(self.lengths[padding]):
            count = _evaluation_set(self.dev, self.lengths[padding], shape)[1]
            if count:
                found[length] = count
        return found


def _evaluation_set(table, lengths, shape):
    from albert_tf import length_batching

    return length_batching.evaluation_dataset(
        table, lengths, shape, batch_size=FLAGS.eval_batch_size, replicas=1)


# ---- times -----------------------------------------------------------------


class Stopwatch:
    """Seconds per step of each static length, measured in rounds.

    Args:
      data: the tasks. A length that several have is measured on each in turn.
      config: the model's shape.
    """

    def __init__(self, data, config: AlbertConfig):
        from albert_tf import (
            evaluation_steps, finetuning, finetuning_heads, finetuning_losses,
            length_batching)

        # Of the tasks' models only the number of labels could differ.
        (num_outputs,) = {each.task.num_outputs for each in data}
        self._model = finetuning_heads.AlbertForSequenceClassification(
            config, num_outputs)
        self._task = finetuning.make_task(
            self._model, finetuning_losses.CLASSIFICATION, None, "accuracy")
        self._optimizer = finetuning.make_optimizer(
            self._model, 1e-5, 10**6, 0, "adamw")
        self._evaluator = evaluation_steps.Evaluator(self._task)
        train, dev = collections.defaultdict(list), collections.defaultdict(list)
        for each in data:
            for padding in each.lengths:
                plan = each.plan(padding)
                for length in each.training_shares(padding):
                    train[length].append(length_batching.training_dataset(
                        each.train, plan, plan.shapes.index(length),
                        batch_size=FLAGS.train_batch_size, replicas=1, start_step=0,
                        num_steps=10**7))
                for length in each.evaluation_batches(padding):
                    shapes = each.lengths[padding]
                    dev[length].append(_evaluation_set(
                        each.dev, shapes, shapes.index(length))[0])
        self._train = {length: self._trainer(length, sets)
                       for length, sets in sorted(train.items())}
        self._dev = dict(sorted(dev.items()))

    def _trainer(self, length, sets):
        from albert_tf import run_options, training_steps

        trainer = training_steps.Trainer(
            self._task, self._optimizer, sets,
            run_options.StepOptions(gradient_accumulation_steps=parts_of(length)),
            shape_of_step=lambda step: step % len(sets))
        trainer.create_metrics()
        return trainer

    def _train_seconds(self, length: int) -> float:
        import tensorflow as tf

        steps = max(1, PIECES_OF_A_MEASUREMENT // length)
        begin = time.perf_counter()
        self._train[length].train(tf.constant(steps))
        return (time.perf_counter() - begin) / steps

    def _dev_seconds(self, length: int, round_number: int) -> float:
        sets = self._dev[length]
        dataset = sets[round_number % len(sets)]
        begin = time.perf_counter()
        self._evaluator.predict([(dataset, 1)])
        return time.perf_counter() - begin

    def measure(self) -> dict[str, dict[int, list[float]]]:
        """"training" and "evaluation" → length → seconds in each round."""
        found = {"training": collections.defaultdict(list),
                 "evaluation": collections.defaultdict(list)}
        # Round 0 traces the graphs and warms up.
        for number in range(FLAGS.num_repeats + 1):
            for kind, lengths, seconds in (
                    ("training", self._train, self._train_seconds),
                    ("evaluation", self._dev,
                     functools.partial(self._dev_seconds, round_number=number))):
                for length in lengths:
                    value = seconds(length)
                    logging.info("%s, %s: a %s step of length %d took %.3f s.",
                                 f"round {number}" if number else "warm-up",
                                 time.strftime("%H:%M:%S"), kind, length, value)
                    if number:
                        found[kind][length].append(value)
        return found


def parts_of(length: int) -> int:
    """Parts that a training batch of this length is computed in."""
    return next(parts for parts in range(1, FLAGS.train_batch_size + 1)
                if FLAGS.train_batch_size % parts == 0 and (
                    FLAGS.train_batch_size // parts * length
                    <= FLAGS.max_pieces_in_memory or parts == FLAGS.train_batch_size))


def rate(weights, seconds, sequences: float) -> dict[str, float]:
    """Sequences per second of batches that are mixed by weight."""
    def of(choose):
        return sequences / sum(weight * choose(seconds[length])
                               for length, weight in weights.items())

    rounds = [of(lambda values, i=i: values[i]) for i in range(FLAGS.num_repeats)]
    return {"sequences_per_second": of(np.median), "lowest": min(rounds),
            "highest": max(rounds)}


def throughput(each: TaskData, seconds) -> dict:
    """Rates of a task, and how often the rate of each padding is in that by length."""
    found = {}
    for kind, weights, sequences in (
            ("training", each.training_shares, FLAGS.train_batch_size),
            ("evaluation", each.evaluation_batches, each.dev.num_rows)):
        rates = {padding: {**rate(weights(padding), seconds[kind], sequences),
                           "batches": {str(length): weight for length, weight
                                       in weights(padding).items()}}
                 for padding in each.lengths}
        own = rates["by length"]["sequences_per_second"]
        found[kind] = {"rates": rates, "speedup": {
            str(padding): own / rates[str(padding)]["sequences_per_second"]
            for padding in PADDINGS}}
    return found


# ---- equal results ---------------------------------------------------------


def compare(each: TaskData, config: AlbertConfig, table, examples) -> dict:
    """Metrics and logits of the same weights under every padding."""
    from albert_tf import (
        evaluation_steps, finetuning, finetuning_heads, finetuning_losses)

    task, labels = each.task, classification.labels_of(each.task, examples)
    # Weights that keep the size of what goes through them, or else a narrow model of
    # random weights gives nearly the same logits for every text.
    config = config.replace(initializer_range=config.hidden_size ** -0.5)
    model = finetuning_heads.AlbertForSequenceClassification(config, task.num_outputs)

    def score(predictions):
        return classification.score(task, classification.decisions(
            task, np.stack(predictions["probabilities"])), labels)

    made = finetuning.make_task(
        model, finetuning_losses.CLASSIFICATION, score, task.main_metric)

    def evaluate(lengths):
        evaluator = evaluation_steps.Evaluator(made, [
            _evaluation_set(table, lengths, shape) for shape in range(len(lengths))])
        evaluator.create_metrics()
        metrics = evaluator.evaluate()
        return metrics, np.stack(evaluator.predictions["logits"])

    _, logits = evaluate(each.lengths["by length"])
    scale = _spread(model.output_layer, logits)
    results = {padding: evaluate(lengths) for padding, lengths in each.lengths.items()}
    _, expected = results["by length"]
    # The loss is a mean of floats; the scores count decisions.
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
    """Makes the difference of two logits spread by 1 around 0; what it took."""
    if logits.shape[1] != 2:
        raise ValueError(f"{logits.shape[1]} logits; a task of two labels is needed.")
    difference = logits[:, 1] - logits[:, 0]
    scale = 1 / max(float(difference.std()), 1e-6)
    layer.output_weights.assign(layer.output_weights * scale)
    means = logits.mean(axis=0)
    # The median lies between two examples, or on one, which is then undecided.
    border = float(np.median(difference)) - (means[1] - means[0])
    layer.output_bias.assign(-scale * (means + [0.0, border]))
    return scale


# ---- the run ---------------------------------------------------------------


def print_table(name: str, result: dict) -> None:
    print(f"\n{name}")
    print(f"  {'':11}{'padding':12}{'sequences/s':>12}   {'lowest-highest':18}"
          f"{'by length is':>14}{'target':>9}")
    for kind in ("training", "evaluation"):
        for padding, found in result[kind]["rates"].items():
            spread = f"{found['lowest']:.2f}-{found['highest']:.2f}"
            line = (f"  {kind:11}{padding:12}{found['sequences_per_second']:12.2f}   "
                    f"{spread:18}")
            if padding in result[kind]["speedup"]:
                target = TARGETS[name][int(padding)]
                line += f"{result[kind]['speedup'][padding]:13.1f}x{target:8.1f}x"
            print(line)
    for what in ("small_model", "timed_model"):
        found = result[what]
        print(f"  {what.replace('_', ' ')}, {found['examples']} of dev: "
              f"{'equal' if found['equal'] else 'NOT EQUAL'}; logits differ by "
              f"{found['largest_logit_difference']:.1e} at most; " + "; ".join(
                  f"{padding}: " + ", ".join(f"{metric} {value:.4f}"
                                             for metric, value in metrics.items())
                  for padding, metrics in found["metrics"].items()))


def main(argv):
    del argv
    config = command_line.model_config() if (
        FLAGS.albert_config_file or FLAGS.model) else AlbertConfig.named("base")
    tokenizer = FullTokenizer(None, True, FLAGS.spm_model_file)
    # As the paper fine-tunes on both tasks.
    config = config.replace(
        vocab_size=tokenizer.vocab_size, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0)
    if config.max_position_embeddings < max(PADDINGS):
        raise InputError(f"the model must have {max(PADDINGS)} positions.")
    if FLAGS.output:
        files.make_directory(os.path.dirname(FLAGS.output) or ".", "--output")
    import tensorflow as tf
    import tf_keras

    begin = time.monotonic()
    tf_keras.utils.set_random_seed(1)
    data = [TaskData(name, tokenizer) for name in TARGETS]
    seconds = Stopwatch(data, config).measure()
    results = {}
    for each in data:
        small = config.replace(**SMALL_MODEL)
        results[each.task.name] = {
            "train_examples": each.train.num_rows,
            "mean_length": float(np.mean(each.train.lengths)),
            **throughput(each, seconds),
            "small_model": compare(each, small, each.dev, each.dev_examples),
            "timed_model": compare(each, config, *each.sample(FLAGS.num_compared))}
    print(f"\n{config.num_hidden_layers} layers, H {config.hidden_size}; batches of "
          f"{FLAGS.train_batch_size} in training, {FLAGS.eval_batch_size} in "
          f"evaluation; median of {FLAGS.num_repeats} rounds.")
    for name, result in results.items():
        print_table(name, result)
    total = time.monotonic() - begin
    print(f"\n{total / 60:.1f} minutes in all.")
    if FLAGS.output:
        with files.atomic_write(FLAGS.output) as stream:
            stream.write(json.dumps({
                "config": config.to_dict(), "minutes": total / 60,
                "train_batch_size": FLAGS.train_batch_size,
                "eval_batch_size": FLAGS.eval_batch_size,
                "cores": os.cpu_count(), "machine": platform.machine(),
                "tensorflow": tf.__version__,
                "parts": {str(length): parts_of(length)
                          for length in seconds["training"]},
                "seconds_per_step": {
                    kind: {str(length): values for length, values in found.items()}
                    for kind, found in seconds.items()},
                "tasks": results}, indent=1).encode() + b"\n")
        print(f"Wrote {FLAGS.output}.")


if __name__ == "__main__":
    command_line.run(main)
