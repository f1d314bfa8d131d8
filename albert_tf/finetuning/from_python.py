"""Fine-tuning from Python, on lists, pandas or `datasets`: the course of run_classifier.py
with its own data, without flags.

    rows ─► <output_dir>/finetune_data/train.jsonl ─► classification.custom ─► course

The rows become a file, so that they are read, checked, compared with those of a run that
is resumed, and named in errors as a user's files are.
"""

import contextlib
import dataclasses
import json
import os
import re
from typing import Any, Iterable, Iterator, Mapping, Optional, Sequence

from absl import logging

from albert_tf import files
from albert_tf.checkpoints import formats, tokenizer_files
from albert_tf.checkpoints.checkpoint import LABEL_THRESHOLD
from albert_tf.checkpoints.run_files import PYTHON_DATA, check_run_folder, claim_run_folder
from albert_tf.errors import InputError
from albert_tf.finetuning import recipes
from albert_tf.finetuning.classification import custom
from albert_tf.finetuning.course import fine_tune
from albert_tf.finetuning.task import Settings
from albert_tf.jobs import parallel
from albert_tf.serving.predict import Model, load
from albert_tf.training import devices, memory
from albert_tf.training.callbacks import Callback, checked_callbacks
from albert_tf.training.options import RunOptions, StepOptions, check_batch_sizes


def finetune(model: str, train: Any, dev: Any = None, *, output_dir: str,
             text: str = "text", text_pair: Optional[str] = None, label: str = "label",
             labels: Optional[Sequence[str]] = None, regression: bool = False,
             multi_label: bool = False, label_threshold: float = LABEL_THRESHOLD,
             num_train_epochs: Optional[float] = None,
             learning_rate: Optional[float] = None,
             train_batch_size: Optional[int] = None,
             max_seq_length: Optional[int] = None, warmup_proportion: float = 0.1,
             metric: str = "", class_weights: str | Mapping[str, float] = "",
             early_stopping: int = 0, save_checkpoints_steps: int = 0,
             eval_batch_size: int = 32, gradient_accumulation_steps: int = 1,
             dropout_prob: float = 0.1, dtype: str = "float32",
             random_seed: int = 12345, callbacks: Sequence[Callback] = ()) -> Model:
    """Fine-tunes a model to classify texts or to predict numbers, and returns the best
    checkpoint as `albert_tf.load` does.

        model = albert_tf.finetune(
            "albert-base-v2", [("A fine film.", "good"), ("Dull.", "bad")],
            output_dir="runs/reviews")
        model.predict("A fine film.")["label"]

    It does what run_classifier.py does with --task_name=custom --recipe, and writes the
    same files; arguments that are not listed have the names of its flags. The same call
    continues a run that was stopped, by Ctrl-C for example, which raises
    KeyboardInterrupt.

    Args:
      model: the model to start from, as for `albert_tf.load`.
      train: the training examples: a list of tuples (text, label) or (text, text_pair,
        label), a list of dicts, a dict of columns, a pandas DataFrame, a Dataset of
        `datasets`, or the path of a .csv, .tsv, .jsonl or Parquet file.
      dev: likewise, the examples to evaluate on, about ten times; None: none, and the
        last checkpoint is the result.
      output_dir: the folder of the run.
      text, text_pair, label: the names of the columns; text_pair is that of second
        texts, None without. With tuples, they are only the names in files.
      labels: the labels in the order of the outputs; default: those that a Dataset
        names (ClassLabel), or those of the training examples, sorted.
      regression: whether labels are numbers to predict.
      multi_label: whether an example has any number of labels: a list of them.
      num_train_epochs, learning_rate, train_batch_size, max_seq_length: default: by the
        number and length of the training examples (recipes.recipe_for_data).
      class_weights: "balanced", or label → weight (classification.weights).
      callbacks: functions that get step, metrics and checkpoint (training.callbacks).

    Raises:
      InputError: for examples, a model or a folder that do not fit; it names the row,
        counted from 1, and arguments as the flags of their names.
      DivergenceError: if the training diverges.
    """
    # 1. Find the model and its tokenizer.
    callbacks = checked_callbacks(callbacks)
    model, output_dir = formats.located(os.fspath(model)), os.fspath(output_dir)
    start = formats.read(model)
    if os.path.realpath(formats.folder_of_model(model)) == os.path.realpath(output_dir):
        raise InputError(f"--output_dir={output_dir} is the folder of the model to start "
                         "from, whose files the run would overwrite; give a new folder.")
    for name, given in (("metric", metric), ("early_stopping", early_stopping)):
        if given and dev is None:
            raise InputError(f"--{name} has an effect only with examples to evaluate on; "
                             "give dev, too, or leave it out.")
    if start.vocabulary is None:
        raise InputError(f"{model} holds no vocabulary; copy it there (a SentencePiece "
                         "file NAME.model, or vocab.txt).")
    config = start.config.replace(use_pooler=True)
    tokenizer = tokenizer_files.tokenizer_of(start.vocabulary)
    # 2. Write the rows to the folder, and define the task.
    check_run_folder(output_dir, "classification")
    files.make_directory(output_dir, "--output_dir")
    claim_run_folder(output_dir, "classification")
    columns = [name for name in (text, text_pair, label) if name is not None]
    sets = {split: _Rows(split, data, columns, output_dir) for split, data in (
        ("train", train), ("dev", dev)) if data is not None}
    separator = "," if multi_label else None
    with contextlib.ExitStack() as errors:
        for rows in sets.values():
            errors.enter_context(rows.named())
            rows.write()
        task = custom.build_task({
            split: custom.DataFile(rows.path, text, text_pair, label, separator=separator)
            for split, rows in sets.items()},
            labels=labels or sets["train"].classes or None, regression=regression)
        task = dataclasses.replace(
            task, pairs=text_pair is not None, label_threshold=label_threshold,
            class_weights=class_weights, reading={
                "text_column": text, "text_b_column": text_pair, "label_column": label})
        if metric:
            task = task.chosen_by(metric)
        # 3. Choose the settings that are left open by the size of the data.
        examples = task.readers["train"]("").examples
        recipe = recipes.recipe_for_data(
            len(examples), [task.length_of(example, tokenizer)
                            for example in recipes.sampled(examples)],
            config, train_batch_size or 0)
        length = max_seq_length or recipe.max_seq_length
        if length > config.max_position_embeddings:
            raise InputError(f"--max_seq_length={length} exceeds the model's "
                             f"{config.max_position_embeddings} positions; give less.")
        options = RunOptions(
            output_dir, 0 if num_train_epochs else recipe.num_train_steps,
            recipe.batch_size, eval_batch_size, init_checkpoint=model,
            from_scratch=False, early_stopping=early_stopping,
            save_checkpoints_steps=save_checkpoints_steps or 1000,
            step=StepOptions(gradient_accumulation_steps, random_seed, dtype=dtype))
        check_batch_sizes(options, 1, evaluate=dev is not None)
        rate = recipe.learning_rate if learning_rate is None else learning_rate
        logging.info(
            "Fine-tuning as --train_batch_size=%d --learning_rate=%g --max_seq_length=%d"
            " %s; what is not given follows %s.", recipe.batch_size, rate, length,
            f"--num_train_epochs={num_train_epochs:g}" if num_train_epochs else
            f"--train_step={recipe.num_train_steps} --warmup_step={recipe.warmup_steps}",
            recipe.source)
        flags = {
            "task_name": task.name, "max_seq_length": length,
            "do_lower_case": start.vocabulary.do_lower_case,
            "strip_accents": start.vocabulary.strip_accents,
            "dropout_prob": dropout_prob, "text_column": text,
            "text_b_column": text_pair, "label_column": label, "header": True,
            "labels": list(task.labels) or None, "regression": regression,
            "multi_label": multi_label, "label_separator": separator or ",",
            "label_threshold": label_threshold, "delimiter": None, "early_exit": False,
            "metric": metric or None}
        # 4. Train as the script does.
        fine_tune(task, Settings(
            options, config, tokenizer, start.vocabulary.path,
            lambda: devices.make_strategy("one_device"), do_train=True,
            do_eval=dev is not None, do_predict=False, data=dict.fromkeys(sets, ""),
            learning_rate=rate, optimizer="adamw", dropout_prob=dropout_prob,
            num_train_epochs=num_train_epochs or 0, warmup_proportion=warmup_proportion,
            num_warmup_steps=-1 if num_train_epochs else recipe.warmup_steps,
            num_evaluations=recipes.NUM_EVALUATIONS * (
                dev is not None and not save_checkpoints_steps),
            max_seq_length=length, num_lengths=8, predict_batch_size=eval_batch_size,
            num_workers=1, features_dir=output_dir,
            do_lower_case=start.vocabulary.do_lower_case, export_dir="",
            kept={"task": task.name, "labels": task.labels,
                  "problem_type": task.problem_type, "vocabulary": tokenizer.keeps,
                  "vocabulary_flag": "vocab_file" if start.vocabulary.word_piece
                  else "spm_model_file", "flags": flags},
            options={"task_name": task.name, "learning_rate": rate, "warmup_step": 0,
                     "optimizer": "adamw", "max_seq_length": length,
                     "dropout_prob": dropout_prob, "num_length_buckets": 8,
                     **({"class_weights": class_weights} if class_weights else {})},
            check_memory=_memory_check(config, options), callbacks=callbacks))
    return load(output_dir)


def _memory_check(config: Any, options: RunOptions) -> Any:
    """Returns the function that raises InputError if a batch does not fit into the
    memory of this machine."""
    def check(**batches: memory.Sequences) -> None:
        parts = options.step.gradient_accumulation_steps or options.train_batch_size
        planned = {}
        for name, sequences in batches.items():
            size = getattr(options, name)
            planned[name] = memory.PlannedBatch(
                size, size // (parts if name == "train_batch_size" else 1), sequences)
        if not parallel.has_accelerator():
            memory.check_memory(config, True, options.step, planned)

    return check


# ---- rows ------------------------------------------------------------------


class _Rows:
    """The examples of a split and the file that they are written to.

    Attributes:
      path: the path of the file: the user's, or that of the rows.
      classes: the names of the labels, if the data name them; else ().
    """

    def __init__(self, split: str, data: Any, columns: Sequence[str], output_dir: str):
        self._split, self._data, self._columns = split, data, columns
        self._is_file = isinstance(data, (str, os.PathLike))
        self.path = os.fspath(data) if self._is_file else os.path.join(
            output_dir, PYTHON_DATA, f"{split}.jsonl")
        feature = getattr(data, "features", None)
        feature = feature.get(columns[-1]) if isinstance(feature, Mapping) else None
        # A list of labels has the names in its elements.
        named = getattr(feature, "feature", feature)
        self.classes = tuple(getattr(named, "names", None) or ())

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """Names the rows in errors as the caller knows them: "train, row 3"."""
        try:
            yield
        except InputError as error:
            text = str(error)
            if self._is_file or self.path not in text:
                raise
            path = re.escape(self.path)
            text = re.sub(rf"{path}, line (\d+)", rf"{self._split}, row \1", text)
            raise type(error)(text.replace(self.path, self._split)) from error

    def write(self) -> None:
        """Writes the rows as JSON lines; a user's file stays as it is."""
        if self._is_file:
            return
        files.make_directory(os.path.dirname(self.path), "--output_dir")
        with files.atomic_write(self.path) as stream:
            for number, row in enumerate(self._rows(), 1):
                values = {name: _plain(value) for name, value in row.items()}
                values[self._columns[-1]] = self._named(values[self._columns[-1]])
                try:
                    line = json.dumps(values, ensure_ascii=False)
                except TypeError as error:
                    raise InputError(f"{self._split}, row {number}: a value is neither "
                                     f"text nor a number ({error}).") from error
                stream.write(line.encode("utf-8", "surrogatepass") + b"\n")

    def _rows(self) -> Iterator[Mapping[str, Any]]:
        data, columns = self._data, self._columns
        # A DataFrame, or a dict of columns. A Dataset yields its rows.
        if isinstance(data, Mapping) or hasattr(data, "iloc"):
            self._check_columns(data.keys())
            yield from (dict(zip(columns, row))
                        for row in zip(*(data[name] for name in columns)))
            return
        if isinstance(data, bytes) or not isinstance(data, Iterable):
            raise InputError(f"{self._split} is a {type(data).__name__}; give a list of "
                             "tuples or dicts, a DataFrame, a Dataset or a file.")
        for number, row in enumerate(data, 1):
            if isinstance(row, Mapping):
                self._check_columns(row.keys(), f", row {number}")
                yield {name: row[name] for name in columns}
            elif isinstance(row, (tuple, list)) and len(row) == len(columns):
                yield dict(zip(columns, row))
            else:
                raise InputError(
                    f"{self._split}, row {number} is {row!r:.60}; each example must be a "
                    f"tuple ({', '.join(columns)}), or a dict with these keys.")

    def _check_columns(self, there: Iterable[Any], where: str = "") -> None:
        names = list(there)
        for name in self._columns:
            if name not in names:
                raise InputError(
                    f"{self._split}{where}: there is no column '{name}'; the columns are "
                    f"{', '.join(map(repr, names))}. Name them with text, text_pair and "
                    "label.")

    def _named(self, label: Any) -> Any:
        """Returns the names of a label that is a number in the data's list of names."""
        if isinstance(label, list):
            return [self._named(each) for each in label]
        if not self.classes or not isinstance(label, int) or isinstance(label, bool):
            return label
        return self.classes[label] if 0 <= label < len(self.classes) else None


def _plain(value: Any) -> Any:
    """Returns a value of NumPy or pandas as one of Python; what stands for a missing one,
    such as NaN, as None."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (tuple, set, frozenset)):
        value = sorted(value) if isinstance(value, (set, frozenset)) else list(value)
    try:
        return value if value == value else None
    except TypeError:  # pandas.NA, which is neither true nor false
        return None
