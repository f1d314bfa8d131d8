"""Fine-tuning from Python, on lists, pandas or `datasets`: the course of run_classifier.py,
run_tagger.py and run_squad.py with their own data, without flags.

    rows ─► <output_dir>/finetune_data/train.jsonl ─► the task's reader ─► course
"""

import contextlib
import dataclasses
import os
from typing import Any, Mapping, NamedTuple, Optional, Sequence

from absl import logging

from albert_tf import files
from albert_tf.checkpoints import formats, tokenizer_files
from albert_tf.checkpoints.checkpoint import LABEL_THRESHOLD, Vocabulary
from albert_tf.checkpoints.run_files import check_run_folder, claim_run_folder
from albert_tf.config import DTYPES, AlbertConfig
from albert_tf.errors import InputError
from albert_tf.finetuning import recipes
from albert_tf.finetuning.course import fine_tune
from albert_tf.finetuning.task import Settings
from albert_tf.from_python import tasks
from albert_tf.from_python.rows import Rows
from albert_tf.from_python.tasks import Limits, check
from albert_tf.jobs import parallel
from albert_tf.serving.predict import Model, load
from albert_tf.training import devices, memory
from albert_tf.training.callbacks import Callback, checked_callbacks
from albert_tf.training.options import RunOptions, StepOptions, check_batch_sizes

_NUM_LENGTHS = 8


def finetune(model: str, train: Any, dev: Any = None, *, output_dir: str,
             task: str = "classify", text: Optional[str] = None,
             text_pair: Optional[str] = None, label: Optional[str] = None,
             labels: Optional[Sequence[str]] = None, regression: bool = False,
             multi_label: bool = False, label_threshold: float = LABEL_THRESHOLD,
             num_train_epochs: Optional[float] = None,
             learning_rate: Optional[float] = None,
             train_batch_size: Optional[int] = None,
             max_seq_length: Optional[int] = None, warmup_proportion: float = 0.1,
             metric: str = "", class_weights: str | Mapping[str, float] = "",
             probabilities: Optional[str] = None,
             early_stopping: int = 0, save_checkpoints_steps: int = 0,
             eval_batch_size: int = 32, gradient_accumulation_steps: int = 1,
             dropout_prob: float = 0.1, dtype: str = "float32",
             random_seed: int = 12345, callbacks: Sequence[Callback] = (),
             **options: Any) -> Model:
    """Fine-tunes a model to classify texts, to predict numbers, to tag words or to answer
    questions, and returns the best checkpoint as `albert_tf.load` does.

        model = albert_tf.finetune(
            "albert-base-v2", [("A fine film.", "good"), ("Dull.", "bad")],
            output_dir="runs/reviews")
        model.predict("A fine film.")["label"]

        model = albert_tf.finetune(
            "albert-base-v2", [(["Ada", "writes"], ["B-PER", "O"])], task="tag",
            output_dir="runs/names")

    It does what run_classifier.py with --task_name=custom, run_tagger.py or run_squad.py
    does with --recipe, and writes the same files; arguments that are not listed have the
    names of their flags. The same call continues a run that was stopped, by Ctrl-C for
    example, which raises KeyboardInterrupt.

    Args:
      model: the model to start from, as for `albert_tf.load`.
      train: the training examples: a list of tuples or dicts, a dict of columns, a
        pandas DataFrame, a Dataset of `datasets`, or the path of a file that the script
        reads. The columns by task:

        * classify: (text, label), or (text, text_pair, label).
        * tag: (tokens, tags), lists of words and of tags, or `ner_tags` instead of
          `tags`; or dicts of text and entities, as in JSON lines for run_tagger.py.
        * answer: (question, context, answers), where answers are
          {"text": ["Ada"], "answer_start": [17]} in characters; dicts may have an id.
      dev: likewise, the examples to evaluate on, about ten times; None: none, and the
        last checkpoint is the result.
      output_dir: the folder of the run.
      task: "classify", "tag" or "answer", as in `Model.tasks`.
      text, text_pair, label: the names of the columns, by default those above; text_pair
        is that of second texts, None without. With tuples, they are only the names in
        files.
      labels: the labels, or tags, in the order of the outputs; default: those that a
        Dataset names (ClassLabel), or those of the training examples, sorted.
      regression: whether labels are numbers to predict.
      multi_label: whether an example has any number of labels: a list of them.
      num_train_epochs, learning_rate, train_batch_size, max_seq_length: default: by the
        number and length of the training examples (recipes.recipe_for_data); the length
        for questions is 384.
      class_weights: "balanced", or label → weight (classification.weights).
      probabilities: the name of a column of dicts label → probability, which training
        examples may have and learn in place of the label (docs/DISTILLATION.md).
      callbacks: functions that get step, metrics and checkpoint (training.callbacks).
      **options: further flags of run_tagger.py (scheme, split_words, doc_stride)
        or run_squad.py (version_2_with_negative, doc_stride, max_query_length,
        n_best_size, max_answer_length, start_n_top, end_n_top, answer_language).

    Raises:
      InputError: for examples, a model or a folder that do not fit; it names the row,
        counted from 1, and arguments as the flags of their names.
      DivergenceError: if the training diverges.
    """
    # 1. Check the arguments, and find the model.
    training = _Training.checked(
        num_train_epochs, learning_rate, train_batch_size, max_seq_length,
        warmup_proportion, metric, early_stopping, save_checkpoints_steps,
        eval_batch_size, gradient_accumulation_steps, dropout_prob, dtype, random_seed,
        checked_callbacks(callbacks))
    given = tasks.Arguments(text, text_pair, regression, multi_label, label_threshold,
                            class_weights, probabilities, label, labels, options).checked(task)
    for name in ("metric", "early_stopping"):
        if getattr(training, name) and dev is None:
            raise InputError(f"--{name} has an effect only with examples to evaluate on; "
                             "give dev, too, or leave it out.")
    output_dir = os.fspath(output_dir)
    start = _start(formats.located(os.fspath(model)), output_dir)
    # 2. Write the rows to the folder, define the task, and train as the script does.
    folder = tasks.FOLDERS[task]
    check_run_folder(output_dir, folder)
    files.make_directory(output_dir, "--output_dir")
    claim_run_folder(output_dir, folder)
    columns = tasks.columns_of(task, given)
    sets = {split: Rows(split, data, columns, output_dir) for split, data in (
        ("train", train), ("dev", dev)) if data is not None or split == "train"}
    with contextlib.ExitStack() as errors:
        for rows in sets.values():
            errors.enter_context(rows.named())
            rows.write()
        plan = tasks.PLANS[task](
            {split: rows.path for split, rows in sets.items()}, sets["train"].classes,
            given)
        fine_tune(*_prepared(plan, training, start, output_dir, dev is not None))
    return load(output_dir)


_LIMITS = {
    "num_train_epochs": Limits(float, 1e-6), "learning_rate": Limits(float, 0, 1e3),
    "train_batch_size": Limits(int, 1), "max_seq_length": Limits(int, 8),
    "warmup_proportion": Limits(float, 0, 1), "early_stopping": Limits(int, 0),
    "save_checkpoints_steps": Limits(int, 0), "eval_batch_size": Limits(int, 1),
    "gradient_accumulation_steps": Limits(int, 1),
    "dropout_prob": Limits(float, 0, 0.999), "dtype": tuple(DTYPES),
    "random_seed": Limits(int, 0)}
_BY_THE_DATA = ("num_train_epochs", "learning_rate", "train_batch_size", "max_seq_length")


class _Training(NamedTuple):
    """The arguments of `finetune` that all tasks share."""

    num_train_epochs: Optional[float]
    learning_rate: Optional[float]
    train_batch_size: Optional[int]
    max_seq_length: Optional[int]
    warmup_proportion: float
    metric: str
    early_stopping: int
    save_checkpoints_steps: int
    eval_batch_size: int
    gradient_accumulation_steps: int
    dropout_prob: float
    dtype: str
    random_seed: int
    callbacks: Sequence[Callback]

    @classmethod
    def checked(cls, *values: Any) -> "_Training":
        """Returns the arguments. Raises InputError if one cannot be used."""
        given = cls(*(value.item() if hasattr(value, "item") else value  # NumPy's
                      for value in values))
        for name, limits in _LIMITS.items():
            value = getattr(given, name)
            if value is not None or name not in _BY_THE_DATA:
                check(name, value, limits)
        return given


class _Start(NamedTuple):
    """The model to start from."""

    path: str
    config: AlbertConfig
    vocabulary: Vocabulary


def _start(model: str, output_dir: str) -> _Start:
    """Returns the model in a path. Raises InputError if it is the folder of the run, or
    has no vocabulary."""
    start = formats.read(model)
    if os.path.realpath(formats.folder_of_model(model)) == os.path.realpath(output_dir):
        raise InputError(f"--output_dir={output_dir} is the folder of the model to start "
                         "from, whose files the run would overwrite; give a new folder.")
    if start.vocabulary is None:
        raise InputError(f"{model} holds no vocabulary; copy it there (a SentencePiece "
                         "file NAME.model, or vocab.txt).")
    return _Start(model, start.config.replace(use_pooler=True), start.vocabulary)


def _prepared(plan: tasks.Plan, training: _Training, start: _Start, output_dir: str,
              evaluates: bool) -> tuple[Any, Settings]:
    """Returns the task and the settings of the run. Those that are left open are chosen
    by the size of the data."""
    _, config, vocabulary = start
    tokenizer = tokenizer_files.tokenizer_of(vocabulary)
    # 1. Choose what is left open.
    task = plan.task.chosen_by(training.metric) if training.metric else plan.task
    metric = None if task is plan.task else training.metric
    examples = plan.task.read(plan.data["train"], "train").examples
    recipe = recipes.recipe_for_data(len(examples), (
        [plan.length] if plan.length else [
            plan.task.length_of(example, tokenizer)
            for example in recipes.sampled(examples)]),
        config, training.train_batch_size or 0)
    length = training.max_seq_length or recipe.max_seq_length
    if length > config.max_position_embeddings:
        raise InputError(f"--max_seq_length={length} exceeds the model's "
                         f"{config.max_position_embeddings} positions; give less.")
    epochs = training.num_train_epochs
    if hasattr(task, "max_seq_length"):
        task = dataclasses.replace(task, max_seq_length=length)
    run = RunOptions(
        output_dir, 0 if epochs else recipe.num_train_steps, recipe.batch_size,
        training.eval_batch_size, init_checkpoint=start.path, from_scratch=False,
        early_stopping=training.early_stopping,
        save_checkpoints_steps=training.save_checkpoints_steps or 1000,
        step=StepOptions(training.gradient_accumulation_steps, training.random_seed,
                         dtype=training.dtype))
    check_batch_sizes(run, 1, evaluate=evaluates)
    rate = training.learning_rate
    rate = recipe.learning_rate if rate is None else rate
    logging.info(
        "Fine-tuning as --train_batch_size=%d --learning_rate=%g --max_seq_length=%d"
        " %s; what is not given follows %s.", recipe.batch_size, rate, length,
        f"--num_train_epochs={epochs:g}" if epochs else
        f"--train_step={recipe.num_train_steps} --warmup_step={recipe.warmup_steps}",
        recipe.source)
    # 2. Keep what defines the task, as the script does.
    cleaning = {"do_lower_case": vocabulary.do_lower_case,
                "strip_accents": vocabulary.strip_accents}
    shared = {"max_seq_length": length, "dropout_prob": training.dropout_prob}
    flags = {**shared, **cleaning, **plan.flags, "metric": metric}
    kept = {**plan.kept, "task": task.name, "vocabulary": tokenizer.keeps,
            "vocabulary_flag": "vocab_file" if vocabulary.word_piece
            else "spm_model_file", "flags": flags}
    return task, Settings(
        run, config, tokenizer, vocabulary.path,
        lambda: devices.make_strategy("one_device"), do_train=True, do_eval=evaluates,
        do_predict=False, data=plan.data, learning_rate=rate, optimizer="adamw",
        dropout_prob=training.dropout_prob, num_train_epochs=epochs or 0,
        warmup_proportion=training.warmup_proportion,
        num_warmup_steps=-1 if epochs else recipe.warmup_steps,
        num_evaluations=recipes.NUM_EVALUATIONS * (
            evaluates and not training.save_checkpoints_steps),
        max_seq_length=length, num_lengths=_NUM_LENGTHS,
        predict_batch_size=training.eval_batch_size, num_workers=1,
        features_dir=output_dir, do_lower_case=vocabulary.do_lower_case, export_dir="",
        kept=kept, options={
            "learning_rate": rate, "optimizer": "adamw",
            **(flags if plan.keeps_flags else shared),
            "num_length_buckets": _NUM_LENGTHS, **plan.options},
        check_memory=_memory_check(config, run), callbacks=training.callbacks)


def _memory_check(config: Any, options: RunOptions) -> Any:
    """Returns the function that raises InputError if a batch does not fit into the
    memory of this machine."""
    def check(**batches: memory.Sequences) -> None:
        parts = options.step.gradient_accumulation_steps
        planned = {}
        for name, sequences in batches.items():
            size = getattr(options, name)
            planned[name] = memory.PlannedBatch(
                size, size // (parts if name == "train_batch_size" else 1), sequences)
        if not parallel.has_accelerator():
            memory.check_memory(config, True, options.step, planned)

    return check
