"""Fine-tuning: what a task is, and the one course that every task takes.

    read → features → batches of few lengths → train, evaluate, predict → files

What is particular to a task (its files, its features, its model and objective, its
score) is a `FineTuningTask`; flags that all tasks share become `Settings`;
`fine_tune` does the rest. TensorFlow is loaded late, once the inputs are checked.
"""

import abc
import contextlib
import dataclasses
import os
import types
from typing import Any, Callable, Iterable, Iterator, Mapping, Optional, Sequence

import numpy as np
from absl import logging

from albert_tf import files
from albert_tf.checkpoints import formats
from albert_tf.checkpoints.folders import files_of_run
from albert_tf.checkpoints.checkpoint import ROOT_HEADS
from albert_tf.config import AlbertConfig
from albert_tf.errors import DivergenceError
from albert_tf.modeling.heads import Head
from albert_tf.finetuning import features, model_folder, seeds
from albert_tf.finetuning.feature_table import FeatureTable
from albert_tf.finetuning.common import ExampleSet
from albert_tf.records.spec import FeatureSpec
from albert_tf.tokenization import sequences
from albert_tf.tokenization import (
    cleaning, sentencepiece_tokenizer, tokenizer, wordpiece_tokenizer)
from albert_tf.tokenization.tokenizer import FullTokenizer
from albert_tf.training import distillation
from albert_tf.training.memory import Sequences
from albert_tf.training.options import RunOptions

# Code that every task's features depend on.
_CODE = (sequences, sentencepiece_tokenizer, cleaning, tokenizer, wordpiece_tokenizer)


@dataclasses.dataclass(frozen=True)
class Settings:
    """How a command fine-tunes, whatever the task.

    Attributes:
      run: how the run goes; a task may set num_train_steps anew (`schedule`).
      vocabulary: the tokenizer's file.
      make_strategy: gives the tf.distribute strategy of the devices.
      max_seq_length: the longest sequence, in pieces.
      num_lengths: static lengths that sequences are padded to; 1 pads all to
        max_seq_length, as the release does.
      predict_batch_size: examples per batch of prediction, all replicas together.
      num_workers: processes that make features; 0: one for each core.
      export_dir: folder for a SavedModel of the best checkpoint; "" for none.
      kept: what task.json keeps of the task.
      num_seeds: runs to train, each with another seed (finetuning.seeds).
      restart_on_failure: train what did not learn again, with another seed and a lower
        rate.
      teacher: a model that training learns from too, "" for none (training.distillation,
        as teacher_weight, temperature and teacher_hidden_weight).
      check_memory: raises InputError where the machine has not got the memory of a
        batch: its size's flag → what it consists of.
    """

    run: RunOptions
    config: AlbertConfig
    tokenizer: FullTokenizer
    vocabulary: str
    make_strategy: Callable[[], Any]
    do_train: bool
    do_eval: bool
    do_predict: bool
    learning_rate: float
    num_warmup_steps: int
    optimizer: str
    max_seq_length: int
    num_lengths: int
    predict_batch_size: int
    num_workers: int
    features_dir: str
    do_lower_case: bool
    export_dir: str
    kept: Mapping[str, Any]
    num_seeds: int = 1
    restart_on_failure: bool = False
    teacher: str = ""
    teacher_weight: float = 0.5
    temperature: float = 2.0
    teacher_hidden_weight: float = 0.0
    check_memory: Callable[..., None] = lambda **batches: None

    @property
    def several(self) -> bool:
        """Whether runs get folders of their own."""
        return self.do_train and (self.num_seeds > 1 or self.restart_on_failure)


class FineTuningTask(abc.ABC):
    """What is particular to a task: a script's class, made of its flags.

    `data` is what `read` returned, `table` holds its features, and `outputs` are the
    objective's predictions: name → an array for each row of the table.

    Attributes:
      main_metric: the one that the best checkpoint is chosen by; higher is better.
      evaluation_split, prediction_split: names of the sets beside "train".
      code: modules that make the features, besides those that all tasks share.
      vectors_of_piece: of the encoder's width, that the head makes of each piece in
        evaluation.
      head: what stands on the encoder, its outputs and what it learns.
      settings: of the command; set by `fine_tune` before anything is asked for.
      step: of the weights that are exported.
    """

    main_metric = "accuracy"
    evaluation_split, prediction_split = "dev", "test"
    code: Sequence[types.ModuleType] = ()
    vectors_of_piece = 0
    head: Head
    settings: Settings
    step = 0

    # ---- data and features -------------------------------------------------

    @abc.abstractmethod
    def read(self, split: str) -> ExampleSet:
        """The examples of a split, checked."""

    def input_files(self, split: str, data: Any) -> Sequence[str]:
        """The files of a split, which nothing may write over."""
        del split
        return data.paths

    def schedule(self, num_examples: int) -> tuple[int, int]:
        """Training steps, and those of them with warm-up."""
        del num_examples
        return self.settings.run.num_train_steps, self.settings.num_warmup_steps

    @abc.abstractmethod
    def spec(self) -> FeatureSpec:
        """What a record holds."""

    @abc.abstractmethod
    def featurizer(self, split: str) -> Callable[[Any], list[dict[str, Any]]]:
        """A function that makes the records of an example; can be pickled."""

    def records(self, featurized: Iterable[list[dict[str, Any]]]
                ) -> Iterator[dict[str, Any]]:
        """The records of all examples, each example's as `featurizer` made them."""
        for found in featurized:
            yield from found

    @abc.abstractmethod
    def sources(self, split: str, data: Any) -> dict[str, str]:
        """What a split's features are made of → a digest of its content."""

    @abc.abstractmethod
    def feature_settings(self, split: str) -> dict[str, Any]:
        """What else the features depend on, besides vocabulary and length."""

    def features_path(self, split: str) -> str:
        """Where a split's features are kept."""
        return os.path.join(self.settings.features_dir, f"{split}.tf_record")

    def check_features(self, sets: Mapping[str, Any],
                       tables: Mapping[str, FeatureTable]) -> None:
        """Reports examples without features, where a task has such."""

    # ---- results -----------------------------------------------------------

    @abc.abstractmethod
    def score(self, data: Any, outputs: Mapping[str, Any],
              table: FeatureTable) -> Mapping[str, float]:
        """The evaluation set's metrics, `main_metric` among them."""

    def failure(self, data: Any, outputs: Mapping[str, Any],
                table: FeatureTable) -> str:
        """What of the evaluation set's outputs shows that the model has not learned,
        "" for nothing: one class for all, say."""
        return ""

    def chance_loss(self, data: Any, table: FeatureTable) -> Optional[float]:
        """The training loss of a model that knows nothing, if that can be told."""
        return None

    @abc.abstractmethod
    def write(self, split: str, data: Any, outputs: Mapping[str, Any],
              table: FeatureTable, step: int) -> None:
        """Writes predictions and reports; only one process of a cluster does."""

    def export(self, model: Any, metrics: Mapping[str, float]) -> None:
        """Writes a SavedModel to export_dir, where the task has that flag; `metrics`
        are those of the evaluation, if there was one."""

    @abc.abstractmethod
    def kept_options(self) -> dict[str, Any]:
        """What options.json keeps besides the run's options."""


def fine_tune(task: FineTuningTask, settings: Settings) -> None:
    """Trains, evaluates, predicts and exports, whatever of it is wanted."""
    task.settings = settings
    folder = settings.run.output_dir
    model_folder.check_use(folder, settings.kept, settings.do_train)
    teaching = None
    if settings.do_train:
        seeds.check_folder(folder, settings.several)
        teaching = _teaching(task)
    sets = {split: task.read(split) for split in dict.fromkeys(
        split for split, wanted in (
            ("train", settings.do_train), (task.evaluation_split, settings.do_eval),
            (task.prediction_split, settings.do_predict)) if wanted)}
    for data in sets.values():
        for note in data.notes:
            logging.warning("%s", note)
    if settings.do_train:
        num_train_steps, num_warmup_steps = task.schedule(len(sets["train"].examples))
        settings = task.settings = dataclasses.replace(
            settings, num_warmup_steps=num_warmup_steps,
            run=dataclasses.replace(settings.run, num_train_steps=num_train_steps))
    files.make_directory(folder, "--output_dir")
    paths = {split: task.features_path(split) for split in sets}
    files.prepare_outputs(
        {"--output_dir": files_of_run(folder),
         "--export_dir": filter(None, [settings.export_dir.rstrip("/")]),
         **{f"the features of {split}": [path] for split, path in paths.items()}},
        {split: task.input_files(split, data) for split, data in sets.items()})
    if settings.do_train:
        model_folder.check_keep(folder, settings.kept, settings.vocabulary)
    # Before anything of TensorFlow runs, as reading features does: devices and workers
    # cannot be arranged later.
    strategy = settings.make_strategy()
    with contextlib.ExitStack() as stack:
        if settings.do_train:
            from albert_tf.training import run_folder

            stack.enter_context(run_folder.held(folder, strategy))
            model_folder.keep(folder, settings.kept, settings.vocabulary)
        tables = {split: _features(task, split, data, paths[split])
                  for split, data in sets.items()}
        task.check_features(sets, tables)
        _check_memory(task, tables)

        def run() -> str:
            with strategy.scope():
                return _run(task, sets, tables, teaching)

        if settings.several:
            seeds.train_all(task, strategy, run)
            # By the best of them.
            task.settings = dataclasses.replace(settings, do_train=False)
        run()


def _teaching(task: FineTuningTask) -> Optional[distillation.Teaching]:
    """The teacher, checked; None without one."""
    settings, head = task.settings, task.head
    if not settings.teacher:
        return None
    teaching = distillation.Teaching(
        formats.read(settings.teacher,
                     head=head.name if head.name in ROOT_HEADS else ""),
        settings.teacher_weight, settings.temperature, settings.teacher_hidden_weight)
    teaching.check({head.name: head.width}, settings.config, settings.max_seq_length,
                   settings.kept.get("labels", ()))
    teaching.check_pieces(settings.tokenizer.vocab)
    return teaching


def _check_memory(task: FineTuningTask, tables: Mapping[str, FeatureTable]) -> None:
    settings = task.settings
    settings.check_memory(**{
        flag: Sequences(
            float(np.mean(tables[split].lengths)), filled=1,
            vectors=task.vectors_of_piece,
            of_example=max(f.num_values for f in task.spec().features if f.is_variable))
        for flag, split, wanted in (
            ("train_batch_size", "train", settings.do_train),
            ("eval_batch_size", task.evaluation_split, settings.do_eval),
            ("predict_batch_size", task.prediction_split, settings.do_predict))
        if wanted})


def _features(task: FineTuningTask, split: str, data: ExampleSet,
              path: str) -> FeatureTable:
    """Features made, or taken from a file that fits."""
    import sentencepiece

    settings = task.settings
    parts = features.fingerprint_parts(
        {**task.sources(split, data), "vocabulary": files.sha256(settings.vocabulary)},
        [*task.code, *_CODE], **task.feature_settings(split),
        do_lower_case=settings.do_lower_case, **settings.tokenizer.keeps,
        max_seq_length=settings.max_seq_length,
        sentencepiece=sentencepiece.__version__)
    return features.load_or_create(
        path, task.spec(), parts, lambda: task.records(features.featurize_all(
            data.examples, task.featurizer(split), what=split,
            num_workers=settings.num_workers)))


def _padded(settings: Settings, tables: Mapping[str, FeatureTable]) -> dict[str, Any]:
    """The sets, `Padded` to few lengths: those of the first are used again. It is the
    one to train on, whose order must not depend on what is evaluated or predicted."""
    from albert_tf.finetuning.length_batching import Padded, lengths_for

    found, lengths = {}, ()
    for split, table in tables.items():
        lengths = lengths_for(
            table.lengths, settings.max_seq_length, settings.num_lengths, lengths)
        logging.info(
            "%s: %d sequences of %.1f pieces on average; batches are padded to %s "
            "pieces.", split, table.num_rows, float(np.mean(table.lengths)),
            ", ".join(map(str, lengths)))
        found[split] = Padded(table, lengths)
    return found


def _run(task: FineTuningTask, sets: Mapping[str, ExampleSet],
         tables: Mapping[str, FeatureTable],
         teaching: Optional[distillation.Teaching] = None) -> str:
    """What runs in the strategy's scope; returns what is wrong with the model as it was
    evaluated last, "" for nothing."""
    import tf_keras

    from albert_tf.finetuning.length_batching import FeatureBatches
    from albert_tf.finetuning.objectives import scored_alone
    from albert_tf.modeling.models import AlbertForTask
    from albert_tf.training import losses, optimization
    from albert_tf.training.loop import Run

    settings, options = task.settings, task.settings.run
    evaluated, predicted = task.evaluation_split, task.prediction_split
    padded = _padded(settings, tables)

    def write(split, outputs):
        if run.chief:
            task.write(split, sets[split], outputs, tables[split], run.current_step)

    watch = _Watch(task, tables, sets)

    def score(outputs):
        found = task.score(sets[evaluated], outputs, tables[evaluated])
        watch.evaluated(
            run.current_step, task.failure(sets[evaluated], outputs, tables[evaluated]))
        return found

    tf_keras.utils.set_random_seed(options.step.random_seed)
    model, objective = AlbertForTask(settings.config, task.head), task.head.objective()
    optimizer = None
    if settings.do_train:
        optimizer = optimization.create_optimizer(
            settings.learning_rate, options.num_train_steps, settings.num_warmup_steps,
            optimizer=settings.optimizer)
        optimizer.build(model.trainable_variables)
        optimization.log_parameter_groups(model.trainable_variables, optimizer)
    run = Run(
        losses.Task(
            model, scored_alone(objective) if task.head.scored_alone else objective,
            task.main_metric, score,
            # Only the encoder must be in the checkpoint that is started from.
            may_be_new=lambda name: not name.startswith("bert/"),
            on_report=watch.reported,
            training_objective=teaching.around(
                objective, task.head.targets, options.step.dtype)
            if settings.do_train and teaching else objective),
        settings.config, options, FeatureBatches(
            padded["train"] if settings.do_train else None,
            padded[evaluated] if settings.do_eval else None,
            train_batch_size=options.train_batch_size,
            eval_batch_size=options.eval_batch_size,
            num_steps=options.num_train_steps, seed=options.step.random_seed),
        optimizer,
        {**task.kept_options(), "learning_rate": settings.learning_rate,
         **(teaching.settings if teaching else {})})
    metrics: Mapping[str, float] = {}
    # The last evaluation is of the best checkpoint.
    run.sequences_after = sum(tables[split].num_rows for split in {
        *[evaluated] * settings.do_eval, *[predicted] * settings.do_predict})
    if settings.do_train:
        with watch:
            run.train()
    if settings.do_eval:
        metrics = run.evaluate(best=True)
        write(evaluated, run.evaluator.predictions)
    elif settings.do_predict or settings.export_dir:
        run.load()
    if settings.do_predict and not (settings.do_eval and predicted == evaluated):
        replicas = run.strategy.num_replicas_in_sync
        write(predicted, run.predict(FeatureBatches(
            evaluation=padded[predicted],
            eval_batch_size=-(-settings.predict_batch_size // replicas) * replicas)))
    if settings.export_dir and run.chief:
        task.step = run.current_step
        task.export(model, metrics)
    return watch.failure


class _Watch(contextlib.AbstractContextManager):
    """Says early that a model does not learn, and in its with-block, training, raises
    DivergenceError where the settings ask for another try."""

    def __init__(self, task: FineTuningTask, tables: Mapping[str, FeatureTable],
                 sets: Mapping[str, ExampleSet]):
        self._settings, self._training, self._said = task.settings, False, False
        steps = self._settings.run.num_train_steps
        self._patience = max(self._settings.num_warmup_steps, steps // 5)
        self._last_chance = max(self._patience, steps // 2)
        self._chance = (task.chance_loss(sets["train"], tables["train"])
                        if self._settings.do_train else None)
        self.failure = ""  # of the last evaluation

    def __enter__(self) -> "_Watch":
        self._training = True
        return self

    def __exit__(self, *exception_info) -> None:
        self._training = False

    def reported(self, step: int, metrics: Mapping[str, float]) -> None:
        loss = metrics.get("loss")
        if (loss and self._chance and step >= self._patience and not self._said
                and loss >= 0.98 * self._chance):
            self._said = True
            self._warn(step, f"the training loss is {loss:.3f}, and guessing has "
                       f"{self._chance:.3f}")

    def evaluated(self, step: int, failure: str) -> None:
        self.failure = failure
        if not failure or self._training and step < self._patience:
            return
        # By this evaluation alone: a run that was stopped then ends the same.
        if (self._training and self._settings.restart_on_failure
                and step >= self._last_chance):
            raise DivergenceError(f"at step {step} {failure}.")
        self._warn(step, failure)

    def _warn(self, step: int, what: str) -> None:
        logging.warning(
            "The model does not seem to learn: at step %d %s. A lower --learning_rate, "
            "a longer warm-up or another --random_seed may help; --restart_on_failure "
            "tries them.", step, what)
