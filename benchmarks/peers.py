"""The peers' packages and models, which are measured if they are installed."""

import importlib
import os
from typing import Any, Callable, Mapping

from absl import logging


class NotInstalled(Exception):
    """A peer's package is missing."""


def imported(module: str, package: str):
    """Imports a module of a peer; `package` is its name for messages."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise NotInstalled(f"{package} cannot be imported: {error}") from error


def installed(makers: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """Returns what the functions return, by name; leaves out, with a warning, those
    whose package is missing."""
    made = {}
    for name, make in makers.items():
        try:
            made[name] = make()
        except NotInstalled as error:
            logging.warning("Leaving out %s: %s.", name, error)
    return made


def hf_config(config, **more):
    """Returns transformers' config of the same model; `more` are further fields."""
    transformers = imported("transformers", "transformers")
    return transformers.AlbertConfig(
        vocab_size=config.vocab_size, embedding_size=config.embedding_size,
        hidden_size=config.hidden_size, num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        intermediate_size=config.intermediate_size, hidden_act="gelu_new", **more)


def _policy(dtype: str) -> str:
    return "float32" if dtype == "float32" else f"mixed_{dtype}"


def tf_models_encoder(config, dtype: str):
    """Returns tf-models-official's AlbertEncoder with the dropout of the config."""
    import tf_keras

    encoders = imported("official.nlp.modeling.networks.albert_encoder",
                        "tf-models-official's AlbertEncoder")
    tf_keras.mixed_precision.set_global_policy(_policy(dtype))
    encoder = encoders.AlbertEncoder(
        config.vocab_size, config.embedding_size, config.hidden_size,
        config.num_hidden_layers, config.num_attention_heads,
        config.max_position_embeddings, config.type_vocab_size,
        config.intermediate_size, dropout_rate=config.hidden_dropout_prob,
        attention_dropout_rate=config.attention_probs_dropout_prob, dict_outputs=True)
    tf_keras.mixed_precision.set_global_policy("float32")
    return encoder


def keras_hub_pretrainer(config, dtype: str):
    """Returns Keras 3, keras-hub's AlbertMaskedLM, which has no sentence loss, and its
    AdamW with clipping."""
    models, keras, backbone = keras_hub_backbone(config, dtype)
    model = models.AlbertMaskedLM(backbone, preprocessor=None)
    optimizer = keras.optimizers.AdamW(1e-4, global_clipnorm=1.0)
    optimizer.build(model.trainable_variables)
    return keras, model, optimizer


def keras_hub_inputs(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the features of a pretraining batch by keras-hub's names."""
    return {"token_ids": batch["input_ids"], "padding_mask": batch["input_mask"],
            "segment_ids": batch["segment_ids"],
            "mask_positions": batch["masked_lm_positions"]}


def keras_hub_backbone(config, dtype: str):
    """Returns keras-hub's `models`, Keras 3 on TensorFlow, and an AlbertBackbone with the
    dropout of the config."""
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    models = imported("keras_hub.models", "keras-hub")
    keras = imported("keras", "Keras 3")
    return models, keras, models.AlbertBackbone(
        vocabulary_size=config.vocab_size, num_layers=config.num_hidden_layers,
        num_heads=config.num_attention_heads, embedding_dim=config.embedding_size,
        hidden_dim=config.hidden_size, intermediate_dim=config.intermediate_size,
        max_sequence_length=config.max_position_embeddings,
        dropout=config.hidden_dropout_prob, dtype=_policy(dtype))
