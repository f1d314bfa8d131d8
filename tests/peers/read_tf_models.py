"""Outputs that tf-models computes from checkpoints; see the package."""

import json
import os
import sys

import numpy as np
import tensorflow as tf
from official.nlp.modeling import models, networks

INPUTS = {"input_ids": "input_word_ids", "input_mask": "input_mask",
          "segment_ids": "input_type_ids"}
ACTIVATIONS = {"gelu": lambda x: tf.nn.gelu(x, approximate=True), "relu": tf.nn.relu,
               "tanh": tf.tanh, "linear": tf.identity}

for folder, inputs, outputs in json.load(open(sys.argv[1], encoding="utf-8")):
    given = np.load(inputs)
    with open(os.path.join(folder, "albert_config.json"), encoding="utf-8") as stream:
        config = json.load(stream)
    activation = ACTIVATIONS[config["hidden_act"]]
    encoder = networks.AlbertEncoder(
        vocab_size=config["vocab_size"], embedding_width=config["embedding_size"],
        hidden_size=config["hidden_size"], num_layers=config["num_hidden_layers"],
        num_attention_heads=config["num_attention_heads"],
        max_sequence_length=config["max_position_embeddings"],
        type_vocab_size=config["type_vocab_size"],
        intermediate_size=config["intermediate_size"], activation=activation,
        dict_outputs=True)
    batch = {theirs: given[name].astype("i4") for name, theirs in INPUTS.items()}
    path = tf.train.latest_checkpoint(folder)
    if any("cls/predictions" in name for name, _ in tf.train.list_variables(path)):
        model = models.BertPretrainerV2(encoder_network=encoder,
                                        mlm_activation=activation)
        batch["masked_lm_positions"] = (
            given["masked_lm_positions"].astype("i4") if "masked_lm_positions" in given
            else np.zeros([len(given["input_ids"]), 1], "i4"))
        model(batch)
        tf.train.Checkpoint(model=model, **model.checkpoint_items).restore(
            path).assert_consumed().assert_existing_objects_matched()
        found = model(batch)
    else:
        tf.train.Checkpoint(encoder=encoder).restore(path).assert_consumed()
        found = encoder(batch)
    np.savez(outputs, **{name: found[name].numpy() for name in (
        "sequence_output", "pooled_output", "mlm_logits") if name in found})
