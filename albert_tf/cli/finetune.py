"""Fine-tuning from options: what the scripts of all tasks and `albert_tf.finetune` do.

    values ─► task (its Command), config, tokenizer ─► Settings ─► course.fine_tune

As in cli/flags.py, `values` are flags, and TensorFlow is not imported here.
"""

import dataclasses
import functools
import math
import os
from typing import Any, Mapping, Optional, Sequence

from absl import flags, logging

from albert_tf import files
from albert_tf.checkpoints import (
    labels as label_names, tokenizer_files, vocabulary)
from albert_tf.checkpoints.folders import folder_of, holds_checkpoint, is_of_run
from albert_tf.cli import flags as cli_flags, script
from albert_tf.cli.define import (
    Values, check_needs, define, options_in, take, use_recipe)
from albert_tf.config import AlbertConfig, CONFIG_FILE
from albert_tf.errors import InputError
from albert_tf.finetuning.command import Command
from albert_tf.finetuning.common import written_format_of
from albert_tf.finetuning.course import fine_tune
from albert_tf.finetuning.recipes import (
    NUM_EVALUATIONS, published_size, recipe_for, recipe_for_data)
from albert_tf.finetuning.task import Settings
from albert_tf.options import given, option, options_of
from albert_tf.tokenization.cleaning import Rules
from albert_tf.tokenization.tokenizer import FullTokenizer, vocabulary_of
from albert_tf.training.devices import DeviceOptions, make_strategy

flags.disclaim_key_flags()


# ---- options -----------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class StartOptions:
    """The start of a run, and settings from elsewhere."""

    vocab_file: Optional[str] = option(
        None, "WordPiece vocabulary file, one token per line.")
    spm_model_file: Optional[str] = option(None, "SentencePiece model file.")
    strip_accents: Optional[bool] = option(
        None, "Strip accents and other combining marks. Default: taken from the model's "
        "vocabulary.", kept=True)
    albert_dropout_prob: Optional[float] = option(
        None, "Both dropout rates inside ALBERT; default: those of the config.", below=1,
        needs="do_train")
    recipe: bool = option(
        False, "Use the paper's settings for the task: dropout, batch size, learning "
        "rate, steps, warm-up and sequence length; for your own data, settings according "
        "to its size. Explicit flags override the recipe.", needs="do_train")
    metric: Optional[str] = option(
        None, "Metric that chooses the best checkpoint, such as accuracy, macro_f1 or "
        "matthews. Default: the task's.", kept=True, needs="do_train",
        only_with="do_eval")
    cached_dir: Optional[str] = option(
        None, "Folder for the features computed from the data; default: --output_dir.")


_IN_STEPS, _IN_EPOCHS = "train_step warmup_step", "num_train_steps num_warmup_steps"


@dataclasses.dataclass(frozen=True)
class Length:
    """How long a run trains, by default in steps or in epochs."""

    train_step: int = option(
        1000, "Number of training steps in total.", least=1, needs="do_train")
    warmup_step: int = option(
        0, "Number of steps of linear warm-up.", needs="do_train")
    num_train_steps: int = option(
        0, "Number of training steps in total; 0: given by --num_train_epochs.",
        needs="do_train")
    num_warmup_steps: int = option(
        -1, "Number of steps of linear warm-up; -1: given by --warmup_proportion.",
        least=-1, needs="do_train")
    num_train_epochs: Optional[float] = option(
        None, "Number of passes over the training examples, instead of a number of "
        "steps.", needs="do_train")
    warmup_proportion: Optional[float] = option(
        None, "Fraction of the training steps that are linear warm-up, instead of a "
        "number of them; 0.1 with --num_train_epochs.", most=1, needs="do_train")


def define_options(command: type[Command], values: Values = flags.FLAGS,
                   **defaults: Any) -> None:
    """Defines the options of a task's runs; `defaults` replace the task's."""
    without = _IN_STEPS if command.in_epochs else _IN_EPOCHS
    define(
        *cli_flags.OF_RUN, StartOptions, cli_flags.ExportOptions, Length, Settings,
        *command.options, values=values,
        without=f"init_from_group0 {without} {command.without}",
        **{"eval_batch_size": 8, "from_scratch": False, **command.defaults, **defaults})
    if values is flags.FLAGS:
        define(cli_flags.OldOptions)
    for name, more in command.helps.items():
        values[name].help += more


def first_flags(command: type[Command]) -> str:
    """Returns the flags that --help describes first."""
    steps, warmup = (_IN_EPOCHS if command.in_epochs else _IN_STEPS).split()
    return (f"{command.first} output_dir init_checkpoint do_train do_eval do_predict "
            f"recipe max_seq_length train_batch_size learning_rate {steps} "
            f"num_train_epochs {warmup} "
            "save_checkpoints_steps metric early_stopping num_seeds dtype "
            "gradient_accumulation_steps distribution_strategy tpu export_dir")


def _length(values: Values) -> Sequence[flags.Flag]:
    """Returns the flags that say how long a run trains: the number of steps, those of
    warm-up, the number of epochs and the share of warm-up."""
    return [values[option.name] for option in options_of(Length)
            if option.name in values]


# ---- a run -------------------------------------------------------------------


def run(kind: type[Command], values: Values = flags.FLAGS, by_data: bool = False,
        **settings: Any) -> None:
    """Trains, evaluates, predicts and exports.

    Args:
      by_data: whether the data alone give what is left open, and no folder's task.json,
        as for `albert_tf.finetune`.
      settings: further fields of Settings.
    """
    command = kind(values)
    # 1. Check what can be checked without the data.
    if not by_data:
        cli_flags.use_old_flags()
        _use_kept_task(command)
    _check(command)
    # 2. Define the task, and apply the recipe.
    own_data = by_data or command.own_data
    task, tokenizer = command.task(), None
    if values.metric and (chosen := task.chosen_by(values.metric)) is not task:
        task = chosen
    else:
        values.metric = None  # The flag is left open if it is the task's own.
    if values.recipe and values.do_train:
        tokenizer = _use_recipe(command, task, own_data)
        task = dataclasses.replace(task, max_seq_length=values.max_seq_length)
    for name, value in command.chosen(task).items():
        values[name].value = value
    # 3. Build the settings.
    complete = _settings(
        command, task, tokenizer, num_evaluations=NUM_EVALUATIONS * bool(
            own_data and values.do_train and values.do_eval
            and not values["save_checkpoints_steps"].present), **settings)
    fine_tune(task, complete, functools.partial(_export, command, task, complete))


def _use_kept_task(command: Command) -> None:
    """Sets the options that define the task from output_dir's task.json unless they are
    given."""
    values, folder = command.values, command.values.output_dir
    task = vocabulary.task_settings(folder) if holds_checkpoint(folder) else {}
    take(values, (each for each in options_in(values) if each.kept), task.get("flags", {}))
    if "vocabulary" in task and not (values.vocab_file or values.spm_model_file):
        copy = os.path.join(folder, task["vocabulary"]["file"])
        values[task.get("vocabulary_flag", "spm_model_file")].value = copy


def _check(command: Command) -> None:
    """Raises InputError for options that contradict each other, for data that are not
    given, and for a --prediction_file of an unknown format, or that the run writes.
    Removes invisible characters from --labels."""
    values = command.values
    if not (values.do_train or values.do_eval or values.do_predict or values.export_dir):
        raise InputError("there is nothing to do: give --do_train, --do_eval, "
                         "--do_predict or --export_dir.")
    steps, warmup, epochs, share = _length(values)
    both = [(one.name, other.name) for one, other, least in (
        (steps, epochs, 1), (warmup, share, 0))
            if values.do_train and one.present and one.value >= least and other.present]
    if values.from_scratch and values.init_checkpoint:
        both.append(("from_scratch", "init_checkpoint"))
    for one, other in both:
        raise InputError(f"--{one} and --{other} exclude each other; leave one of the "
                         "two out.")
    check_needs(values)
    names = [*command.data_options.values()]
    for use, name in zip(("do_train", "do_eval", "do_predict"), (*names[:2], names[-1])):
        if values[use].value and values[name].value is None:
            raise InputError(f"give --{name}, the file for --{use}.")
    if "labels" in values and values["labels"].present:
        values.labels = list(map(label_names.cleaned, values.labels))
        label_names.check_lines(values.labels, "--labels", "remove it")
    if path := "prediction_file" in values and values.prediction_file:
        # That it is no file of the examples is checked when these are read.
        written_format_of(path)
        folder, name = os.path.split(os.path.realpath(path))
        if name != "predictions.tsv" and folder == os.path.realpath(
                values.output_dir) and is_of_run(
                name, [type(command).__module__.split(".")[-2]]):
            raise InputError(f"--prediction_file={path} is a file of the run; choose "
                             "another name.")


def _settings(command: Command, task: Any, tokenizer: Optional[FullTokenizer],
              **fields: Any) -> Settings:
    """Returns the settings, checked before any long work."""
    values = command.values
    steps, warmup, epochs, share = _length(values)
    options = cli_flags.run_options(
        values, num_train_steps=0 if epochs.present else steps.value)
    config = model_config(values)
    tokenizer = tokenizer or its_tokenizer(values, config)
    if values.distribution_strategy == "multi_worker_mirrored" and values.num_seeds > 1:
        raise InputError("--num_seeds trains on one machine only; on several, start each "
                         "run with its own --random_seed and --output_dir.")
    if values.export_dir:
        script.check_packages(*["tensorflow_text"] * values.export_text)
        files.check_in_tensorflow(values.export_dir, "--export_dir")
        files.check_new(values.export_dir, "--export_dir")
    features = {split: os.path.join(values.cached_dir or values.output_dir, split)
                for split in command.data_options}
    features |= {split: path for split, name in command.feature_options.items()
                 if (path := values[name].value)}
    flag = "spm_model_file" if values.spm_model_file else "vocab_file"
    kept = {each.name: values[each.name].value for each in options_in(values)
            if each.kept}
    names = ("learning_rate", "optimizer", "num_length_buckets", "warmup_step")
    return given(
        Settings, values, run=options, config=config, tokenizer=tokenizer,
        vocabulary=values[flag].value,
        make_strategy=functools.partial(make_strategy, given(DeviceOptions, values)),
        num_warmup_steps=-1 if share.present or epochs.present and (
            not warmup.present) else warmup.value,
        **{each.name: each.value for each in (epochs, share) if each.value is not None},
        export_dir=values.export_dir or "",
        check_memory=functools.partial(
            cli_flags.check_memory, values, config, options.step),
        data={split: values[name].value or ""
              for split, name in command.data_options.items()},
        options={**kept, **{name: values[name].value for name in names
                            if name in values}},
        features=features, **fields,
        kept={**command.kept(task), "vocabulary_flag": flag,
              "vocabulary": tokenizer.keeps, "flags": kept})


def _export(command: Command, task: Any, settings: Settings, model: Any,
            metrics: Mapping[str, float], step: int) -> None:
    from albert_tf.serving.export import export, text_of

    values = command.values
    least = "threshold_to_export" in values and values.threshold_to_export
    value = metrics.get(task.main_metric, math.nan)
    if least and value < least:
        logging.info("Not exported: %s is %.4f, below --threshold_to_export=%g.",
                     task.main_metric, value, least)
        return
    labels = getattr(task, "labels", ())
    text = {**vars(task), "task": task, "labels": labels, "max_seq_length": values.max_seq_length,
            **command.text(task, settings, step)}
    export(model, model.head, values.export_dir, labels, values.dtype,
           text_of(model.head, values.export_text and settings.tokenizer, **text),
           text.get("threshold"), settings=settings.kept)


# ---- the model to start from ----------------------------------------------


def model_config(values: Values) -> AlbertConfig:
    """Returns the encoder's config: the one given, or that of the model that the run
    starts from."""
    config = cli_flags.model_config(values)
    path = os.path.join(values.output_dir, CONFIG_FILE)
    rates = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"),
                          values.albert_dropout_prob)
    if not values.do_train and files.exists(path):
        # Without effect here, but kept; training may have taken it from a recipe.
        trained = AlbertConfig.from_json_file(path)
        rates = {name: getattr(trained, name) for name in rates}
    if None not in rates.values():
        config = config.replace(**rates)
    if values.max_seq_length > config.max_position_embeddings:
        raise InputError(
            f"--max_seq_length={values.max_seq_length} exceeds the config's "
            f"max_position_embeddings of {config.max_position_embeddings}; give a "
            "smaller length.")
    return config


def its_tokenizer(values: Values, config: AlbertConfig) -> FullTokenizer:
    """Returns the tokenizer that the options name, or that stands beside the initial
    model, checked against the model's; sets the options accordingly."""
    init, path = values.init_checkpoint, values.spm_model_file or values.vocab_file
    stored = tokenizer_files.find(folder_of(init)) if init and not path else None
    lower = cli_flags.lower_case(values)
    if stored:
        path = stored.vocabulary_path
        values["spm_model_file" if stored.uses_sentencepiece else "vocab_file"].value = path
        lower = stored.do_lower_case if lower is None else lower
        logging.info("Using the vocabulary %s.", path)
    # A run that saved no checkpoint does not bind the folder to its vocabulary.
    start = values.output_dir if holds_checkpoint(values.output_dir) else init
    known = vocabulary.kept_beside(start) if start else {}
    keeps = stored.keeps if stored else known
    if values.strip_accents is None:
        values.strip_accents = keeps.get("strip_accents")
    result = FullTokenizer(
        values.vocab_file, lower, values.spm_model_file, values.strip_accents,
        Rules.of(keeps.get("rules", {}), start))
    values.do_lower_case = result.do_lower_case
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


# ---- recipes -----------------------------------------------------------------


def _use_recipe(command: Command, task: Any, own_data: bool) -> Optional[FullTokenizer]:
    """Sets options that were not given to those of the task's recipe, or of one for the
    training examples, whose tokenizer is returned. Epochs and shares override steps."""
    values, tokenizer = command.values, None
    if own_data and not values["max_seq_length"].present:
        values.max_seq_length = 8  # The recipe sets it; no config has fewer positions.
    config = model_config(values)
    if own_data:
        tokenizer = its_tokenizer(values, config)
        path = values[command.data_options["train"]].value
        examples = task.read(path, "train").examples
        some = examples[::max(1, len(examples) // 1000)]
        # Questions keep their length: the passages are divided.
        lengths = [task.length_of(example, tokenizer) for example in some
                   ] if command.own_data else [values["max_seq_length"].default]
        name, recipe = "for your own data", recipe_for_data(
            len(examples), lengths, config,
            values["train_batch_size"].present and values.train_batch_size)
    else:
        name = command.recipe(task, config)
        recipe = recipe_for(name, *published_size(config))
    field_of = dict(
        albert_dropout_prob="albert_dropout", dropout_prob="classifier_dropout",
        train_batch_size="batch_size", learning_rate="learning_rate",
        max_seq_length="max_seq_length")
    steps, warmup, epochs, share = _length(values)
    if not (epochs.present or steps.present and warmup.default < 0):
        field_of[steps.name] = "num_train_steps"
        if not share.present:
            field_of[warmup.name] = "warmup_steps"
    use_recipe(name, {option: value for option, field in field_of.items()
                      if (value := getattr(recipe, field)) is not None},
               recipe.source, values)
    return tokenizer
