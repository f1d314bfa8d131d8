r"""How long a whole pretraining step takes: ours, the plain version, and the peers'.

    python -m benchmarks.training --output=benchmarks/results/training.json

A step is forward pass, backward pass, clipping by the global norm and the
optimizer, on a batch of random pieces. Measured in turns, one step of each a round:

  limit      the matrix products of a step alone, through the kernels that ours use
  ours       what run_pretraining.py runs, metrics of training included
  plain      the same with the plain element-wise parts (fused.PLAIN)
  tf-models  tf-models-official's AlbertEncoder and our heads, loss and optimizer
  hf         transformers' AlbertForPreTraining in PyTorch, with its fused AdamW,
             which does less than LAMB
  compiled   the same through torch.compile

The last three need benchmarks/requirements.txt; what is not installed is left out, in
a line that says so. Each shape and type is measured in a process of its own. Times are
medians over rounds, with ranges; the share of the limit is the median of each round's.
Beside them stand the seconds that the process had a core, divided by the cores: on a
machine with other work they tell more than those of the clock.
"""

import collections
import importlib
import json
import os
import platform
import resource
import subprocess
import sys
import time

import numpy as np
from absl import flags, logging

from albert_tf import command_line
from albert_tf.errors import InputError

FLAGS = flags.FLAGS

CONTESTANTS = ("limit", "ours", "plain", "tf-models", "hf")
DTYPES = ("float32", "bfloat16")

command_line.define_model_flags()
flags.DEFINE_list("shapes", ["8x128", "4x512"], "Batches: sequences x length.")
flags.DEFINE_list("dtypes", list(DTYPES), "Types of products and activations.")
flags.DEFINE_list("contestants", list(CONTESTANTS), "What to measure; also: compiled.")
flags.DEFINE_float("dropout", None, "Dropout of all. Default: the config's.",
                   lower_bound=0.0, upper_bound=1.0)
flags.DEFINE_integer("rounds", 7, "Steps of each that are measured.", lower_bound=1)
flags.DEFINE_bool("recompute", False, "Gradient checkpointing in ours and in hf.")
flags.DEFINE_string("output", "", "JSON file to write the results to.")
flags.DEFINE_string("one_setting", "", "Used by the benchmark itself.")
WARM_UP = 2


class NotInstalled(Exception):
    """A peer's package is missing."""


def _predictions(length: int) -> int:
    """Masked positions, as the release's commands have them: 15 %."""
    return max(1, round(0.15 * length))


def _batch(config, size: int, length: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    count = _predictions(length)
    return {
        "input_ids": random.integers(5, config.vocab_size, [size, length], np.int32),
        "input_mask": np.ones([size, length], np.int32),
        "segment_ids": np.repeat([[0, 1]], length // 2, 1).astype(np.int32).repeat(size, 0),
        "masked_lm_positions": np.sort(np.stack([
            random.permutation(length)[:count] for _ in range(size)])).astype(np.int32),
        "masked_lm_ids": random.integers(5, config.vocab_size, [size, count], np.int32),
        "masked_lm_weights": np.ones([size, count], np.float32),
        "sentence_order_labels": random.integers(0, 2, [size], np.int32)}


# ---- the limit -------------------------------------------------------------


def step_products(config, size: int, length: int):
    """(count, batch of products, rows, inner, columns) of the forward pass.

    Each has two more of its size in the backward pass. The last is in float32.
    """
    layers = config.num_hidden_layers * config.inner_group_num
    rows, width, inner = size * length, config.hidden_size, config.intermediate_size
    heads, depth = config.num_attention_heads, width // config.num_attention_heads
    return [
        (layers, 0, rows, width, 3 * width),
        (layers, size * heads, length, depth, length),
        (layers, size * heads, length, length, depth),
        (layers, 0, rows, width, width),
        (layers, 0, rows, width, inner),
        (layers, 0, rows, inner, width),
        (1, 0, rows, config.embedding_size, width),
        (1, 0, size * _predictions(length), config.embedding_size, config.vocab_size)]


def step_flops(config, size: int, length: int) -> float:
    """Of the products of a step, forward and backward."""
    return float(sum(3 * 2 * count * max(batch, 1) * rows * inner * columns
                     for count, batch, rows, inner, columns
                     in step_products(config, size, length)))


def limit(config, size, length, dtype):
    """A function that computes all products of a step, one after the other."""
    import tensorflow as tf

    products = step_products(config, size, length)

    def operands(batch, *shape):
        return tf.cast(tf.random.normal([batch, *shape] if batch else shape), dtype)

    tensors = []
    for index, (_, batch, rows, inner, columns) in enumerate(products):
        last = index == len(products) - 1
        made = [operands(batch, rows, inner), operands(batch, inner, columns),
                operands(batch, rows, columns)]
        tensors.append([tf.cast(t, tf.float32) for t in made] if last else made)

    @tf.function
    def layer(chosen):
        sums = []
        for index in chosen:
            left, right, out = tensors[index]
            for a, b, options in ((left, right, {}), (out, right, {"transpose_b": True}),
                                  (left, out, {"transpose_a": True})):
                with tf.control_dependencies(sums[-1:]):
                    # Reading one number keeps the product.
                    sums.append(tf.matmul(a, b, **options)[..., 0, 0])
        return [tf.cast(s, tf.float32) for s in sums]

    by_count = collections.defaultdict(list)
    for index, (count, *_) in enumerate(products):
        by_count[count].append(index)

    def run():
        for count, chosen in by_count.items():
            for _ in range(count):
                layer(tuple(chosen))

    return run


# ---- contestants -----------------------------------------------------------


def _trainer_step(model, task, batch):
    """A step of the training loop on one batch, over and over."""
    import tensorflow as tf

    from albert_tf import optimization, training_steps
    from albert_tf.run_options import StepOptions

    optimizer = optimization.create_optimizer(1e-4, 10**6, 0, optimizer="lamb")
    optimizer.build(model.trainable_variables)
    data = tf.data.Dataset.from_tensors(batch).cache().repeat()
    strategy = tf.distribute.get_strategy()
    trainer = training_steps.Trainer(
        task, optimizer, [strategy.experimental_distribute_dataset(data)], StepOptions())
    trainer.create_metrics()
    return lambda: trainer.train(tf.constant(1))


def _our_task(model):
    from albert_tf import losses, training_steps

    return training_steps.Task(
        model=model, denominators=losses.pretraining_denominators,
        losses=losses.pretraining_losses, metrics=losses.pretraining_metrics,
        best_metric="masked_lm_accuracy")


def ours(config, size, length, dtype):
    from albert_tf import heads

    model = heads.AlbertForPreTraining(config)
    model.bert.activation_dtype = dtype
    model.bert.encoder.recompute = FLAGS.recompute
    return _trainer_step(model, _our_task(model), _batch(config, size, length))


def plain(config, size, length, dtype):
    from albert_tf import fused

    step = ours(config, size, length, dtype)

    def with_plain_parts():
        chosen, fused.parts_for = fused.parts_for, lambda hidden: fused.PLAIN
        try:
            step()
        finally:
            fused.parts_for = chosen

    return with_plain_parts


def _imported(module: str, package: str):
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise NotInstalled(f"{package} cannot be imported: {error}") from error


def tf_models(config, size, length, dtype):
    import tensorflow as tf
    import tf_keras

    from albert_tf import heads, layers

    encoders = _imported("official.nlp.modeling.networks.albert_encoder",
                         "tf-models-official's AlbertEncoder")
    policy = "float32" if dtype == "float32" else f"mixed_{dtype}"
    tf_keras.mixed_precision.set_global_policy(policy)
    encoder = encoders.AlbertEncoder(
        config.vocab_size, config.embedding_size, config.hidden_size,
        config.num_hidden_layers, config.num_attention_heads,
        config.max_position_embeddings, config.type_vocab_size,
        config.intermediate_size, dropout_rate=config.hidden_dropout_prob,
        attention_dropout_rate=config.attention_probs_dropout_prob, dict_outputs=True)
    tf_keras.mixed_precision.set_global_policy("float32")

    class Pretrainer(tf_keras.Model):
        """Its encoder and our heads."""

        def __init__(self):
            super().__init__()
            self.encoder = encoder
            self.predictions = heads.MaskedLanguageModelHead(config)
            self.seq_relationship = heads.SentenceOrderHead(config)

        def call(self, features, training=False, seed=None):
            del seed
            outputs = self.encoder(
                {"input_word_ids": features["input_ids"],
                 "input_mask": features["input_mask"],
                 "input_type_ids": features["segment_ids"]}, training=training)
            return {
                "mlm_logits": self.predictions(
                    layers.at_positions(
                        outputs["sequence_output"], features["masked_lm_positions"]),
                    tf.cast(self.encoder.get_embedding_table(), tf.float32)),
                "sentence_order_logits": self.seq_relationship(
                    tf.cast(outputs["pooled_output"], tf.float32))}

    model = Pretrainer()
    batch = _batch(config, size, length)
    model(batch)
    return _trainer_step(model, _our_task(model), batch)


def _hf(config, size, length, dtype, compiled):
    torch = _imported("torch", "PyTorch")
    transformers = _imported("transformers", "transformers")
    torch.set_num_threads(os.cpu_count())
    model = transformers.AlbertForPreTraining(transformers.AlbertConfig(
        vocab_size=config.vocab_size, embedding_size=config.embedding_size,
        hidden_size=config.hidden_size, num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        intermediate_size=config.intermediate_size, hidden_act="gelu_new",
        hidden_dropout_prob=config.hidden_dropout_prob,
        attention_probs_dropout_prob=config.attention_probs_dropout_prob,
        classifier_dropout_prob=0.0)).train()
    if FLAGS.recompute:
        model.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    batch = _batch(config, size, length)
    labels = np.full([size, length], -100)
    np.put_along_axis(labels, batch["masked_lm_positions"], batch["masked_lm_ids"], 1)
    inputs = {name: torch.tensor(value).long() for name, value in dict(
        input_ids=batch["input_ids"], attention_mask=batch["input_mask"],
        token_type_ids=batch["segment_ids"], labels=labels,
        sentence_order_label=batch["sentence_order_labels"]).items()}
    called = torch.compile(model) if compiled else model

    def step():
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
            loss = called(**inputs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step


MAKERS = {
    "limit": limit, "ours": ours, "plain": plain, "tf-models": tf_models,
    "hf": lambda *args: _hf(*args, compiled=False),
    "compiled": lambda *args: _hf(*args, compiled=True)}


# ---- one setting -----------------------------------------------------------


def _shape(text: str) -> tuple[int, int]:
    size, _, length = text.partition("x")
    if not (size.isdigit() and length.isdigit()):
        raise InputError(f"--shapes: '{text}' is not of the form 8x128.")
    return int(size), int(length)


def measure(config, shape: str, dtype: str):
    """Seconds of each step, by contestant: of the clock, and of all cores."""
    steps = {}
    for name in FLAGS.contestants:
        try:
            steps[name] = MAKERS[name](config, *_shape(shape), dtype)
        except NotInstalled as error:
            logging.warning("%s is left out: %s.", name, error)
    for step in steps.values():
        for _ in range(WARM_UP):
            step()
    times, cores = ({name: [] for name in steps} for _ in range(2))
    for _ in range(FLAGS.rounds):
        for name, step in steps.items():
            start, core_start = time.perf_counter(), time.process_time()
            step()
            times[name].append(time.perf_counter() - start)
            cores[name].append((time.process_time() - core_start) / os.cpu_count())
    return times, cores


def summary(config, shape: str, dtype: str, times, cores) -> dict:
    """Medians, ranges and shares of the limit of one setting."""
    found = {"shape": shape, "dtype": dtype, "seconds": {}, "times": times,
             "core_times": cores,
             "gigaflop": step_flops(config, *_shape(shape)) / 1e9,
             "peak_gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}
    for name, values in times.items():
        row = {"median": float(np.median(values)), "least": min(values),
               "most": max(values), "cores": float(np.median(cores[name]))}
        if "limit" in times:
            row["share_of_limit"] = float(np.median(
                np.array(times["limit"]) / np.array(values)))
        if "ours" in times:
            row["times_ours"] = float(np.median(
                np.array(values) / np.array(times["ours"])))
        found["seconds"][name] = row
        logging.info(
            "%s %s %-9s %.3f s (%.3f to %.3f), cores %.3f; %3.0f %% of the limit, "
            "%.2f x ours", shape, dtype, name, row["median"], row["least"],
            row["most"], row["cores"],
            100 * row.get("share_of_limit", 0), row.get("times_ours", 0))
    return found


def _config():
    config = command_line.model_config()
    if FLAGS.dropout is not None:
        config = config.replace(hidden_dropout_prob=FLAGS.dropout,
                                attention_probs_dropout_prob=FLAGS.dropout)
    return config


def main(argv):
    if not (FLAGS.model or FLAGS.albert_config_file):
        FLAGS.model = "base"
    config = _config()
    unknown = set(FLAGS.contestants) - set(MAKERS)
    if unknown:
        raise InputError(f"--contestants: there is no {unknown.pop()}.")
    if FLAGS.one_setting:
        shape, dtype = FLAGS.one_setting.split(":")
        print(json.dumps(summary(
            config, shape, dtype, *measure(config, shape, dtype))))
        return
    results = []
    for shape in FLAGS.shapes:
        for dtype in FLAGS.dtypes:
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.training", *sys.argv[1:],
                 f"--one_setting={shape}:{dtype}"],
                stdout=subprocess.PIPE, text=True, check=True)
            results.append(json.loads(done.stdout.splitlines()[-1]))
    if FLAGS.output:
        with open(FLAGS.output, "w", encoding="utf-8") as stream:
            json.dump({"machine": platform.processor(), "cores": os.cpu_count(),
                       "config": config.to_dict(), "rounds": FLAGS.rounds,
                       "results": results}, stream, indent=1)
            stream.write("\n")


if __name__ == "__main__":
    command_line.run(main)
