"""The one course of fine-tuning that every task takes.

    read → features → batches of few lengths → train, evaluate, predict → files

TensorFlow is loaded late, once the inputs are checked.
"""

import contextlib
import dataclasses
import os
import sys
from typing import Any, Callable, Iterable, Mapping, Optional

import numpy as np
from absl import logging

from albert_tf import files
from albert_tf.checkpoints import formats
from albert_tf.checkpoints.checkpoint import ROOT_HEADS
from albert_tf.checkpoints.folders import files_of_run
from albert_tf.errors import DivergenceError, InputError
from albert_tf.finetuning import features, model_folder, seeds
from albert_tf.finetuning.feature_table import FeatureTable
from albert_tf.finetuning.task import FineTuningTask, Settings
from albert_tf.tokenization import (
    cleaning, sentencepiece_tokenizer, sequences, tokenizer, wordpiece_tokenizer)
from albert_tf.training.memory import Sequences

# Code that the features of every task depend on.
_CODE = (sequences, sentencepiece_tokenizer, cleaning, tokenizer, wordpiece_tokenizer)

# Exports a model: takes its metrics, none if it was not evaluated, and its step.
Export = Callable[[Any, Mapping[str, float], int], None]


def fine_tune(task: FineTuningTask, settings: Settings,
              export: Optional[Export] = None) -> None:
    """Trains, evaluates, predicts and exports, as the settings ask for."""
    # 1. The folder must fit the task, and the teacher the model.
    folder = settings.run.output_dir
    model_folder.check_use(folder, settings.kept, settings.do_train)
    teaching = None
    if settings.do_train:
        seeds.check_folder(folder, settings.several)
        teaching = _teaching(task, settings)
    # 2. The examples, and with them the number of steps.
    sets = _read(task, settings)
    if settings.do_train:
        num_train_steps, num_warmup_steps = task.schedule(
            len(sets["train"].examples), settings)
        settings = dataclasses.replace(
            settings, num_warmup_steps=num_warmup_steps,
            run=dataclasses.replace(settings.run, num_train_steps=num_train_steps))
    # 3. Where results go: nothing is written over an input.
    files.make_directory(folder, "--output_dir")
    paths = _feature_paths(settings, sets)
    files.prepare_outputs(
        {"--output_dir": files_of_run(folder),
         "--export_dir": filter(None, [settings.export_dir.rstrip("/")]),
         **{f"the features of {split}": [path] for split, path in paths.items()}},
        {split: data.paths for split, data in sets.items()})
    if settings.do_train:
        model_folder.check_keep(folder, settings.kept, settings.vocabulary)
    # 4. The devices, before anything of TensorFlow runs, as reading features does:
    # devices and workers cannot be arranged later.
    strategy = settings.make_strategy()
    with contextlib.ExitStack() as stack:
        if settings.do_train:
            from albert_tf.training import run_folder

            stack.enter_context(run_folder.held(folder, strategy))
            model_folder.keep(folder, settings.kept, settings.vocabulary)
        # 5. The features, and whether a batch of them fits into memory.
        tables = {split: _features(task, settings, split, data, paths[split])
                  for split, data in sets.items()}
        task.check_features(sets, tables, settings)
        _check_memory(task, settings, tables)

        # 6. The run, or several, of which the best is evaluated again.
        def run(settings: Settings) -> str:
            with strategy.scope():
                return _run(task, settings, sets, tables, teaching, export)

        if settings.several:
            seeds.train_all(task, settings, strategy, run)
            settings = dataclasses.replace(settings, do_train=False)
        run(settings)


def _teaching(task: FineTuningTask, settings: Settings) -> Any:
    """The distillation.Teaching of the teacher, checked; None without one."""
    if not settings.teacher:
        return None
    from albert_tf.training import distillation

    head = task.head(settings)
    root = head.name if head.name in ROOT_HEADS else ""
    teaching = distillation.Teaching(
        formats.read(settings.teacher, head=root),
        settings.teacher_weight, settings.temperature, settings.teacher_hidden_weight)
    teaching.check({head.name: head.width}, settings.config, settings.max_seq_length,
                   settings.kept.get("labels", ()))
    teaching.check_pieces(settings.tokenizer.vocab)
    return teaching


def _read(task: FineTuningTask, settings: Settings) -> dict[str, Any]:
    """The sets that are used, in the order of their use; logs their notes."""
    splits = dict.fromkeys(split for split, wanted in (
        ("train", settings.do_train), (task.evaluation_split, settings.do_eval),
        (task.prediction_split, settings.do_predict)) if wanted)
    sets = {split: task.read(settings.data[split], split) for split in splits}
    for data in sets.values():
        for note in data.notes:
            logging.warning("%s", note)
    return sets


def _feature_paths(settings: Settings, splits: Iterable[str]) -> dict[str, str]:
    """Where the features of each split are kept; their folders are made."""
    paths: dict[str, str] = {}
    for split in splits:
        flag, given = settings.feature_files.get(split, ("", ""))
        path = given or os.path.join(settings.features_dir, f"{split}.tf_record")
        if flag and path in paths.values():
            raise InputError(f"--{flag}={path} is the file of another set already; "
                             "each set needs its own.")
        if given:
            features.check_own(path, f"--{flag}")
        files.make_directory(os.path.dirname(path) or ".",
                             f"--{flag}" if given else "--cached_dir")
        paths[split] = path
    return paths


def _check_memory(task: FineTuningTask, settings: Settings,
                  tables: Mapping[str, FeatureTable]) -> None:
    of_example = max(feature.num_values for feature in task.spec(
        settings.config).features if feature.is_variable)
    settings.check_memory(**{
        flag: Sequences(
            float(np.mean(tables[split].lengths)), filled=1,
            vectors=task.vectors_of_piece, of_example=of_example)
        for flag, split, wanted in (
            ("train_batch_size", "train", settings.do_train),
            ("eval_batch_size", task.evaluation_split, settings.do_eval),
            ("predict_batch_size", task.prediction_split, settings.do_predict))
        if wanted})


def _features(task: FineTuningTask, settings: Settings, split: str, data: Any,
              path: str) -> FeatureTable:
    """The features: new, or from a file that has the same fingerprint."""
    import sentencepiece

    parts = features.fingerprint_parts(
        {**task.sources(split, data), "vocabulary": files.sha256(settings.vocabulary)},
        [sys.modules[type(task).__module__], *task.code, *_CODE],
        **task.feature_settings(split),
        do_lower_case=settings.do_lower_case, **settings.tokenizer.keeps,
        max_seq_length=settings.max_seq_length,
        sentencepiece=sentencepiece.__version__)
    return features.load_or_create(
        path, task.spec(settings.config), parts,
        lambda: task.records(features.featurize_all(
            data.examples, task.featurizer(split, settings), what=split,
            num_workers=settings.num_workers)))


def _padded(settings: Settings, tables: Mapping[str, FeatureTable]) -> dict[str, Any]:
    """The sets, `Padded` to few lengths: those of the first are used again. It is the
    one to train on, whose order must not depend on what is evaluated or predicted."""
    from albert_tf.finetuning.length_batching import Padded, lengths_for

    padded, lengths = {}, ()
    for split, table in tables.items():
        lengths = lengths_for(
            table.lengths, settings.max_seq_length, settings.num_lengths, lengths)
        logging.info(
            "%s: %d sequences of %.1f pieces on average; batches are padded to %s "
            "pieces.", split, table.num_rows, float(np.mean(table.lengths)),
            ", ".join(map(str, lengths)))
        padded[split] = Padded(table, lengths)
    return padded


def _run(task: FineTuningTask, settings: Settings, sets: Mapping[str, Any],
         tables: Mapping[str, FeatureTable], teaching: Any,
         export: Optional[Export]) -> str:
    """Trains, evaluates, predicts and exports in the strategy's scope; returns what is
    wrong with the model as it was evaluated last, "" for nothing."""
    from albert_tf.finetuning.length_batching import FeatureBatches

    evaluated, predicted = task.evaluation_split, task.prediction_split
    padded = _padded(settings, tables)
    watch = _Watch(task, settings, sets, tables)
    run = _loop(task, settings, sets, tables, padded, teaching, watch)

    def write(split: str, outputs: Mapping[str, Any]) -> None:
        if run.chief:
            task.write(split, sets[split], outputs, tables[split], run.current_step,
                       settings)

    # Sequences of the last evaluation and of prediction, for the time that is left.
    run.sequences_after = sum(tables[split].num_rows for split in {
        *[evaluated] * settings.do_eval, *[predicted] * settings.do_predict})
    if settings.do_train:
        with watch:
            run.train()
    # The last evaluation, predictions and the export are those of the best checkpoint.
    metrics: Mapping[str, float] = {}
    if settings.do_eval:
        metrics = run.evaluate(best=True)
        write(evaluated, run.evaluator.predictions)
    elif settings.do_predict or settings.export_dir:
        run.load()
    if settings.do_predict and not (settings.do_eval and predicted == evaluated):
        # Each replica gets as many examples.
        replicas = run.strategy.num_replicas_in_sync
        write(predicted, run.predict(FeatureBatches(
            evaluation=padded[predicted],
            eval_batch_size=-(-settings.predict_batch_size // replicas) * replicas)))
    if settings.export_dir and export and run.chief:
        export(run.task.model, metrics, run.current_step)
    return watch.failure


def _loop(task: FineTuningTask, settings: Settings, sets: Mapping[str, Any],
          tables: Mapping[str, FeatureTable], padded: Mapping[str, Any],
          teaching: Any, watch: "_Watch") -> Any:
    """A `training.loop.Run` of a new model."""
    import tf_keras

    from albert_tf.finetuning.length_batching import FeatureBatches
    from albert_tf.finetuning.objectives import scored_alone
    from albert_tf.modeling.models import AlbertForTask
    from albert_tf.training import losses, optimization
    from albert_tf.training.loop import Run

    options, evaluated = settings.run, task.evaluation_split

    def score(outputs: Mapping[str, Any]) -> Mapping[str, float]:
        results = sets[evaluated], outputs, tables[evaluated]
        metrics = task.score(*results)
        watch.evaluated(run.current_step, task.failure(*results))
        return metrics

    # 1. The model, the same for the same seed, and the optimizer.
    tf_keras.utils.set_random_seed(options.step.random_seed)
    head = task.head(settings)
    model, objective = AlbertForTask(settings.config, head), head.objective()
    optimizer, taught = None, None
    if settings.do_train:
        optimizer = optimization.create_optimizer(
            settings.learning_rate, options.num_train_steps, settings.num_warmup_steps,
            optimizer=settings.optimizer)
        optimizer.build(model.trainable_variables)
        optimization.log_parameter_groups(model.trainable_variables, optimizer)
        taught = teaching and teaching.around(
            objective, head.targets, options.step.dtype)
    # 2. What it learns and how it is scored; of the checkpoint that training starts
    # from only the encoder is needed.
    learned = losses.Task(
        model, scored_alone(objective) if head.scored_alone else objective,
        task.main_metric, score,
        may_be_new=lambda name: not name.startswith("bert/"),
        on_report=watch.reported, training_objective=taught or objective)
    # 3. The batches.
    batches = FeatureBatches(
        padded["train"] if settings.do_train else None,
        padded[evaluated] if settings.do_eval else None,
        train_batch_size=options.train_batch_size,
        eval_batch_size=options.eval_batch_size,
        num_steps=options.num_train_steps, seed=options.step.random_seed)
    run = Run(learned, settings.config, options, batches, optimizer, {
        **task.kept_options(settings), "learning_rate": settings.learning_rate,
        **(teaching.settings if teaching else {})})
    return run


class _Watch(contextlib.AbstractContextManager):
    """Warns early if a model does not learn; in its with-block, which is training,
    raises DivergenceError if the settings ask for another try."""

    def __init__(self, task: FineTuningTask, settings: Settings,
                 sets: Mapping[str, Any], tables: Mapping[str, FeatureTable]):
        self._settings, self._training, self._said = settings, False, False
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
