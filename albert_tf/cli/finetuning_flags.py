"""What the scripts of fine-tuning share: flags, and what they make of them.

As in cli/flags.py, TensorFlow is not imported here.
"""

import functools
import importlib.util
import os
import types
from typing import Any, Callable, Mapping, Optional, Sequence

from absl import flags, logging

from albert_tf import files
from albert_tf.jobs import parallel
from albert_tf.checkpoints import formats, tokenizer_files, vocabulary
from albert_tf.checkpoints.folders import folder_of, holds_checkpoint, is_of_run
from albert_tf.cli import flags as cli_flags, script
from albert_tf.config import AlbertConfig, CONFIG_FILE
from albert_tf.errors import InputError
from albert_tf.finetuning import model_folder
from albert_tf.finetuning.recipes import published_size, recipe_for
from albert_tf.finetuning.task import Settings
from albert_tf.tokenization.tokenizer import FullTokenizer, vocabulary_of
from albert_tf.training.memory import Sequences

FLAGS = flags.FLAGS


def define_flags(**defaults: Any) -> None:
    """Flags of the model, of devices, of the loop, and what all tasks have besides;
    the defaults are the task's."""
    cli_flags.define_model_flags()
    cli_flags.define_device_flags()
    cli_flags.define_training_flags(
        train_batch_size=32, eval_batch_size=8, optimizer="adamw",
        learning_rate=defaults["learning_rate"],
        save_checkpoints_steps=defaults["save_checkpoints_steps"])
    flags.DEFINE_string("vocab_file", None, "WordPiece vocabulary, one piece a line.")
    flags.DEFINE_string("spm_model_file", None, "SentencePiece model.")
    flags.DEFINE_bool("do_lower_case", True, "Whether to lower-case the text.")
    flags.DEFINE_bool(
        "strip_accents", None, "Whether to strip accents and other combining marks. "
        "Default: as the model's vocabulary was made.")
    flags.DEFINE_integer(
        "max_seq_length", defaults["max_seq_length"],
        "Longest sequence, in pieces; what is longer is cut.",
        lower_bound=8, upper_bound=cli_flags.MOST)
    flags.DEFINE_bool("do_train", defaults["do_train"], "Whether to train.")
    flags.DEFINE_bool(
        "do_eval", defaults["do_eval"], "Whether to evaluate: at each checkpoint of "
        "training, and the best one at the end.")
    flags.DEFINE_bool("do_predict", False,
                      "Whether to write predictions, by the best checkpoint.")
    flags.DEFINE_integer("predict_batch_size", 8, "Examples per batch of prediction.",
                         lower_bound=1, upper_bound=cli_flags.MOST)
    flags.DEFINE_bool(
        "from_scratch", False,
        "Train from random weights. Without it, and without --init_checkpoint or a "
        "checkpoint in --output_dir, the run stops.")
    flags.DEFINE_integer(
        "early_stopping", 0, "Stop after so many evaluations in a row without a better "
        "one; 0 never does.", lower_bound=0, upper_bound=cli_flags.MOST)
    flags.DEFINE_integer(
        "num_seeds", 1,
        "Train so many times, with seeds from --random_seed on, each in a folder of "
        "its own in --output_dir: small sets, and large models most of all, come out "
        "otherwise with each. seeds.json has median, best and spread; the best's "
        "checkpoint becomes that of --output_dir.", lower_bound=1, upper_bound=1000)
    flags.DEFINE_bool(
        "restart_on_failure", False,
        "Train again, with another seed and half the rate, up to three times, where "
        "the loss is no longer finite, or where from half of the steps on an "
        "evaluation is at chance: one class for all examples, say.")
    flags.DEFINE_bool(
        "recipe", False,
        "The paper's settings for the task (its appendix): dropout, batch size, rate, "
        "steps, warm-up and length; for xlarge, a rate of 5e-6, which it was reported "
        "to need. A flag that is given goes before.")
    cli_flags.define_teacher_flags("A model that was fine-tuned on the task", "labels")
    # A script that adopts this module's flags for its --help adopts those, too.
    flags.adopt_module_key_flags(cli_flags)
    flags.DEFINE_bool(
        "early_exit", False, "run_classifier.py: train a second head, which answers "
        "after any pass before the last (docs/EARLY_EXIT.md). A sequence can so stop "
        "once its answer is sure; heads that answer for each piece, or compare "
        "sequences, cannot stop one by one.")
    flags.DEFINE(
        cli_flags.Number(upper_bound=1), "exit_weight", 1.0,
        "What the exits' loss counts in what the encoder learns, beside the last pass' "
        "1; with 0 the encoder learns as without --early_exit.")
    flags.DEFINE(
        cli_flags.Number(below=1), "albert_dropout_prob", None,
        "Both dropout rates inside ALBERT, in place of the config's.")
    flags.DEFINE(cli_flags.Number(below=1), "dropout_prob", 0.1,
                 "Dropout rate of what the task's head gets.")
    flags.DEFINE_integer(
        "num_length_buckets", 8,
        "Sequences are padded to one of so many lengths, chosen to fit the data; 1 "
        "pads all to --max_seq_length, as the release does. Evaluation and prediction "
        "give the same either way; training sees every example as often, but in "
        "batches of like lengths.",
        lower_bound=1, upper_bound=64)
    flags.DEFINE_string("cached_dir", None,
                        "Folder of the features; default: --output_dir.")
    flags.DEFINE_integer("num_workers", 0,
                         "Processes that make features; 0: one for each core.",
                         lower_bound=0, upper_bound=parallel.MOST_PROCESSES)


def define_export_flags() -> None:
    flags.DEFINE_string(
        "export_dir", None, "Folder for a SavedModel of the best checkpoint.")
    flags.DEFINE_bool(
        "export_text", True,
        "Whether the SavedModel takes text, by tensorflow_text; else ids alone.")


def define_prediction_flags(all_probabilities: bool = True) -> None:
    flags.DEFINE_string(
        "prediction_file", None, "File for --do_predict in place of predictions.tsv in "
        "--output_dir: .tsv, .csv or .jsonl; the last two keep the texts as they are.")
    if all_probabilities:
        flags.DEFINE_bool("all_probabilities", False, "Write the probability of each "
                          "label among the predictions.")


def check_prediction_file(format_of: Callable[[str], str], *inputs: str) -> None:
    """Refuses a --prediction_file that could not be written, or is one of the flags
    `inputs`; `format_of` (tasks.tables) refuses names of other kinds."""
    path = FLAGS.prediction_file
    if not path:
        return
    if not FLAGS.do_predict:
        raise InputError("--prediction_file is for --do_predict: give that, or leave it "
                         "out.")
    format_of(path)
    if path.endswith(".gz"):
        raise InputError(f"--prediction_file={path}: is not compressed; leave .gz out.")
    given = {name: FLAGS[name].value for name in (
        *inputs, "spm_model_file", "vocab_file", "albert_config_file") if FLAGS[name].value}
    given.update((name, formats.folder_of_model(FLAGS[name].value)) for name in (
        "init_checkpoint", "teacher") if FLAGS[name].value)
    files.prepare_outputs({"--prediction_file": [path]}, {
        f"--{name}": [found] for name, found in given.items()})
    folder, name = os.path.split(os.path.realpath(path))
    if name != "predictions.tsv" and is_of_run(name) and (
            folder == os.path.realpath(FLAGS.output_dir or "")):
        raise InputError(f"--prediction_file={path}: a run keeps something else under "
                         "that name in --output_dir; give another.")


# Field of a recipe → its flag, where tasks agree.
_FLAG_OF_RECIPE = dict(
    albert_dropout="albert_dropout_prob", classifier_dropout="dropout_prob",
    batch_size="train_batch_size", learning_rate="learning_rate",
    max_seq_length="max_seq_length")


def use_recipe(name: str, **flag_of: str) -> None:
    """Sets flags that were not given to the values of a recipe (finetuning.recipes) for
    the model's size and version; `flag_of` are further fields → their flags."""
    # The length that the config is checked against is a recipe's, or the flag's.
    recipe = recipe_for(name, *published_size(model_config()))
    script.use_recipe(name, {
        flag: getattr(recipe, field)
        for field, flag in {**_FLAG_OF_RECIPE, **flag_of}.items()}, recipe.source)


def use_kept_task(names: Sequence[str]) -> None:
    """Takes flags that make up the task, where they were not given, from the task.json
    of output_dir."""
    folder = FLAGS.output_dir or ""
    kept = model_folder.read(folder) if holds_checkpoint(folder) else None
    if kept is None:
        return
    for name in names:
        if not FLAGS[name].present and name in kept.get("flags", {}):
            value = kept["flags"][name]
            try:
                FLAGS[name].value = (
                    None if value is None and FLAGS[name].default is None
                    else FLAGS[name].parser.parse(value))
            except (TypeError, ValueError) as error:
                raise InputError(
                    f"{os.path.join(folder, vocabulary.TASK_FILE)}: {name} is "
                    f"{value!r} ({error}); restore the file, or give --{name}."
                    ) from error
    if not (FLAGS.vocab_file or FLAGS.spm_model_file):
        copy = os.path.join(FLAGS.output_dir, kept["vocabulary"]["file"])
        FLAGS[kept.get("vocabulary_flag", "spm_model_file")].value = copy


def values(*names: str) -> dict[str, Any]:
    """The flags of these names, as they stand."""
    return {name: FLAGS[name].value for name in names}


def check_work(exits: bool = False) -> None:
    """Raises InputError where there is nothing to do, or --early_exit cannot be done;
    `exits` says whether the task's head could."""
    _check_early_exit(exits)
    can_export = "export_dir" in FLAGS
    if not (FLAGS.do_train or FLAGS.do_eval or FLAGS.do_predict
            or can_export and FLAGS.export_dir):
        raise InputError("nothing to do: give --do_train, --do_eval"
                         + (", --do_predict or --export_dir." if can_export
                            else " or --do_predict."))


def _check_early_exit(exits: bool) -> None:
    if FLAGS.early_exit and not exits:
        raise InputError(
            "--early_exit is for run_classifier.py, whose head gives a sequence one "
            "answer: this task's head answers for each piece or compares sequences, "
            "none of which can stop by itself; leave it out.")
    if FLAGS["exit_weight"].present and not FLAGS.early_exit:
        raise InputError("--exit_weight is for --early_exit: give that, or leave it "
                         "out.")
    folder = FLAGS.output_dir or ""
    kept = model_folder.read(folder) if holds_checkpoint(folder) else None
    if kept is None or FLAGS.early_exit == kept.get("flags", {}).get("early_exit", False):
        return
    raise InputError(
        f"--early_exit: the model in {folder} has no exit head; train one in another "
        "--output_dir." if FLAGS.early_exit else
        f"--noearly_exit: the model in {folder} has an exit head, and answers without "
        "exits all the same; leave the flag out.")


def _check_export_dir() -> None:
    """Refuses an export_dir that could not be written once all is trained."""
    folder = "export_dir" in FLAGS and FLAGS.export_dir
    if not folder:
        return
    if files.exists(folder):
        raise InputError(f"--export_dir={folder} is there already; choose another.")
    check_tensorflow_text()
    export = os.path.join(os.path.realpath(folder), "")
    for name in ("output_dir", "cached_dir"):
        # It will be there when the export comes.
        other = FLAGS[name].value
        if other and os.path.join(os.path.realpath(other), "").startswith(export):
            raise InputError(f"--export_dir={folder} is --{name} or holds it, but must "
                             "be a new folder; choose another.")
    files.make_directory(os.path.dirname(folder.rstrip("/")) or ".", "--export_dir")


def check_tensorflow_text() -> None:
    """Refuses an export with text that could not be made once all is trained."""
    wanted = "export_text" in FLAGS and FLAGS.export_text
    if wanted and not importlib.util.find_spec("tensorflow_text"):
        raise InputError(
            "--export_text needs tensorflow_text, which is not installed: pip install "
            "--no-deps tensorflow-text, of TensorFlow's version; or give "
            "--noexport_text for a SavedModel that takes ids.")


def _check_several_runs() -> None:
    """Refuses --num_seeds and --restart_on_failure where they cannot be done."""
    for name, given in (("num_seeds", FLAGS.num_seeds > 1),
                        ("restart_on_failure", FLAGS.restart_on_failure)):
        if given and not (FLAGS.do_train and FLAGS.do_eval):
            raise InputError(f"--{name} is for training, and compares evaluations: "
                             "give --do_train and --do_eval, or leave it out.")
        if given and FLAGS.distribution_strategy == "multi_worker_mirrored":
            raise InputError(
                f"--{name} trains on one machine; on several give each run its own "
                "--random_seed and --output_dir.")


def settings(num_train_steps: int, num_warmup_steps: int, kept: Sequence[str], *,
             data: Mapping[str, Optional[str]], options: Mapping[str, Any],
             feature_files: Mapping[str, str] = types.MappingProxyType({}),
             **task: Any) -> Settings:
    """The flags of every task as Settings, checked before any long work.

    Args:
      num_train_steps: the step at which training ends.
      num_warmup_steps: of linear warm-up.
      kept: flags that make up the task, for task.json.
      data: split → where its data are.
      options: for options.json, besides the options of the run.
      feature_files: split → the flag that names its file of features.
      **task: JSON values for task.json; `task` and `labels` must be those of later
        runs.
    """
    run = cli_flags.run_options(num_train_steps=num_train_steps)
    config = model_config()
    if FLAGS.early_exit and config.num_hidden_layers < 2:
        raise InputError("--early_exit needs two passes or more, but the config has "
                         "num_hidden_layers=1; leave it out.")
    # The shortest sequence there is: of the others' lengths more is known later.
    shortest = {"train_batch_size": Sequences(3, filled=1)} if FLAGS.do_train else {}
    cli_flags.check_memory(config, run, **shortest)
    made = tokenizer(config)
    check_start()
    _check_several_runs()
    cli_flags.check_teacher()
    _check_export_dir()
    flag = "spm_model_file" if FLAGS.spm_model_file else "vocab_file"
    return Settings(
        run, config, made, FLAGS[flag].value, cli_flags.make_strategy,
        num_warmup_steps=num_warmup_steps, num_lengths=FLAGS.num_length_buckets,
        features_dir=FLAGS.cached_dir or FLAGS.output_dir,
        export_dir="export_dir" in FLAGS and FLAGS.export_dir or "",
        check_memory=functools.partial(cli_flags.check_memory, config, run),
        data={split: path or "" for split, path in data.items()}, options=options,
        feature_files={split: (name, FLAGS[name].value or "")
                       for split, name in feature_files.items()},
        prediction_file="prediction_file" in FLAGS and FLAGS.prediction_file or "",
        all_probabilities="all_probabilities" in FLAGS and FLAGS.all_probabilities,
        teacher=FLAGS.teacher or "",
        kept={**task, "vocabulary_flag": flag, "vocabulary": made.keeps,
              "flags": values(*kept)},
        **values("do_train", "do_eval", "do_predict", "learning_rate", "optimizer",
                 "dropout_prob", "max_seq_length", "predict_batch_size", "num_workers",
                 "do_lower_case", "num_seeds", "restart_on_failure",
                 *cli_flags.TEACHER_NUMBERS))


def model_config() -> AlbertConfig:
    """The encoder's config: given, or kept with the model that the run starts from."""
    kept = os.path.join(FLAGS.output_dir or "", CONFIG_FILE)
    config = cli_flags.model_config([kept, *cli_flags.kept_configs()])
    rate = FLAGS.albert_dropout_prob
    if not FLAGS.do_train and files.exists(kept):
        # Dropout does not matter here, and may have come from a recipe.
        trained = AlbertConfig.from_json_file(kept)
        config = config.replace(
            hidden_dropout_prob=trained.hidden_dropout_prob,
            attention_probs_dropout_prob=trained.attention_probs_dropout_prob)
    elif rate is not None:
        config = config.replace(
            hidden_dropout_prob=rate, attention_probs_dropout_prob=rate)
    if FLAGS.max_seq_length > config.max_position_embeddings:
        raise InputError(
            f"--max_seq_length {FLAGS.max_seq_length} is over the config's "
            f"max_position_embeddings {config.max_position_embeddings}.")
    return config


def tokenizer(config: AlbertConfig) -> FullTokenizer:
    """The tokenizer of the vocabulary flags, checked against the model's."""
    if FLAGS.spm_model_file and FLAGS.vocab_file and FLAGS["vocab_file"].present:
        logging.info("--vocab_file is ignored, as --spm_model_file is given.")
    if not (FLAGS.spm_model_file or FLAGS.vocab_file):
        _use_vocabulary_beside(cli_flags.init_checkpoint())
    # That of a run which came to nothing does not count.
    start = (FLAGS.output_dir if holds_checkpoint(FLAGS.output_dir)
             else cli_flags.init_checkpoint())
    known = vocabulary.kept_beside(start) if start else None
    if FLAGS.strip_accents is None and known and FLAGS.vocab_file and (
            not FLAGS.spm_model_file):
        FLAGS.strip_accents = known.get("strip_accents", True)
    made = FullTokenizer(FLAGS.vocab_file, FLAGS.do_lower_case, FLAGS.spm_model_file,
                         strip_accents=FLAGS.strip_accents)
    path = FLAGS.spm_model_file or FLAGS.vocab_file
    if made.vocab_size != config.vocab_size:
        raise InputError(
            f"{path} has {made.vocab_size} pieces, but the config's vocab_size is "
            f"{config.vocab_size}; give the vocabulary that the model was made with.")
    if known:
        vocabulary.check(known, {**vocabulary_of(path), **made.keeps}, start)
    return made


def _use_vocabulary_beside(init: str) -> None:
    """Sets the flags of the vocabulary to the one beside the model to start from."""
    found = tokenizer_files.find(folder_of(init)) if init else None
    if found:
        name = "vocab_file" if found.word_piece else "spm_model_file"
        FLAGS[name].value = found.path
        if not FLAGS["do_lower_case"].present:
            FLAGS.do_lower_case = found.do_lower_case
        if FLAGS.strip_accents is None:
            FLAGS.strip_accents = found.strip_accents
        logging.info("The vocabulary is %s.", found.path)


def check_start() -> None:
    """Raises InputError where there is no model to start from; before long work."""
    folder, init = FLAGS.output_dir, cli_flags.init_checkpoint()
    if holds_checkpoint(folder):
        return
    if not init and not (FLAGS.do_train and FLAGS.from_scratch):
        raise InputError(
            f"there is no model to start from: {folder} holds no checkpoint and no "
            "--init_checkpoint is given; give one"
            + (", or --from_scratch to train from random weights." if FLAGS.do_train
               else ", or train first (--do_train)."))
    cli_flags.check_init_checkpoint()
