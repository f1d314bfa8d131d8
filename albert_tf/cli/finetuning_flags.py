"""What the scripts of fine-tuning share: flags, and what they make of them.

As in command_line, TensorFlow is not imported here.
"""

import os
import types
from typing import Any, Mapping, Sequence

from absl import flags, logging

from albert_tf import files
from albert_tf.checkpoints.files import (
    find_checkpoint, folder_of, holds_checkpoint)
from albert_tf.cli import flags as cli_flags
from albert_tf.config import AlbertConfig, CONFIG_FILE
from albert_tf.errors import InputError
from albert_tf.finetuning import model_folder
from albert_tf.tokenization import tokenizer as tokenization
from albert_tf.tokenization.tokenizer import FullTokenizer

FLAGS = flags.FLAGS


def define_flags(**defaults: Any) -> None:
    """Flags of the model, of devices, of the loop, and what all tasks have besides.

    Args:
      **defaults: the task's max_seq_length, do_train, do_eval, learning_rate and
        save_checkpoints_steps.
    """
    cli_flags.define_model_flags()
    cli_flags.define_device_flags()
    cli_flags.define_training_flags(
        train_batch_size=32, eval_batch_size=8, optimizer="adamw",
        learning_rate=defaults["learning_rate"],
        save_checkpoints_steps=defaults["save_checkpoints_steps"])
    # A script that adopts this module's flags for its --help adopts those, too.
    flags.adopt_module_key_flags(cli_flags)
    flags.DEFINE_string("vocab_file", None, "WordPiece vocabulary, one piece a line.")
    flags.DEFINE_string("spm_model_file", None, "SentencePiece model.")
    flags.DEFINE_bool("do_lower_case", True, "Whether to lower-case the text.")
    flags.DEFINE_integer(
        "max_seq_length", defaults["max_seq_length"],
        "Longest sequence, in pieces; what is longer is cut.", lower_bound=8)
    for what, default in (("train", defaults["do_train"]),
                          ("eval", defaults["do_eval"]), ("predict", False)):
        flags.DEFINE_bool(f"do_{what}", default, {
            "train": "Whether to train.",
            "eval": "Whether to evaluate: at each checkpoint of training, and the "
                    "best one at the end.",
            "predict": "Whether to write predictions, by the best checkpoint."}[what])
    flags.DEFINE_integer("predict_batch_size", 8, "Examples per batch of prediction.",
                         lower_bound=1)
    flags.DEFINE_bool(
        "from_scratch", False,
        "Train from random weights. Without it, and without --init_checkpoint or a "
        "checkpoint in --output_dir, the run stops.")
    flags.DEFINE_integer(
        "early_stopping", 0, "Stop after so many evaluations in a row without a better "
        "one; 0 never does.", lower_bound=0)
    flags.DEFINE_bool(
        "recipe", False,
        "The paper's settings for the task (its appendix): dropout, batch size, rate, "
        "steps, warm-up and length. A flag that is given goes before.")
    flags.DEFINE_float(
        "albert_dropout_prob", None,
        "Both dropout rates inside ALBERT, in place of the config's.",
        lower_bound=0.0, upper_bound=1.0)
    flags.DEFINE_float(
        "dropout_prob", 0.1, "Dropout rate of what the task's head gets.",
        lower_bound=0.0, upper_bound=1.0)
    flags.DEFINE_integer(
        "num_length_buckets", 8,
        "Sequences are padded to one of so many lengths, chosen to fit the data; 1 "
        "pads all to --max_seq_length, as the release does.",
        lower_bound=1, upper_bound=64)
    flags.DEFINE_string("cached_dir", None,
                        "Folder of the features; default: --output_dir.")
    flags.DEFINE_integer("num_workers", 0,
                         "Processes that make features; 0: one for each core.",
                         lower_bound=0)


def use_recipe(recipe: Any, **flag_of: str) -> None:
    """Sets flags that were not given to a recipe's values.

    Args:
      recipe: of albert_tf.finetuning.tasks.recipes.
      **flag_of: field of the recipe → its flag.
    """
    for field, name in flag_of.items():
        if not FLAGS[name].present:
            FLAGS[name].value = getattr(recipe, field)


def use_kept_task(names: Sequence[str]) -> None:
    """Takes flags that were not given from the task.json of output_dir.

    Args:
      names: flags that make up the task.
    """
    folder = FLAGS.output_dir or ""
    kept = model_folder.read(folder) if holds_checkpoint(folder) else None
    if kept is None:
        return
    for name in names:
        if not FLAGS[name].present and name in kept.get("flags", {}):
            FLAGS[name].value = kept["flags"][name]
    if not (FLAGS.vocab_file or FLAGS.spm_model_file):
        copy = os.path.join(FLAGS.output_dir, kept["vocabulary"]["file"])
        FLAGS[kept["vocabulary_flag"]].value = copy


def keep_task(names: Sequence[str], **settings: Any) -> None:
    """Writes the task.json of output_dir; without --do_train only compares.

    Args:
      names: flags that make up the task.
      **settings: JSON values; `task` and `labels` must be those of later runs. (A
        model may be evaluated on another task that has its labels.)

    Raises:
      InputError: if the folder holds a model of another task.
    """
    if not FLAGS.do_train:
        kept = model_folder.read(FLAGS.output_dir)
        if kept is not None and "labels" in settings:
            model_folder.check_same(
                FLAGS.output_dir, kept, {"labels": list(settings["labels"])})
        return
    flag = "spm_model_file" if FLAGS.spm_model_file else "vocab_file"
    model_folder.keep(
        FLAGS.output_dir,
        {**settings, "vocabulary_flag": flag,
         "flags": {name: FLAGS[name].value for name in names}}, FLAGS[flag].value)


def model_config() -> AlbertConfig:
    """The encoder's config: given, or kept with the model that the run starts from.

    Raises:
      InputError: if there is none, or --max_seq_length is over its positions.
    """
    kept = os.path.join(FLAGS.output_dir or "", CONFIG_FILE)
    if not (FLAGS.albert_config_file or FLAGS.model):
        candidates = [kept]
        if FLAGS.init_checkpoint:
            candidates.append(os.path.join(
                folder_of(FLAGS.init_checkpoint), CONFIG_FILE))
        found = [path for path in candidates if files.exists(path)]
        if not found:
            raise InputError(
                "give the model's config: --albert_config_file=FILE or --model=NAME; "
                f"neither --output_dir nor --init_checkpoint has an {CONFIG_FILE}.")
        config = AlbertConfig.from_json_file(found[0]).replace(
            **cli_flags.config_overrides())
    else:
        config = cli_flags.model_config()
    rate = FLAGS.albert_dropout_prob
    if not FLAGS.do_train and files.exists(kept):
        # Dropout is of no matter here, and may have come from a recipe.
        trained = AlbertConfig.from_json_file(kept)
        config = _with_dropout(config, trained.hidden_dropout_prob,
                               trained.attention_probs_dropout_prob)
    elif rate is not None:
        config = _with_dropout(config, rate, rate)
    if FLAGS.max_seq_length > config.max_position_embeddings:
        raise InputError(
            f"--max_seq_length {FLAGS.max_seq_length} is over the config's "
            f"max_position_embeddings {config.max_position_embeddings}.")
    return config


def _with_dropout(config: AlbertConfig, hidden: float,
                  attention: float) -> AlbertConfig:
    return config.replace(
        hidden_dropout_prob=hidden, attention_probs_dropout_prob=attention)


def tokenizer(config: AlbertConfig) -> FullTokenizer:
    """The tokenizer of the vocabulary flags, checked against the model's.

    Raises:
      InputError: if there is no vocabulary, or it is not the model's.
    """
    if FLAGS.spm_model_file and FLAGS.vocab_file and FLAGS["vocab_file"].present:
        logging.info("--vocab_file is passed over, as --spm_model_file is given.")
    tokenizer = FullTokenizer(
        FLAGS.vocab_file, FLAGS.do_lower_case, FLAGS.spm_model_file)
    path = FLAGS.spm_model_file or FLAGS.vocab_file
    if tokenizer.vocab_size != config.vocab_size:
        raise InputError(
            f"{path} has {tokenizer.vocab_size} pieces, but the config's vocab_size is "
            f"{config.vocab_size}; give the vocabulary that the model was made with.")
    given = tokenization.vocabulary_of(path)
    # That of a run which came to nothing does not count.
    start = (FLAGS.output_dir if holds_checkpoint(FLAGS.output_dir)
             else FLAGS.init_checkpoint)
    known = model_folder.pretraining_vocabulary(start) if start else None
    if known:
        model_folder.check_vocabulary(known, given, start)
    return tokenizer


def check_start() -> None:
    """Raises InputError where there is no model to start from; before long work."""
    folder, init = FLAGS.output_dir, FLAGS.init_checkpoint
    if holds_checkpoint(folder):
        return
    if not init and not (FLAGS.do_train and FLAGS.from_scratch):
        raise InputError(
            f"there is no model to start from: {folder} holds no checkpoint and no "
            "--init_checkpoint is given; give one"
            + (", or --from_scratch to train from random weights." if FLAGS.do_train
               else ", or train first (--do_train)."))
    if init:
        find_checkpoint(init)


def features_fingerprint(paths: Mapping[str, str], modules: Sequence[types.ModuleType],
                         **settings: Any) -> dict[str, Any]:
    """What a set's features depend on: the data, and how it is tokenized and cut.

    Args:
      paths: what a file of data is → its path.
      modules: the task's code.
      **settings: what else matters to the task.
    """
    import sentencepiece

    from albert_tf.finetuning import features
    from albert_tf.records import sequences
    from albert_tf.tokenization import (
        cleaning, sentencepiece_tokenizer, tokenizer as tokenization,
        wordpiece_tokenizer)

    return features.fingerprint_parts(
        {what: files.sha256(path) for what, path in {
            **paths, "vocabulary": FLAGS.spm_model_file or FLAGS.vocab_file}.items()},
        [*modules, sequences, sentencepiece_tokenizer, cleaning, tokenization,
         wordpiece_tokenizer],
        **settings, do_lower_case=FLAGS.do_lower_case,
        max_seq_length=FLAGS.max_seq_length, sentencepiece=sentencepiece.__version__)


def features_path(name: str) -> str:
    """Where the features of a set are kept."""
    return os.path.join(FLAGS.cached_dir or FLAGS.output_dir, f"{name}.tf_record")
