"""The flags that all fine-tuning scripts share, and the settings built from them.

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
from albert_tf.checkpoints import (
    formats, labels as label_names, tokenizer_files, vocabulary)
from albert_tf.checkpoints.checkpoint import Checkpoint, Vocabulary
from albert_tf.checkpoints.folders import (
    checkpoint_of, folder_of, holds_checkpoint)
from albert_tf.checkpoints.run_files import is_of_run
from albert_tf.cli import checks, flags as cli_flags, script
from albert_tf.config import AlbertConfig, CONFIG_FILE
from albert_tf.errors import InputError
from albert_tf.finetuning import model_folder
from albert_tf.finetuning.recipes import (
    NUM_EVALUATIONS, Recipe, published_size, recipe_for, recipe_for_data, sampled)
from albert_tf.finetuning.seeds import SEEDS_FILE
from albert_tf.finetuning.task import Settings
from albert_tf.tokenization import tokenizer_json
from albert_tf.tokenization.cleaning import Rules
from albert_tf.tokenization.tokenizer import FullTokenizer, vocabulary_of
from albert_tf.training.memory import Sequences

FLAGS = flags.FLAGS


# The names of the flags of steps and of warm-up: those of the original scripts.
_STEP_FLAGS = (("train_step", "warmup_step"), ("num_train_steps", "num_warmup_steps"))


def define_flags(train_step: int = 1000, warmup_step: int = 0,
                 num_train_epochs: Optional[float] = None, **defaults: Any) -> None:
    """Defines the flags of the model, the devices and the training loop, and those of
    all fine-tuning tasks; `defaults` are the task's. `num_train_epochs` is for a task
    whose runs have epochs by default."""
    cli_flags.define_model_flags()
    cli_flags.define_device_flags()
    cli_flags.define_training_flags(
        train_batch_size=32, eval_batch_size=8, optimizer="adamw",
        learning_rate=defaults["learning_rate"],
        save_checkpoints_steps=defaults["save_checkpoints_steps"])
    flags.DEFINE_string("vocab_file", None, "WordPiece vocabulary file, one token "
                        "per line.")
    flags.DEFINE_string("spm_model_file", None, "SentencePiece model file.")
    flags.DEFINE_bool("do_lower_case", True, "Lower-case the text.")
    flags.DEFINE_bool(
        "strip_accents", None, "Strip accents and other combining marks. Default: "
        "taken from the model's vocabulary.")
    flags.DEFINE_integer(
        "max_seq_length", defaults["max_seq_length"],
        "Maximum length of a sequence in tokens; longer ones are cut.",
        lower_bound=8, upper_bound=cli_flags.MOST)
    _define_steps(train_step, warmup_step, num_train_epochs)
    flags.DEFINE_bool("do_train", defaults["do_train"], "Train the model.")
    flags.DEFINE_bool(
        "do_eval", defaults["do_eval"], "Evaluate each checkpoint during training, and "
        "the best checkpoint at the end.")
    flags.DEFINE_bool("do_predict", False,
                      "Write the predictions of the best checkpoint.")
    flags.DEFINE_integer("predict_batch_size", 8, "Examples per prediction batch.",
                         lower_bound=1, upper_bound=cli_flags.MOST)
    flags.DEFINE_bool(
        "from_scratch", False,
        "Train from random weights. Without this flag, the run stops if it has neither "
        "--init_checkpoint nor a checkpoint in --output_dir.")
    flags.DEFINE_string(
        "metric", None, "Metric that chooses the best checkpoint, such as accuracy, "
        "macro_f1 or matthews. Default: the task's.")
    flags.DEFINE_integer(
        "early_stopping", 0, "Stop training after N consecutive evaluations without "
        "improvement; 0: never.", lower_bound=0, upper_bound=cli_flags.MOST)
    flags.DEFINE_integer(
        "num_seeds", 1,
        "Number of runs, seeded from --random_seed upward, each in its own folder in "
        "--output_dir, as results on small data vary with the seed. seeds.json lists "
        "median, best and spread; the best checkpoint is copied to --output_dir.",
        lower_bound=1, upper_bound=1000)
    flags.DEFINE_bool(
        "restart_on_failure", False,
        "If training diverges, or is still at chance level after half of the steps, "
        "retry up to three times with a new seed and half the learning rate.")
    flags.DEFINE_bool(
        "recipe", False,
        "Use the paper's settings for the task: dropout, batch size, learning rate, "
        "steps, warm-up and sequence length; for your own data, settings according to "
        "its size. Explicit flags override the recipe.")
    # Scripts that adopt this module's flags for --help adopt those of cli.flags, too.
    flags.adopt_module_key_flags(cli_flags)
    flags.DEFINE(
        checks.Number(below=1), "albert_dropout_prob", None,
        "Both dropout rates inside ALBERT; default: those of the config.")
    flags.DEFINE(checks.Number(below=1), "dropout_prob", 0.1,
                 "Dropout rate of the input of the task's head.")
    flags.DEFINE_integer(
        "num_length_buckets", 8,
        "Number of lengths, chosen to fit the data, to one of which each sequence is "
        "padded; 1: pad all to --max_seq_length, as in the original implementation. "
        "Evaluation and prediction do not depend on it. Training sees every example "
        "equally often, but groups batches by length.",
        lower_bound=1, upper_bound=64)
    flags.DEFINE_string("cached_dir", None,
                        "Folder for the features computed from the data; default: "
                        "--output_dir.")
    flags.DEFINE_integer("num_workers", 0,
                         "Number of processes that compute features; 0: one per CPU "
                         "core.",
                         lower_bound=0, upper_bound=parallel.MOST_PROCESSES)


def _define_steps(train_step: int, warmup_step: int, epochs: Optional[float]) -> None:
    steps, warmup = _STEP_FLAGS[epochs is not None]
    by_default = epochs is not None
    flags.DEFINE_integer(
        steps, 0 if by_default else train_step, "Number of training steps in total"
        + by_default * "; 0: given by --num_train_epochs" + ".",
        lower_bound=0 if by_default else 1, upper_bound=cli_flags.MOST)
    flags.DEFINE(checks.Number(), "num_train_epochs", epochs,
                 f"Number of passes over the training examples, instead of --{steps}.")
    flags.DEFINE_integer(
        warmup, -1 if by_default else warmup_step, "Number of steps of linear warm-up"
        + by_default * "; -1: given by --warmup_proportion" + ".",
        lower_bound=-1 if by_default else 0, upper_bound=cli_flags.MOST)
    flags.DEFINE(
        checks.Number(upper_bound=1), "warmup_proportion", 0.1 if by_default else None,
        f"Fraction of the training steps that are linear warm-up, instead of --{warmup}"
        + "; 0.1 with --num_train_epochs" * (not by_default) + ".")


def _step_flags() -> tuple[str, str]:
    """Returns the names of the script's flags of steps and of warm-up."""
    return next(names for names in _STEP_FLAGS if names[0] in FLAGS)


def _schedule() -> dict[str, Any]:
    """Returns the arguments of Settings on epochs and warm-up, and the number of steps,
    0 if it is given by the epochs."""
    steps, warmup = _step_flags()
    by_epochs = FLAGS["num_train_epochs"].present
    by_share = FLAGS["warmup_proportion"].present or (
        by_epochs and not FLAGS[warmup].present)
    given = {name: FLAGS[name].value for name in ("num_train_epochs", "warmup_proportion")
             if FLAGS[name].value is not None}
    return {**given, "num_train_steps": 0 if by_epochs else FLAGS[steps].value,
            "num_warmup_steps": -1 if by_share else FLAGS[warmup].value}


def define_export_flags() -> None:
    """Defines the flags of the SavedModel that a run exports."""
    flags.DEFINE_string(
        "export_dir", None, "Folder for a SavedModel of the best checkpoint.")
    flags.DEFINE_bool(
        "export_text", True,
        "Export a SavedModel that takes text, which needs tensorflow_text; "
        "--noexport_text: one that takes token ids.")


def define_prediction_flags(all_probabilities: bool = True) -> None:
    """Defines the flags of the file of predictions."""
    flags.DEFINE_string(
        "prediction_file", None, "File for the predictions of --do_predict: .tsv, .csv "
        "or .jsonl; .csv and .jsonl keep the texts unchanged. Default: predictions.tsv "
        "in --output_dir.")
    if all_probabilities:
        flags.DEFINE_bool("all_probabilities", False, "Add the probability of each "
                          "label to the predictions.")


def check_prediction_file(format_of: Callable[[str], str], *inputs: str) -> None:
    """Raises InputError if --prediction_file cannot be written, or is an input.

    Args:
      format_of: raises InputError for unknown file extensions (finetuning.tables).
      inputs: flags whose files must not be overwritten.
    """
    path = FLAGS.prediction_file
    if not path:
        return
    if not FLAGS.do_predict:
        raise InputError("--prediction_file needs --do_predict; add that flag, or "
                         "leave this one out.")
    format_of(path)
    if path.endswith(".gz"):
        raise InputError(f"--prediction_file={path}: compressed predictions are not "
                         "supported; leave .gz out.")
    sources = {f"--{name}": [FLAGS[name].value] for name in (
        *inputs, "spm_model_file", "vocab_file", "albert_config_file")
        if FLAGS[name].value}
    if FLAGS.init_checkpoint:
        sources["--init_checkpoint"] = formats.folders_of_models(FLAGS.init_checkpoint)
    files.prepare_outputs({"--prediction_file": [path]}, sources)
    folder, name = os.path.split(os.path.realpath(path))
    if name != "predictions.tsv" and is_of_run(
            name, ("classification", "race", "squad")) and (
            folder == os.path.realpath(FLAGS.output_dir or "")):
        raise InputError(f"--prediction_file={path}: the run writes a different file "
                         "of that name to --output_dir; choose another name.")


# Field of a recipe → its flag, for the fields whose flag is the same in all tasks.
_FLAG_OF_RECIPE = dict(
    albert_dropout="albert_dropout_prob", classifier_dropout="dropout_prob",
    batch_size="train_batch_size", learning_rate="learning_rate",
    max_seq_length="max_seq_length")


def use_recipe(name: str) -> None:
    """Sets flags that were not given to the values of a recipe (finetuning.recipes) for
    the model's size and version."""
    # This checks the config against --max_seq_length, which the recipe may change.
    _use(name, recipe_for(name, *published_size(model_config())))


def use_recipe_for_data(
        examples: Sequence[Any],
        length_of: Callable[[Any, FullTokenizer], int]) -> FullTokenizer:
    """Sets flags that were not given according to the training examples, and returns the
    tokenizer, for `settings`."""
    cli_flags.check_output_dir()
    if not FLAGS["max_seq_length"].present:
        FLAGS.max_seq_length = 8  # The recipe sets it; no config has fewer positions.
    config = model_config()
    its_tokenizer = tokenizer(config)
    _use("for your own data", recipe_for_data(
        len(examples), [length_of(example, its_tokenizer)
                        for example in sampled(examples)], config,
        FLAGS["train_batch_size"].present and FLAGS.train_batch_size))
    return its_tokenizer


def _use(name: str, recipe: Recipe) -> None:
    """Sets flags that were not given to those of a recipe. Epochs and shares override
    its steps."""
    steps, warmup = _step_flags()
    flag_of = {}
    if not (FLAGS["num_train_epochs"].present
            or FLAGS[steps].present and FLAGS[warmup].default < 0):
        flag_of["num_train_steps"] = steps
        if not FLAGS["warmup_proportion"].present:
            flag_of["warmup_steps"] = warmup
    script.use_recipe(name, {
        flag: getattr(recipe, field)
        for field, flag in {**_FLAG_OF_RECIPE, **flag_of}.items()
        if getattr(recipe, field) is not None}, recipe.source)


def use_kept_task(names: Sequence[str]) -> None:
    """Sets the flags `names`, which define the task, from output_dir's task.json unless
    they were given."""
    folder = FLAGS.output_dir or ""
    task = model_folder.read(folder) if holds_checkpoint(folder) else None
    if task is None:
        return
    for name in names:
        if not FLAGS[name].present and name in task.get("flags", {}):
            value = task["flags"][name]
            try:
                FLAGS[name].value = (
                    None if value is None and FLAGS[name].default is None
                    else FLAGS[name].parser.parse(value))
            except (TypeError, ValueError) as error:
                raise InputError(
                    f"{os.path.join(folder, vocabulary.TASK_FILE)}: {name} has the "
                    f"invalid value {value!r} ({error}). Restore the file, or give "
                    f"--{name}.") from error
    if not (FLAGS.vocab_file or FLAGS.spm_model_file):
        copy = os.path.join(FLAGS.output_dir, task["vocabulary"]["file"])
        FLAGS[task.get("vocabulary_flag", "spm_model_file")].value = copy


def chosen(task: Any) -> Any:
    """Returns the task with the metric of --metric. The flag is left open if it is the
    task's own."""
    result = task.chosen_by(FLAGS.metric) if FLAGS.metric else task
    if result is task:
        FLAGS.metric = None
    return result


def clean_labels() -> None:
    """Removes invisible characters from --labels, and checks it."""
    if FLAGS["labels"].present:
        FLAGS.labels = list(map(label_names.cleaned, FLAGS.labels))
        label_names.check_lines(FLAGS.labels, "--labels", "remove it")


def initial_model(head: str) -> Optional[Checkpoint]:
    """Returns the initial checkpoint if it has this head, else None."""
    init = cli_flags.init_checkpoint()
    try:
        checkpoint = formats.read(init) if init else None
    except InputError:  # The error is reported when the checkpoint is loaded.
        return None
    return checkpoint if checkpoint and head in checkpoint.heads else None


def initial_labels(head: str) -> tuple[str, ...]:
    """Returns the labels of the initial checkpoint if it has this head and names them,
    else ()."""
    labels = (model := initial_model(head)) and model.labels or ()
    return labels if label_names.named(labels) else ()


def check_labels(head: str, count: int) -> None:
    """Raises InputError if the model is used as it is, and its head has not `count`
    outputs."""
    folder = FLAGS.output_dir or ""
    source = folder if holds_checkpoint(folder) else cli_flags.init_checkpoint()
    if FLAGS.do_train or not source:
        return
    try:
        width = formats.read(source, head=head).heads.get(head, count)
    except InputError:  # The error is reported when the checkpoint is loaded.
        return
    if width != count:
        raise InputError(
            f"--labels: there are {count} labels ({', '.join(FLAGS.labels or [])}), "
            f"but the model in {source} has {width} outputs; give one label for each, "
            "in the order of the outputs.")


def values(*names: str) -> dict[str, Any]:
    """Returns the current values of these flags by name."""
    return {name: FLAGS[name].value for name in names}


def check_work() -> None:
    """Raises InputError if no work is asked for."""
    can_export = "export_dir" in FLAGS
    if not (FLAGS.do_train or FLAGS.do_eval or FLAGS.do_predict
            or can_export and FLAGS.export_dir):
        raise InputError("there is nothing to do: give --do_train, --do_eval"
                         + (", --do_predict or --export_dir." if can_export
                            else " or --do_predict."))
    _check_combinations()


def _check_combinations() -> None:
    """Raises InputError for flags that contradict others, and says which of the given
    ones have no effect."""
    old = "albert_hub_module_handle"
    if FLAGS.from_scratch and (FLAGS.init_checkpoint or FLAGS[old].value):
        raise InputError(
            "--from_scratch trains from random weights, but --"
            f"{'init_checkpoint' if FLAGS.init_checkpoint else old} gives weights to "
            "start from; leave one of the two out.")
    if FLAGS.do_train:
        checks.check_needs("early_stopping metric", FLAGS.do_eval, "--do_eval")
        for name, least, other, what in zip(
                _step_flags(), (1, 0), ("num_train_epochs", "warmup_proportion"),
                ("how long to train", "how long the warm-up is")):
            given = FLAGS[name].present and FLAGS[name].value >= least
            if given and FLAGS[other].present:
                raise InputError(f"--{name} and --{other} both say {what}; leave one of "
                                 "the two out.")
    checks.say_unused(
        "train_step warmup_step num_train_steps num_warmup_steps num_train_epochs "
        "warmup_proportion albert_dropout_prob dropout_prob early_stopping recipe "
        "from_scratch metric class_weights",
        FLAGS.do_train, "without --do_train")
    checks.say_unused("eval_batch_size", FLAGS.do_eval, "without --do_eval")
    checks.say_unused("predict_batch_size all_probabilities", FLAGS.do_predict,
                      "without --do_predict")
    checks.say_unused("export_text", "export_dir" in FLAGS and FLAGS.export_dir,
                      "without --export_dir")


def _check_export_dir() -> None:
    """Raises InputError now if the export would fail to write --export_dir later."""
    folder = "export_dir" in FLAGS and FLAGS.export_dir
    if not folder:
        return
    files.check_in_tensorflow(folder, "--export_dir")
    if files.exists(folder):
        raise InputError(f"--export_dir={folder} exists already; choose a different "
                         "folder.")
    check_tensorflow_text()
    export = os.path.join(os.path.realpath(folder), "")
    for name in ("output_dir", "cached_dir"):
        # The run creates these folders before it exports.
        other = FLAGS[name].value
        if other and os.path.join(os.path.realpath(other), "").startswith(export):
            raise InputError(f"--export_dir={folder} is --{name} or contains it, but "
                             "must be a new folder; choose a different one.")
    files.make_directory(os.path.dirname(folder.rstrip("/")) or ".", "--export_dir")


def check_tensorflow_text() -> None:
    """Raises InputError now if the export would later miss tensorflow_text."""
    wanted = "export_text" in FLAGS and FLAGS.export_text
    if wanted and not importlib.util.find_spec("tensorflow_text"):
        raise InputError(
            "--export_text needs tensorflow_text, which is not installed. Install the "
            "version that matches TensorFlow's (pip install --no-deps "
            "tensorflow-text), or give --noexport_text for a SavedModel that takes "
            "token ids.")


def _check_several_runs() -> None:
    """Raises InputError if --num_seeds or --restart_on_failure is not possible."""
    for name, active in (("num_seeds", FLAGS.num_seeds > 1),
                         ("restart_on_failure", FLAGS.restart_on_failure)):
        if active and not (FLAGS.do_train and FLAGS.do_eval):
            raise InputError(f"--{name} trains and compares evaluations; give "
                             "--do_train and --do_eval, or leave it out.")
        if active and FLAGS.distribution_strategy == "multi_worker_mirrored":
            raise InputError(
                f"--{name} trains on one machine only; on several, start each run with "
                "its own --random_seed and --output_dir.")


def settings(kept: Sequence[str], *,
             data: Mapping[str, Optional[str]], options: Mapping[str, Any],
             feature_files: Mapping[str, str] = types.MappingProxyType({}),
             known_tokenizer: Optional[FullTokenizer] = None, own_data: bool = False,
             **task: Any) -> Settings:
    """Builds the Settings from the flags of every task, and checks them before any long
    work.

    Args:
      kept: the flags that define the task, for task.json.
      data: split → the path of its data.
      options: values for options.json, in addition to the options of the run.
      feature_files: split → the flag that names its file of features.
      known_tokenizer: the tokenizer, if it was made before.
      own_data: whether a run has NUM_EVALUATIONS evaluations unless
        --save_checkpoints_steps is given.
      **task: JSON values for task.json; later runs must have the same `task` and
        `labels`.
    """
    schedule = _schedule()
    run = cli_flags.run_options(num_train_steps=schedule.pop("num_train_steps"))
    cli_flags.check_init_checkpoint()
    if not FLAGS.do_train:
        check_start()  # A model is missing, not a config.
    config = model_config()
    # The shortest possible sequence: the real lengths are checked once they are known.
    shortest = {"train_batch_size": Sequences(3, filled=1)} if FLAGS.do_train else {}
    cli_flags.check_memory(config, run, **shortest)
    its_tokenizer = known_tokenizer or tokenizer(config)
    check_start()
    _check_several_runs()
    _check_export_dir()
    for name, folder in (("cached_dir", FLAGS.cached_dir), *(
            (name, os.path.dirname(FLAGS[name].value or "") or ".")
            for name in feature_files.values())):
        files.check_folder(folder or ".", f"--{name}")
    flag = "spm_model_file" if FLAGS.spm_model_file else "vocab_file"
    return Settings(
        run, config, its_tokenizer, FLAGS[flag].value, cli_flags.make_strategy,
        **schedule, num_lengths=FLAGS.num_length_buckets,
        features_dir=FLAGS.cached_dir or FLAGS.output_dir,
        export_dir="export_dir" in FLAGS and FLAGS.export_dir or "",
        check_memory=functools.partial(cli_flags.check_memory, config, run),
        data={split: path or "" for split, path in data.items()}, options=options,
        feature_files={split: (name, FLAGS[name].value or "")
                       for split, name in feature_files.items()},
        prediction_file="prediction_file" in FLAGS and FLAGS.prediction_file or "",
        all_probabilities="all_probabilities" in FLAGS and FLAGS.all_probabilities,
        num_evaluations=NUM_EVALUATIONS * (
            own_data and FLAGS.do_train and FLAGS.do_eval
            and not FLAGS["save_checkpoints_steps"].present),
        kept={**task, "vocabulary_flag": flag, "vocabulary": its_tokenizer.keeps,
              "flags": values(*kept)},
        **values("do_train", "do_eval", "do_predict", "learning_rate", "optimizer",
                 "dropout_prob", "max_seq_length", "predict_batch_size", "num_workers",
                 "do_lower_case", "num_seeds", "restart_on_failure"))


def model_config() -> AlbertConfig:
    """Returns the encoder's config: the one given, or that of the model that the run
    starts from."""
    path = os.path.join(FLAGS.output_dir or "", CONFIG_FILE)
    config = cli_flags.model_config([path, *cli_flags.kept_configs()])
    rate = FLAGS.albert_dropout_prob
    if not FLAGS.do_train and files.exists(path):
        # Dropout is not used without training. Training may have taken it from a
        # recipe, so that the flags do not show it.
        trained = AlbertConfig.from_json_file(path)
        config = config.replace(
            hidden_dropout_prob=trained.hidden_dropout_prob,
            attention_probs_dropout_prob=trained.attention_probs_dropout_prob)
    elif rate is not None:
        config = config.replace(
            hidden_dropout_prob=rate, attention_probs_dropout_prob=rate)
    if FLAGS.max_seq_length > config.max_position_embeddings:
        raise InputError(
            f"--max_seq_length={FLAGS.max_seq_length} exceeds the config's "
            f"max_position_embeddings of {config.max_position_embeddings}; give a "
            "smaller length.")
    return config


def tokenizer(config: AlbertConfig) -> FullTokenizer:
    """Returns the tokenizer that the vocabulary flags name, checked against the
    model's."""
    if FLAGS.spm_model_file and FLAGS.vocab_file and FLAGS["vocab_file"].present:
        logging.info("--vocab_file is ignored because --spm_model_file is given.")
    stored = None
    if not (FLAGS.spm_model_file or FLAGS.vocab_file):
        stored = _use_vocabulary_beside(cli_flags.init_checkpoint())
    # A run that saved no checkpoint does not bind the folder to its vocabulary.
    start = (FLAGS.output_dir if holds_checkpoint(FLAGS.output_dir)
             else cli_flags.init_checkpoint())
    known = vocabulary.kept_beside(start) if start else None
    path = FLAGS.spm_model_file or FLAGS.vocab_file
    if FLAGS.strip_accents is None and known and path and (
            path == FLAGS.vocab_file or tokenizer_json.is_file(path)):
        FLAGS.strip_accents = known.get("strip_accents", True)
    if not stored and path:
        cli_flags.lower_as_stated(path)
    rules = stored.rules if stored else known and Rules.of(
        known.get("rules", {}), start)
    result = FullTokenizer(FLAGS.vocab_file, FLAGS.do_lower_case, FLAGS.spm_model_file,
                           strip_accents=FLAGS.strip_accents, rules=rules)
    if FLAGS["strip_accents"].present and not known:
        result.check_keeps_accents()
    if result.vocab_size != config.vocab_size:
        raise InputError(
            f"{path} has {result.vocab_size} tokens, but the config's vocab_size is "
            f"{config.vocab_size}; give the vocabulary that the model was trained "
            "with.")
    if known:
        vocabulary.check(known, {**vocabulary_of(path), **result.keeps}, start)
    return result


def _use_vocabulary_beside(init: str) -> Optional[Vocabulary]:
    """Sets the vocabulary flags to the vocabulary stored beside the initial model, and
    returns it."""
    stored = tokenizer_files.find(folder_of(init)) if init else None
    if stored:
        name = "vocab_file" if stored.word_piece else "spm_model_file"
        FLAGS[name].value = stored.path
        if not FLAGS["do_lower_case"].present:
            FLAGS.do_lower_case = stored.do_lower_case
        if FLAGS.strip_accents is None:
            FLAGS.strip_accents = stored.strip_accents
        logging.info("Using the vocabulary %s.", stored.path)
    return stored


def check_start() -> None:
    """Raises InputError if there is no model to start from, before any long work."""
    folder, init = FLAGS.output_dir, cli_flags.init_checkpoint()
    if holds_checkpoint(folder):
        if not FLAGS.resume_from and not files.exists(os.path.join(folder, SEEDS_FILE)):
            checkpoint_of(folder, best=not FLAGS.do_train, to_train=FLAGS.do_train)
        return
    if not init and not (FLAGS.do_train and FLAGS.from_scratch):
        raise InputError(
            f"there is no model to start from: {folder} has no checkpoint, and "
            "--init_checkpoint is not given; give one"
            + (", or --from_scratch to train from random weights." if FLAGS.do_train
               else ", or train first (--do_train)."))
    cli_flags.check_init_checkpoint()
