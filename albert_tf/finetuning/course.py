"""The steps of fine-tuning, the same for every task.

    read → features → batches of few lengths → train, evaluate, predict → files

TensorFlow is imported only after the inputs are checked.
"""

import contextlib
import dataclasses
import inspect
import os
from typing import Any, Callable, Mapping, Optional

import numpy as np
from absl import logging

from albert_tf import files
from albert_tf.checkpoints.folders import holds_checkpoint
from albert_tf.checkpoints.run_files import (
    check_run_folder, claim_run_folder, files_of_run)
from albert_tf.errors import DivergenceError
from albert_tf.finetuning import features, model_folder, seeds
from albert_tf.finetuning.common import cut_note
from albert_tf.finetuning.feature_table import FeatureTable
from albert_tf.finetuning.task import FineTuningTask, Settings
from albert_tf.tokenization import tokenizer
from albert_tf.training.memory import Sequences

# Before this step no advice is given on a model that does not learn.
_FEW_STEPS = 10

# Exports a model. Takes the model, its metrics (empty if not evaluated) and its step.
Export = Callable[[Any, Mapping[str, float], int], None]


def fine_tune(task: FineTuningTask, settings: Settings,
              export: Optional[Export] = None) -> None:
    """Trains, evaluates, predicts and exports, as the settings say."""
    # 1. Check that the folder fits the task.
    folder = settings.run.output_dir
    check_run_folder(folder, _name_of(task))
    model_folder.check_use(folder, settings.kept, settings.do_train)
    if settings.do_train:
        seeds.check_folder(folder, settings.several)
    # 2. Read the examples, whose number may determine the number of steps.
    sets = _read(task, settings)
    if settings.do_train:
        settings = settings.scheduled(len(sets["train"].examples))
    # 3. Prepare the output paths, so that no output overwrites an input.
    files.make_directory(folder, "--output_dir")
    for outputs in ({"--output_dir": files_of_run(folder),
                     "--export_dir": filter(None, [settings.export_dir.rstrip("/")])},
                    {"--prediction_file": filter(None, [settings.prediction_file])}):
        files.prepare_outputs(
            outputs, {split: data.paths for split, data in sets.items()})
    if settings.do_train:
        model_folder.check_keep(folder, settings.kept, settings.vocabulary)
    # 4. Set up the devices. TensorFlow does not allow this after its first operation,
    # and reading features runs some.
    strategy = settings.make_strategy()
    from albert_tf.training import devices

    if devices.is_chief(strategy):
        claim_run_folder(folder, _name_of(task))
    train_data = task.sources("train", sets["train"]) if settings.do_train else {}
    evaluation_set = _evaluation_set(task, settings, sets)
    if not (settings.changes_allowed or settings.several) and holds_checkpoint(folder):
        seeds.check_same(task, settings, strategy, train_data, evaluation_set,
                         ", or resume=True to continue with the change")
    with contextlib.ExitStack() as stack:
        if settings.do_train:
            from albert_tf.training import run_folder

            stack.enter_context(run_folder.held(folder, strategy))
            model_folder.keep(folder, settings.kept, settings.vocabulary)
        if settings.export_dir and devices.is_chief(strategy):
            files.new_folder(settings.export_dir, "--export_dir")
        # 5. Load or compute the features, and check that a batch fits into memory.
        tables = {split: _features(task, settings, split, data)
                  for split, data in sets.items()}
        task.check_features(sets, tables, settings)
        _check_memory(task, settings, tables)
        if not task.in_windows:
            _report_cut(tables, settings.max_seq_length)

        # 6. Train once, or several times; then the best run is evaluated again.
        def run(settings: Settings) -> str:
            with strategy.scope():
                return _run(task, settings, sets, tables, export)

        if settings.several:
            seeds.train_all(task, settings, strategy, run, train_data, evaluation_set)
            settings = dataclasses.replace(settings, do_train=False)
        run(settings)


def _name_of(task: FineTuningTask) -> str:
    """Returns the name of the task's folder in finetuning."""
    return type(task).__module__.split(".")[-2]


def _read(task: FineTuningTask, settings: Settings) -> dict[str, Any]:
    """Returns the sets in the order in which they are used, and logs their notes."""
    splits = dict.fromkeys(split for split, wanted in (
        ("train", settings.do_train), (task.evaluation_split, settings.do_eval),
        (task.prediction_split, settings.do_predict)) if wanted)
    sets = {split: task.read(settings.data[split], split) for split in splits}
    for data in sets.values():
        for note in data.notes:
            logging.warning("%s", note)
    _warn_of_repeats(task, sets)
    return sets


def _warn_of_repeats(task: FineTuningTask, sets: Mapping[str, Any]) -> None:
    """Warns once of examples whose texts stand in a set before theirs, too."""
    before: set[int] = set()
    found = []
    for split, data in sets.items():
        # White space may differ. Hashes take less memory than texts.
        keys = [hash(tuple(" ".join(str(getattr(example, name)).split())
                           for name in task.texts)) for example in data.examples]
        if count := sum(key in before for key in keys):
            found.append(f"{count:,} of {len(keys):,} examples of {split}")
        before.update(keys)
    if found and task.texts:
        logging.warning(
            "%s have texts that are also in %s: scores say less about new texts. Divide "
            "the data so that each text is in one set.", " and ".join(found),
            " or ".join([*sets][:len(sets) - 1]))


def _check_memory(task: FineTuningTask, settings: Settings,
                  tables: Mapping[str, FeatureTable]) -> None:
    """Raises InputError if a batch of any set does not fit into memory."""
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


def _report_cut(tables: Mapping[str, FeatureTable], max_seq_length: int) -> None:
    """Logs how many texts of each set are as long as a sequence."""
    for split, table in tables.items():
        full = int(np.count_nonzero(table.lengths >= max_seq_length))
        if full:
            logging.warning("--max_seq_length=%d, %s: %s", max_seq_length, split,
                            cut_note(full, table.num_rows, max_seq_length))


def _features(task: FineTuningTask, settings: Settings, split: str, data: Any
              ) -> FeatureTable:
    """Returns the features of a set from their file, or computes them."""
    import sentencepiece

    flag, path = settings.feature_files.get(split, ("", ""))
    files.make_directory(
        os.path.dirname(path) or "." if path else settings.features_dir,
        f"--{flag if path else 'cached_dir'}")
    spec = task.spec(settings.config)
    digest = features.digest_of(
        [os.path.dirname(inspect.getfile(each)) for each in (type(task), tokenizer)],
        spec, sources=task.sources(split, data),
        vocabulary=files.sha256(settings.vocabulary), **task.feature_settings(split),
        do_lower_case=settings.do_lower_case, **settings.tokenizer.keeps,
        max_seq_length=settings.max_seq_length,
        sentencepiece=sentencepiece.__version__)
    return features.load_or_create(
        f"{path or os.path.join(settings.features_dir, split)}-{digest}.npz", spec,
        lambda: task.records(features.featurize_all(
            data.examples, task.featurizer(split, settings), what=split,
            num_workers=settings.num_workers)))


def _padded(settings: Settings, tables: Mapping[str, FeatureTable]) -> dict[str, Any]:
    """Returns the sets as `Padded`, all padded to the lengths of the first set.

    The first is the training set, if there is one: the order of training must not
    depend on the sets that are evaluated or predicted.
    """
    from albert_tf.finetuning.length_batching import Padded, lengths_for

    padded, lengths = {}, ()
    for split, table in tables.items():
        lengths = lengths_for(
            table.lengths, settings.max_seq_length, settings.num_lengths, lengths)
        logging.info(
            "%s: %d sequences of %.1f tokens on average; batches are padded to %s "
            "tokens.", split, table.num_rows, float(np.mean(table.lengths)),
            ", ".join(map(str, lengths)))
        padded[split] = Padded(table, lengths)
    return padded


def _run(task: FineTuningTask, settings: Settings, sets: Mapping[str, Any],
         tables: Mapping[str, FeatureTable], export: Optional[Export]) -> str:
    """Trains, evaluates, predicts and exports in the strategy's scope. Returns what is
    wrong with the model according to its last evaluation, "" if nothing is."""
    from albert_tf.finetuning.length_batching import FeatureBatches

    evaluated, predicted = task.evaluation_split, task.prediction_split
    padded = _padded(settings, tables)
    watch = _Watch(task, settings, sets, tables)
    run = _loop(task, settings, sets, tables, padded, watch)

    def write(split: str, outputs: Mapping[str, Any]) -> None:
        if run.chief:
            task.write(split, sets[split], outputs, tables[split], run.current_step,
                       settings)

    if settings.do_train:
        with watch:
            run.train()
    # The last evaluation, the predictions and the export use the best checkpoint.
    metrics: Mapping[str, float] = {}
    if settings.do_eval:
        metrics = run.evaluate(best=True)
        write(evaluated, run.evaluator.predictions)
    elif settings.do_predict or settings.export_dir:
        run.load()
    if settings.do_predict and not (settings.do_eval and predicted == evaluated):
        # The batch size is rounded up, so that all replicas get equally many examples.
        replicas = run.strategy.num_replicas_in_sync
        write(predicted, run.predict(FeatureBatches(
            evaluation=padded[predicted],
            eval_batch_size=-(-settings.predict_batch_size // replicas) * replicas)))
    if settings.export_dir and export and run.chief:
        export(run.task.model, metrics, run.current_step)
    return watch.failure


def _loop(task: FineTuningTask, settings: Settings, sets: Mapping[str, Any],
          tables: Mapping[str, FeatureTable], padded: Mapping[str, Any],
          watch: "_Watch") -> Any:
    """Returns the `training.loop.Run` of a new model."""
    import tf_keras

    from albert_tf.finetuning.length_batching import FeatureBatches
    from albert_tf.finetuning.objectives import scored_alone
    from albert_tf.modeling.models import AlbertForTask
    from albert_tf.training import optimization, run_folder, steps
    from albert_tf.training.loop import Run

    options, evaluated = settings.run, task.evaluation_split

    def score(outputs: Mapping[str, Any]) -> Mapping[str, float]:
        results = sets[evaluated], outputs, tables[evaluated]
        metrics = task.score(*results)
        watch.evaluated(run.current_step, task.failure(*results))
        return metrics

    # 1. Build the model, whose new weights the seed determines, and the optimizer.
    tf_keras.utils.set_random_seed(options.step.random_seed)
    head = task.head(settings)
    model, objective = AlbertForTask(settings.config, head), head.objective()
    optimizer, learns, train_data = None, objective, {}
    if settings.do_train:
        train_data = {run_folder.TRAIN_DATA: task.sources("train", sets["train"])}
        optimizer = optimization.create_optimizer(
            settings.learning_rate, options.num_train_steps, settings.num_warmup_steps,
            optimizer=settings.optimizer)
        optimizer.build(model.trainable_variables)
        learns = task.objective(head, sets["train"])
    # 2. Define what the model learns and how it is scored. An initial checkpoint needs
    # to have the encoder only; all other weights may be new.
    learned = steps.Task(
        model, scored_alone(objective) if head.scored_alone else objective,
        task.main_metric, score,
        may_be_new=lambda name: not name.startswith("bert/"),
        on_report=watch.reported, training_objective=learns,
        labels=settings.kept.get("labels", ()))
    # 3. Define the batches.
    batches = FeatureBatches(
        padded["train"] if settings.do_train else None,
        padded[evaluated] if settings.do_eval else None,
        train_batch_size=options.train_batch_size,
        eval_batch_size=options.eval_batch_size,
        num_steps=options.num_train_steps, seed=options.step.random_seed)
    run = Run(learned, settings.config, options, batches, optimizer, {
        **task.kept_options(settings), **train_data,
        "learning_rate": settings.learning_rate},
        evaluation_set=_evaluation_set(task, settings, sets),
        callbacks=settings.callbacks)
    return run


def _evaluation_set(task: FineTuningTask, settings: Settings, sets: Mapping[str, Any]
                    ) -> dict[str, Any]:
    """Returns what the scores of evaluations depend on besides the model."""
    if not settings.do_eval:
        return {}
    split, metric = task.evaluation_split, settings.kept.get("flags", {}).get("metric")
    return {**task.sources(split, sets[split]), **task.scoring(),
            **({"metric": metric} if metric else {})}


class _Watch(contextlib.AbstractContextManager):
    """Warns early if a model does not learn. During training, which is its with-block,
    it raises DivergenceError instead if failed runs are to be retried."""

    def __init__(self, task: FineTuningTask, settings: Settings,
                 sets: Mapping[str, Any], tables: Mapping[str, FeatureTable]):
        self._settings, self._training, self._said = settings, False, False
        self._trained = False
        steps = self._settings.run.num_train_steps
        self._patience = max(self._settings.num_warmup_steps, steps // 5)
        self._last_chance = max(self._patience, steps // 2)
        self._chance = (task.chance_loss(sets["train"], tables["train"])
                        if self._settings.do_train else None)
        self.failure = ""  # What the last evaluation found wrong.

    def __enter__(self) -> "_Watch":
        self._training = True
        return self

    def __exit__(self, *exception_info) -> None:
        self._training = False

    def reported(self, step: int, metrics: Mapping[str, float]) -> None:
        self._trained, loss = True, metrics.get("loss")
        if (loss and self._chance and step >= max(self._patience, _FEW_STEPS)
                and not self._said and loss >= 0.98 * self._chance):
            self._said = True
            self._warn(step, f"the training loss is {loss:.3f}, and guessing has "
                       f"{self._chance:.3f}")

    def evaluated(self, step: int, failure: str) -> None:
        self.failure = failure
        if not failure or self._training and step < self._patience:
            return
        # This evaluation alone decides, so that a resumed run ends in the same way.
        if (self._training and self._settings.restart_on_failure
                and step >= self._last_chance):
            raise DivergenceError(f"at step {step} {failure}.")
        self._warn(step, failure)

    def _warn(self, step: int, what: str) -> None:
        if not self._trained:
            logging.warning(
                "At step %d %s. If you did not expect that, check that the model was "
                "trained for this task, with these labels.", step, what)
            return
        if step < _FEW_STEPS:
            logging.warning("At step %d %s. Train for more steps.", step, what)
            return
        logging.warning(
            "The model does not seem to learn: at step %d %s. A lower --learning_rate, "
            "a longer warm-up or a different --random_seed may help; "
            "--restart_on_failure tries new seeds and lower rates.", step, what)
