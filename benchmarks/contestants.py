"""Whole pretraining steps to measure: ours, ours without fused parts, and the peers'.

Each function takes a config, sequences, length and type, and returns a function that makes
one step, always on the same batch of random tokens: forward pass, backward pass, clipping
by the global norm and the optimizer. benchmarks/requirements.txt has the peers' packages.
"""

import functools
import os

import numpy as np

from albert_tf.errors import InputError
from benchmarks import peers


def parsed_shape(text: str) -> tuple[int, int]:
    """Parses a batch such as 8x128 into sequences and length."""
    size, _, length = text.partition("x")
    if not (size.isdigit() and length.isdigit()):
        raise InputError(f"--shapes: '{text}' is not of the form 8x128.")
    return int(size), int(length)


def predictions(length: int) -> int:
    """Returns the number of masked positions: 15 %, as in the original's commands."""
    return max(1, round(0.15 * length))


def random_batch(config, size: int, length: int, masked: int = 0
                 ) -> dict[str, np.ndarray]:
    """`masked` is the number of predictions of a sequence, by default 15 % of its
    tokens."""
    random = np.random.default_rng(0)
    count = masked or predictions(length)
    return {
        "input_ids": random.integers(5, config.vocab_size, [size, length], np.int32),
        "input_mask": np.ones([size, length], np.int32),
        "segment_ids": np.repeat(
            [[0, 1]], length // 2, 1).astype(np.int32).repeat(size, 0),
        "masked_lm_positions": np.sort(np.stack([
            random.permutation(length)[:count] for _ in range(size)])).astype(np.int32),
        "masked_lm_ids": random.integers(5, config.vocab_size, [size, count], np.int32),
        "masked_lm_weights": np.ones([size, count], np.float32),
        "sentence_order_labels": random.integers(0, 2, [size], np.int32)}


def step_products(config, size: int, length: int, masked: int = 0):
    """Returns (count, batch of products, rows, inner, columns) of the forward pass.

    Each product has two more of its size in the backward pass. The last one is in float32.
    `masked` is the number of predictions of a sequence, by default 15 % of its tokens.
    """
    masked = masked or predictions(length)
    layers = config.num_hidden_layers * config.inner_group_num
    rows, width, inner = size * length, config.hidden_size, config.intermediate_size
    heads, depth = config.num_attention_heads, width // config.num_attention_heads

    def layer(count, queries):
        """Adds `count` layers whose outputs are read at the given number of positions."""
        read = size * queries
        qkv = [(count, 0, rows, width, 3 * width)] if queries == length else [
            (count, 0, read, width, width), (count, 0, rows, width, 2 * width)]
        return [
            *qkv,
            (count, size * heads, queries, depth, length),
            (count, size * heads, queries, length, depth),
            (count, 0, read, width, width),
            (count, 0, read, width, inner),
            (count, 0, read, inner, width)]

    # The heads read the last layer only at the masked positions and [CLS].
    return [
        *layer(layers - 1, length), *layer(1, masked + 1),
        (1, 0, rows, config.embedding_size, width),
        (1, 0, size * masked, config.embedding_size, config.vocab_size)]


def step_flops(config, size: int, length: int, masked: int = 0) -> float:
    """Returns the operations of a step's products, forward and backward."""
    return float(sum(3 * 2 * count * max(batch, 1) * rows * inner * columns
                     for count, batch, rows, inner, columns
                     in step_products(config, size, length, masked)))


def trainer(model, data, computation, **options):
    """Returns a trainer on the batches of a data set; `options` are those of a step."""
    import tensorflow as tf

    from albert_tf.training import losses, optimization, steps
    from albert_tf.training.options import StepOptions

    task = steps.Task(model, losses.PRETRAINING, "masked_lm_accuracy")
    optimizer = optimization.create_optimizer(1e-4, 10**6, 0, optimizer="lamb")
    optimizer.build(model.trainable_variables)
    strategy = tf.distribute.get_strategy()
    return steps.Trainer(
        task, optimizer, [strategy.experimental_distribute_dataset(data)],
        StepOptions(**options), computation=computation)


def _always(batch):
    """Returns a data set that repeats one batch."""
    import tensorflow as tf

    return tf.data.Dataset.from_tensors(batch).cache().repeat()


def _step(trainer):
    import tensorflow as tf

    return lambda: trainer.train(tf.constant(1))


def ours(config, size, length, dtype, recompute=False, **options):
    """Returns our step; `options` are further fields of StepOptions."""
    return _step(our_trainer(config, size, length, dtype, recompute, **options))


def our_trainer(config, size, length, dtype, recompute=False, **options):
    """Returns our trainer; `options` are further fields of StepOptions."""
    from albert_tf.modeling.encoder import Computation
    from albert_tf.modeling.pretraining import AlbertForPreTraining

    model = AlbertForPreTraining(config)
    return trainer(model, _always(random_batch(config, size, length)),
                   Computation(dtype, recompute), **options)


def plain(config, size, length, dtype, recompute=False):
    from albert_tf.modeling.kernels import fast
    from albert_tf.modeling.kernels.plain import PLAIN

    step = ours(config, size, length, dtype, recompute)

    def with_plain_parts():
        chosen, fast.parts_for = fast.parts_for, lambda *_: PLAIN
        try:
            step()
        finally:
            fast.parts_for = chosen

    return with_plain_parts


def tf_models(config, size, length, dtype):
    return _step(tf_models_trainer(config, size, length, dtype))


def tf_models_trainer(config, size, length, dtype):
    """Returns a trainer of tf-models' encoder with our heads."""
    import tensorflow as tf
    import tf_keras

    from albert_tf.modeling import layers
    from albert_tf.modeling.encoder import Computation
    from albert_tf.modeling.kernels import packing

    encoder = peers.tf_models_encoder(config, dtype)

    class Pretrainer(tf_keras.Model):
        """The peer's encoder with our heads."""

        def __init__(self):
            super().__init__()
            self.encoder = encoder
            self.predictions = layers.TokenScores(config)
            self.seq_relationship = layers.OutputLayer(
                "cls/seq_relationship", config.hidden_size, 2)

        def call(self, features, training=False, seed=None, computation=None):
            del seed, computation
            outputs = self.encoder(
                {"input_word_ids": features["input_ids"],
                 "input_mask": features["input_mask"],
                 "input_type_ids": features["segment_ids"]}, training=training)
            return {
                "mlm_logits": self.predictions(
                    packing.PADDED.at(
                        outputs["sequence_output"], features["masked_lm_positions"]),
                    tf.cast(self.encoder.get_embedding_table(), tf.float32)),
                "sentence_order_logits": self.seq_relationship(
                    tf.cast(outputs["pooled_output"], tf.float32))}

    model = Pretrainer()
    batch = random_batch(config, size, length)
    model(batch)
    # The encoder has its own number type; the training loop only sets the passes.
    return trainer(model, _always(batch), Computation(dtype))


def _checkpoint_layers(torch, model):
    """Checkpoints each layer. gradient_checkpointing_enable does not support ALBERT."""
    from torch.utils import checkpoint

    for group in model.albert.encoder.albert_layer_groups:
        forward = group.forward
        group.forward = lambda *args, forward=forward, **kwargs: checkpoint.checkpoint(
            forward, *args, use_reentrant=False, **kwargs)


def hf(config, size, length, dtype, recompute=False, compiled=False):
    torch = peers.imported("torch", "PyTorch")
    transformers = peers.imported("transformers", "transformers")
    torch.set_num_threads(os.cpu_count())
    model = transformers.AlbertForPreTraining(peers.hf_config(
        config, hidden_dropout_prob=config.hidden_dropout_prob,
        attention_probs_dropout_prob=config.attention_probs_dropout_prob,
        classifier_dropout_prob=0.0)).train()
    if recompute:
        _checkpoint_layers(torch, model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    batch = random_batch(config, size, length)
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


def keras_hub(config, size, length, dtype):
    """Returns keras-hub's step: without sentence loss, which it lacks, and with AdamW."""
    import tensorflow as tf

    keras, model, optimizer = peers.keras_hub_pretrainer(config, dtype)
    variables = [variable.value for variable in model.trainable_variables]
    batch = random_batch(config, size, length)
    features = {name: tf.constant(value)
                for name, value in peers.keras_hub_inputs(batch).items()}

    @tf.function
    def train():
        with tf.GradientTape() as tape:
            scores = tf.cast(model(features, training=True), tf.float32)
            loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(
                batch["masked_lm_ids"], scores))
        optimizer.apply(tape.gradient(loss, variables), model.trainable_variables)
        return loss

    return lambda: float(train())


MAKERS = {"ours": ours, "plain": plain, "tf-models": tf_models,
          "keras-hub": keras_hub, "hf": hf,
          "compiled": functools.partial(hf, compiled=True)}

# Contestants that support `recompute` (activations again in the backward pass).
RECOMPUTING = ("ours", "plain", "hf", "compiled")
