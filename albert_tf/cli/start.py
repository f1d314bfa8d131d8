"""The model that a fine-tuning run starts from: its config, vocabulary and checkpoint."""

import os

from absl import logging

from albert_tf import files
from albert_tf.checkpoints import tokenizer_files, vocabulary
from albert_tf.checkpoints.folders import (
    checkpoint_of, folder_of, holds_checkpoint)
from albert_tf.cli import flags as cli_flags
from albert_tf.cli.define import Values
from albert_tf.config import AlbertConfig, CONFIG_FILE
from albert_tf.errors import InputError
from albert_tf.finetuning.seeds import SEEDS_FILE
from albert_tf.tokenization import tokenizer_json
from albert_tf.tokenization.cleaning import Rules
from albert_tf.tokenization.tokenizer import FullTokenizer, vocabulary_of


def model_config(values: Values) -> AlbertConfig:
    """Returns the encoder's config: the one given, or that of the model that the run
    starts from."""
    config = cli_flags.model_config(values)
    path = os.path.join(values.output_dir, CONFIG_FILE)
    rate = values.albert_dropout_prob
    if not values.do_train and files.exists(path):
        # Without effect here, but kept; training may have taken it from a recipe.
        trained = AlbertConfig.from_json_file(path)
        config = config.replace(
            hidden_dropout_prob=trained.hidden_dropout_prob,
            attention_probs_dropout_prob=trained.attention_probs_dropout_prob)
    elif rate is not None:
        config = config.replace(
            hidden_dropout_prob=rate, attention_probs_dropout_prob=rate)
    if values.max_seq_length > config.max_position_embeddings:
        raise InputError(
            f"--max_seq_length={values.max_seq_length} exceeds the config's "
            f"max_position_embeddings of {config.max_position_embeddings}; give a "
            "smaller length.")
    return config


def its_tokenizer(values: Values, config: AlbertConfig) -> FullTokenizer:
    """Returns the tokenizer that the options name, or that stands beside the initial
    model, checked against the model's; sets the options accordingly."""
    stored, init = None, cli_flags.init_checkpoint(values)
    if init and not (values.spm_model_file or values.vocab_file) and (
            stored := tokenizer_files.find(folder_of(init))):
        name = "vocab_file" if stored.word_piece else "spm_model_file"
        values[name].value = stored.path
        if not values["do_lower_case"].present:
            values.do_lower_case = stored.do_lower_case
        if values.strip_accents is None:
            values.strip_accents = stored.strip_accents
        logging.info("Using the vocabulary %s.", stored.path)
    path = values.spm_model_file or values.vocab_file
    # A run that saved no checkpoint does not bind the folder to its vocabulary.
    start = values.output_dir if holds_checkpoint(values.output_dir) else init
    known = vocabulary.kept_beside(start) if start else None
    if values.strip_accents is None and known and path and (
            path == values.vocab_file or tokenizer_json.is_file(path)):
        values.strip_accents = known.get("strip_accents")
    if not stored and path:
        cli_flags.lower_as_stated(path, values)
    result = FullTokenizer(
        values.vocab_file, values.do_lower_case, values.spm_model_file,
        strip_accents=values.strip_accents, rules=stored.rules if stored else known and (
            Rules.of(known.get("rules", {}), start)))
    if values["strip_accents"].present and not known:
        result.check_keeps_accents()
    if result.vocab_size != config.vocab_size:
        raise InputError(
            f"{path} has {result.vocab_size} tokens, but the config's vocab_size is "
            f"{config.vocab_size}; give the vocabulary that the model was trained "
            "with.")
    if known:
        vocabulary.check(known, {**vocabulary_of(path), **result.keeps}, start)
    return result


def check_start(values: Values) -> None:
    """Raises InputError if there is no model to start from, before any long work."""
    folder = values.output_dir
    if holds_checkpoint(folder):
        if not values.resume_from and not files.exists(os.path.join(folder, SEEDS_FILE)):
            checkpoint_of(folder, best=not values.do_train, to_train=values.do_train)
    elif cli_flags.init_checkpoint(values):
        cli_flags.check_init_checkpoint(values)
    elif not (values.do_train and values.from_scratch):
        raise InputError(
            f"there is no model to start from: {folder} has no checkpoint, and "
            "--init_checkpoint is not given; give one"
            + (", or --from_scratch to train from random weights." if values.do_train
               else ", or train first (--do_train)."))
