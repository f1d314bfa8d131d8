r"""Measures how much faster fine-tuning is in batches by length than with padding.

    python -m benchmarks.finetuning --output=benchmarks/results/finetuning.json

On real SST-2 and MRPC data, in one run and with the same weights, three paddings:

  by length   to one of --num_length_buckets lengths, the scripts' default
  128, 512    everything to one length, as in the original

The measurement covers what the scripts run: input pipeline, forward and backward pass,
clipping and AdamW in training; forward pass and stored predictions in evaluation. The time
of a step depends on the padded length of its batch, not on the text. So a few steps of
each length are timed after a warm-up, in rounds over all lengths. The median of each
length is weighted with the share of steps that have it: over an epoch in training, over
the whole development set in evaluation. Ranges are those of the rounds.

A batch with more than --max_pieces_in_memory tokens is computed in parts of equal size
(gradient accumulation) under every padding: 16 sequences of 512 need about 20 GB.

Finally the development sets are evaluated with equal weights under the three paddings
(equal_results): all of them by a small model, some examples by the model that was timed.
"""

import collections
import functools
import os
import time

import numpy as np
from absl import flags, logging

from albert_tf.cli import flags as cli_flags, script
from albert_tf.config import AlbertConfig
from albert_tf.errors import InputError
from albert_tf.finetuning import features
from albert_tf.finetuning.classification import glue
from albert_tf.tokenization.tokenizer import FullTokenizer
from benchmarks import benchmark_flags, equal_results
from benchmarks.benchmark_flags import DATA

FLAGS = flags.FLAGS

cli_flags.define_model_flags()
flags.DEFINE_string("data_dir", os.path.join(DATA, "glue"),
                    "Folder of the GLUE download, with SST-2 and MRPC.")
benchmark_flags.define_spm_model_flag()
flags.DEFINE_integer("train_batch_size", 32, "Sequences per step; the default is that "
                     "of both tasks' recipes.", lower_bound=1)
flags.DEFINE_integer("eval_batch_size", 8, "Sequences per batch in evaluation.",
                     lower_bound=1)
flags.DEFINE_integer("num_length_buckets", 8, "Number of lengths, as in the scripts.",
                     lower_bound=1)
flags.DEFINE_integer("num_repeats", 3, "Number of rounds.", lower_bound=1)
flags.DEFINE_integer("max_pieces_in_memory", 2048,
                     "Batches with more tokens are computed in parts.", lower_bound=1)
flags.DEFINE_integer("num_compared", 32, "Examples of each development set whose "
                     "logits the timed model compares.", lower_bound=2)
benchmark_flags.define_output_flag()

PADDINGS = (128, 512)
TARGETS = {"sst-2": {128: 6.0, 512: 20.0}, "mrpc": {128: 1.8, 512: 6.0}}
# Longer texts are cut, so that all paddings see the same tokens.
MAX_SEQ_LENGTH = min(PADDINGS)
# Several short steps are measured together.
PIECES_OF_A_MEASUREMENT = 64
SMALL_MODEL = dict(embedding_size=32, hidden_size=64, num_hidden_layers=2,
                   num_attention_heads=2, intermediate_size=256)


class TaskData:
    """A task's data as features, and the static lengths of each padding.

    Args:
      name: name of the task.
      tokenizer: tokenizer of the features.
    """

    def __init__(self, name: str, tokenizer: FullTokenizer):
        from albert_tf.finetuning import length_batching

        self.task = glue.TASKS[name]
        self._tokenizer = tokenizer
        self.dev_examples = self.task.read(FLAGS.data_dir, "dev").examples
        self.train = self._table(self.task.read(FLAGS.data_dir, "train").examples)
        self.dev = self._table(self.dev_examples)
        lengths = length_batching.choose_lengths(
            self.train.lengths, MAX_SEQ_LENGTH, FLAGS.num_length_buckets)
        self.lengths = {
            "by length": length_batching.lengths_for(
                self.dev.lengths, MAX_SEQ_LENGTH, 2, lengths),
            **{str(padding): (padding,) for padding in PADDINGS}}

    def _table(self, examples):
        from albert_tf.finetuning import feature_table
        from albert_tf.finetuning.classification.task import classification_spec

        function = functools.partial(
            self.task.featurize, tokenizer=self._tokenizer,
            max_seq_length=MAX_SEQ_LENGTH)
        return feature_table.FeatureTable.from_values(
            classification_spec(
                self.task.num_outputs, self._tokenizer.vocab_size),
            (values for found in features.featurize_all(
                examples, function, what=self.task.name) for values in found))

    def sample(self, count: int):
        """Returns (table, examples) of `count` development examples at equal distances."""
        chosen = np.linspace(0, len(self.dev_examples) - 1,
                             min(count, len(self.dev_examples))).astype(int)
        examples = [self.dev_examples[i] for i in chosen]
        return self._table(examples), examples

    def compare(self, config: AlbertConfig, table, examples) -> dict:
        """Evaluates random weights under every padding."""
        return equal_results.compare(
            self.task, config, table, examples, self.lengths, FLAGS.eval_batch_size)

    def batches(self, padding: str):
        from albert_tf.finetuning.length_batching import FeatureBatches, Padded

        return FeatureBatches(
            *(Padded(table, self.lengths[padding]) for table in (self.train, self.dev)),
            train_batch_size=FLAGS.train_batch_size,
            eval_batch_size=FLAGS.eval_batch_size, num_steps=10**7, seed=1)

    def training_shares(self, padding: str) -> dict[int, float]:
        """Returns static length → share of an epoch's steps that have it."""
        batches = self.batches(padding)
        steps = max(1, self.train.num_rows // FLAGS.train_batch_size)
        counts = collections.Counter(map(batches.shape_of_step, range(steps)))
        return {self.lengths[padding][shape]: count / steps
                for shape, count in sorted(counts.items())}

    def evaluation_batches(self, padding: str) -> dict[int, int]:
        """Returns static length → number of development batches that have it."""
        return {length: count for length, (_, count) in zip(
            self.lengths[padding], self.batches(padding).evaluation()) if count}


# ---- times -----------------------------------------------------------------


class Stopwatch:
    """Seconds per step of each static length, measured in rounds.

    Args:
      data: the tasks. A length that several tasks have is measured on each in turn.
      config: the model's shape.
    """

    def __init__(self, data, config: AlbertConfig):
        from albert_tf.finetuning.classification.head import Classification
        from albert_tf.modeling.models import AlbertForTask
        from albert_tf.training import losses, optimization, steps
        from albert_tf.training.batches import Pipeline

        # The tasks' models can differ only in the number of labels.
        (num_outputs,) = {each.task.num_outputs for each in data}
        self._model = AlbertForTask(config, Classification(num_outputs))
        self._task = losses.Task(
            self._model, self._model.head.objective(), "accuracy")
        self._optimizer = optimization.create_optimizer(
            1e-5, 10**6, 0, optimizer="adamw")
        self._optimizer.build(self._model.trainable_variables)
        self._evaluator = steps.Evaluator(self._task)
        train, dev = collections.defaultdict(list), collections.defaultdict(list)
        for each in data:
            for padding in each.lengths:
                batches = each.batches(padding)
                for length in each.training_shares(padding):
                    train[length].append(batches.training_dataset(
                        each.lengths[padding].index(length), 0,
                        Pipeline(FLAGS.train_batch_size)))
                for length, (dataset, count) in zip(
                        each.lengths[padding], batches.evaluation()):
                    if count:
                        dev[length].append(dataset)
        self._train = {length: self._trainer(length, sets)
                       for length, sets in sorted(train.items())}
        self._dev = dict(sorted(dev.items()))

    def _trainer(self, length, sets):
        from albert_tf.training import options, steps

        return steps.Trainer(
            self._task, self._optimizer, sets,
            options.StepOptions(gradient_accumulation_steps=parts_of(length)),
            shape_of_step=lambda step: step % len(sets))

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
        """Returns "training" and "evaluation" → length → seconds in each round."""
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
    """Returns the number of parts in which a training batch of this length is computed."""
    return next(parts for parts in range(1, FLAGS.train_batch_size + 1)
                if FLAGS.train_batch_size % parts == 0 and (
                    FLAGS.train_batch_size // parts * length
                    <= FLAGS.max_pieces_in_memory or parts == FLAGS.train_batch_size))


def rate(weights, seconds, sequences: float) -> dict[str, float]:
    """Returns the sequences per second of batches that are mixed by weight."""
    def of(choose):
        return sequences / sum(weight * choose(seconds[length])
                               for length, weight in weights.items())

    rounds = [of(lambda values, i=i: values[i]) for i in range(FLAGS.num_repeats)]
    return {"sequences_per_second": of(np.median), "lowest": min(rounds),
            "highest": max(rounds)}


def throughput(each: TaskData, seconds) -> dict:
    """Returns the rates of a task, and how much faster batches by length are than each
    padding."""
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
    config = cli_flags.model_config() if (
        FLAGS.albert_config_file or FLAGS.model) else AlbertConfig.named(
            "base", **cli_flags.config_overrides())
    tokenizer = FullTokenizer(None, True, FLAGS.spm_model_file)
    # The paper fine-tunes both tasks without dropout.
    config = config.replace(
        vocab_size=tokenizer.vocab_size, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0)
    if config.max_position_embeddings < max(PADDINGS):
        raise InputError(f"The model needs max_position_embeddings of {max(PADDINGS)}.")
    benchmark_flags.make_output_folder()
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
            "small_model": each.compare(small, each.dev, each.dev_examples),
            "timed_model": each.compare(config, *each.sample(FLAGS.num_compared))}
    print(f"\n{config.num_hidden_layers} layers, H {config.hidden_size}; batches of "
          f"{FLAGS.train_batch_size} in training, {FLAGS.eval_batch_size} in "
          f"evaluation; median of {FLAGS.num_repeats} rounds.")
    for name, result in results.items():
        print_table(name, result)
    total = time.monotonic() - begin
    print(f"\n{total / 60:.1f} minutes in all.")
    benchmark_flags.write_output({
        "config": config.to_dict(), "minutes": total / 60,
        "train_batch_size": FLAGS.train_batch_size,
        "eval_batch_size": FLAGS.eval_batch_size,
        **benchmark_flags.machine(), "tensorflow": tf.__version__,
        "parts": {str(length): parts_of(length) for length in seconds["training"]},
        "seconds_per_step": {
            kind: {str(length): values for length, values in found.items()}
            for kind, found in seconds.items()},
        "tasks": results})


if __name__ == "__main__":
    script.run(main)
