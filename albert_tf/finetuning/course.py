"""The steps of fine-tuning, the same for every task.

    read → features → batches of few lengths → train, evaluate, predict → files

TensorFlow is imported only after the inputs are checked.
"""

import contextlib
import dataclasses
import functools
import inspect
import os
from typing import Any, Callable, Mapping, Optional

import numpy as np
from absl import logging

from albert_tf import files
from albert_tf.checkpoints.folders import (
    check_run_folder, claim_run_folder, files_of_run, holds_checkpoint)
from albert_tf.finetuning import features, model_folder, seeds
from albert_tf.finetuning.common import cut_note
from albert_tf.finetuning.task import FineTuningTask, Settings
from albert_tf.tokenization import tokenizer
from albert_tf.training.options import Sequences

# Before this step no advice is given on a model that does not learn.
_FEW_STEPS = 10

Export = Callable[[Any, Mapping[str, float], int], None]  # model, metrics or {}, step


def fine_tune(task: FineTuningTask, settings: Settings,
              export: Optional[Export] = None) -> None:
    """Trains, evaluates, predicts and exports, as the settings say."""
    # 1. Check that the folder fits the task.
    folder, name = settings.run.output_dir, type(task).__module__.split(".")[-2]
    check_run_folder(folder, name)
    model_folder.check(folder, settings.kept, settings.do_train)
    if settings.do_train:
        seeds.check_folder(folder, settings.several)
    # 2. Read the examples, whose number may determine the number of steps.
    course = Course(task, settings, read(task, settings), export)
    if settings.do_train:
        settings = settings.scheduled(len(course.sets["train"].examples))
    # 3. Prepare the output paths, so that no output overwrites an input.
    files.make_directory(folder)
    for outputs in ({"--output_dir": files_of_run(folder),
                     "--export_dir": filter(None, [settings.export_dir.rstrip("/")])},
                    {"--prediction_file": filter(None, [settings.prediction_file])}):
        files.prepare_outputs(
            outputs, {split: data.paths for split, data in course.sets.items()})
    # 4. Set up the devices. TensorFlow does not allow this after its first operation,
    # and reading features runs some.
    strategy = settings.make_strategy()
    from albert_tf.training import devices, run_folder

    course.settings, course.strategy = settings, strategy
    if devices.is_chief(strategy):
        claim_run_folder(folder, name)
    if not (settings.changes_allowed or settings.several) and holds_checkpoint(folder):
        seeds.check_same(course, ", or resume=True to continue with the change")
    with contextlib.ExitStack() as stack:
        if settings.do_train:
            stack.enter_context(run_folder.held(folder, strategy))
            model_folder.keep(folder, settings.kept, settings.vocabulary)
        if settings.export_dir and devices.is_chief(strategy):
            files.check_new(settings.export_dir, "--export_dir")
        # 5. Load or compute the features, and check that a batch fits into memory.
        for split in course.sets:
            course.tables[split] = course.features(split)
        task.check_features(course.sets, course.tables, settings)
        of_example = max(feature.num_values for feature in task.spec(
            settings.config).features if feature.is_variable)
        settings.check_memory(**{
            flag: Sequences(
                float(np.mean(course.tables[split].lengths)), filled=1,
                vectors=task.vectors_of_piece, of_example=of_example)
            for flag, split in _uses(task, settings)})
        # 6. Train once, or several times; then the best run is evaluated again.
        if settings.several:
            seeds.train_all(course)
            course.settings = dataclasses.replace(settings, do_train=False)
        stack.enter_context(strategy.scope())
        course.run()


def read(task: FineTuningTask, settings: Settings) -> dict[str, Any]:
    """Returns the sets in the order in which they are used; logs their notes, and once
    how many texts stand in a set before theirs, too."""
    sets = {split: task.read(settings.data[split], split)
            for split in dict.fromkeys(split for _, split in _uses(task, settings))}
    before: set[int] = set()
    repeated = []
    for split, data in sets.items():
        for note in data.notes:
            logging.warning("%s", note)
        # White space may differ. Hashes take less memory than texts.
        keys = [hash(tuple(" ".join(str(getattr(example, name)).split())
                           for name in task.texts)) for example in data.examples]
        if count := sum(key in before for key in keys):
            repeated.append(f"{count:,} of {len(keys):,} examples of {split}")
        before.update(keys)
    if repeated and task.texts:
        logging.warning(
            "%s have texts that are also in %s: scores say less about new texts. Divide "
            "the data so that each text is in one set.", " and ".join(repeated),
            " or ".join([*sets][:len(sets) - 1]))
    return sets


def _uses(task: FineTuningTask, settings: Settings) -> list[tuple[str, str]]:
    """Returns the flag of the batch size, and the split, of each use of the data."""
    return [(flag, split) for flag, split, wanted in (
        ("train_batch_size", "train", settings.do_train),
        ("eval_batch_size", task.evaluation_split, settings.do_eval),
        ("predict_batch_size", task.prediction_split, settings.do_predict)) if wanted]


@dataclasses.dataclass
class Course:
    """A task, its settings, the sets of examples, and what is made of them. In training,
    it warns early if the model does not learn, from step `patience` on."""

    task: FineTuningTask
    settings: Settings
    sets: Mapping[str, Any]  # Split → its examples, and below, its features.
    export: Optional[Export] = None
    tables: dict[str, features.FeatureTable] = dataclasses.field(default_factory=dict)
    strategy: Any = None
    patience: int = 0
    chance: Optional[float] = None  # The loss of guessing, until the warning.
    failure: str = ""  # What the last evaluation found wrong with the model.

    @property
    def evaluation_set(self) -> dict[str, Any]:
        """What the scores of evaluations depend on besides the model."""
        if not self.settings.do_eval:
            return {}
        split = self.task.evaluation_split
        metric = self.settings.kept.get("flags", {}).get("metric")
        return {**self.task.sources(split, self.sets[split]), **self.task.scoring(),
                **({"metric": metric} if metric else {})}

    def features(self, split: str) -> features.FeatureTable:
        """Returns the features of a set from their file, or computes them."""
        import sentencepiece

        task, settings, data = self.task, self.settings, self.sets[split]
        path = settings.features[split]
        files.make_directory(os.path.dirname(path) or ".")
        spec = task.spec(settings.config)
        digest = features.digest_of(
            [os.path.dirname(inspect.getfile(each)) for each in (type(task), tokenizer)],
            spec, sources=task.sources(split, data),
            vocabulary=files.sha256(settings.vocabulary), **task.feature_settings(split),
            do_lower_case=settings.do_lower_case, **settings.tokenizer.keeps,
            max_seq_length=settings.max_seq_length,
            sentencepiece=sentencepiece.__version__)
        table = features.load_or_create(
            f"{path}-{digest}.npz", spec,
            lambda: task.records(features.featurize_all(
                data.examples, functools.partial(
                    task.featurize, tokenizer=settings.tokenizer,
                    is_training=split == "train"),
                what=split, num_workers=settings.num_workers)))
        full = int(np.count_nonzero(table.lengths >= settings.max_seq_length))
        if full and not task.in_windows:
            logging.warning("--max_seq_length=%d, %s: %s", settings.max_seq_length, split,
                            cut_note(full, table.num_rows, settings.max_seq_length))
        return table

    def padded(self) -> dict[str, Any]:
        """Returns the sets as `Padded`, all to the lengths of the first, so that fewer
        shapes are compiled, and one more if a set has longer sequences. The first is the
        training set, if there is one: the order of training must not depend on the sets
        that are evaluated or predicted."""
        from albert_tf.finetuning.length_batching import Padded, choose_lengths

        padded, lengths = {}, tuple[int, ...]()
        for split, table in self.tables.items():
            best = choose_lengths(table.lengths, self.settings.max_seq_length,
                                  self.settings.num_lengths)
            lengths = lengths or best
            if best[-1] > lengths[-1]:
                lengths = (*lengths, best[-1])
            logging.info(
                "%s: %d sequences of %.1f tokens on average; batches are padded to %s "
                "tokens.", split, table.num_rows, float(np.mean(table.lengths)),
                ", ".join(map(str, lengths)))
            padded[split] = Padded(table, lengths)
        return padded

    def run(self) -> str:
        """Trains, evaluates, predicts and exports, in the scope of the strategy. Returns
        what the last evaluation found wrong with the model, "" for nothing."""
        from albert_tf.finetuning.length_batching import FeatureBatches

        settings, padded = self.settings, self.padded()
        evaluated, predicted = self.task.evaluation_split, self.task.prediction_split
        if settings.do_train:
            self.patience = max(
                settings.num_warmup_steps, settings.run.num_train_steps // 5)
            self.chance = self.task.chance_loss(self.sets["train"], self.tables["train"])
        run = self._loop(padded)

        def write(split: str, outputs: Mapping[str, Any]) -> None:
            if run.chief:
                self.task.write(split, self.sets[split], outputs, self.tables[split],
                                run.current_step, settings)

        if settings.do_train:
            run.train()
            self.patience = 0
        # The last evaluation, the predictions and the export use the best checkpoint.
        metrics: Mapping[str, float] = {}
        if settings.do_eval:
            metrics = run.evaluate(best=True)
            write(evaluated, run.evaluator.predictions)
        elif settings.do_predict or settings.export_dir:
            run.load()
        if settings.do_predict and not (settings.do_eval and predicted == evaluated):
            # The batch size is rounded up, so that all replicas get equally many.
            replicas = run.strategy.num_replicas_in_sync
            write(predicted, run.predict(FeatureBatches(
                evaluation=padded[predicted],
                eval_batch_size=-(-settings.predict_batch_size // replicas) * replicas)))
        if settings.export_dir and self.export and run.chief:
            self.export(run.task.model, metrics, run.current_step)
        return self.failure

    def _loop(self, padded: Mapping[str, Any]) -> Any:
        """Returns the `training.loop.Run` of a new model."""
        import tf_keras

        from albert_tf.finetuning.length_batching import FeatureBatches
        from albert_tf.finetuning.objectives import scored_alone
        from albert_tf.modeling.models import AlbertForTask
        from albert_tf.training import optimization, steps
        from albert_tf.training.loop import Run

        task, settings, options = self.task, self.settings, self.settings.run
        evaluated = task.evaluation_split

        def score(outputs: Mapping[str, Any]) -> Mapping[str, float]:
            results = self.sets[evaluated], outputs, self.tables[evaluated]
            metrics = task.score(*results)
            self.failure = task.failure(*results)
            if self.failure and run.current_step >= self.patience:
                self._warn(run.current_step, self.failure)
            return metrics

        # 1. Build the model, whose new weights the seed determines, and the optimizer.
        tf_keras.utils.set_random_seed(options.step.random_seed)
        head = task.head(settings)
        model, objective = AlbertForTask(settings.config, head), head.objective()
        optimizer, learns = None, objective
        if settings.do_train:
            optimizer = optimization.create_optimizer(
                settings.learning_rate, options.num_train_steps,
                settings.num_warmup_steps, optimizer=settings.optimizer)
            optimizer.build(model.trainable_variables)
            learns = task.objective(head, self.sets["train"])
        # 2. Define what the model learns and how it is scored. An initial checkpoint
        # needs to have the encoder only; all other weights may be new.
        learned = steps.Task(
            model, scored_alone(objective) if head.scored_alone else objective,
            task.main_metric, score,
            may_be_new=lambda name: not name.startswith("bert/"),
            on_report=self._reported, training_objective=learns,
            labels=settings.kept.get("labels", ()))
        batches = FeatureBatches(
            padded["train"] if settings.do_train else None,
            padded[evaluated] if settings.do_eval else None,
            train_batch_size=options.train_batch_size,
            eval_batch_size=options.eval_batch_size,
            num_steps=options.num_train_steps, seed=options.step.random_seed)
        run = Run(learned, settings.config, options, batches, optimizer, self.options(),
                  evaluation_set=self.evaluation_set, callbacks=settings.callbacks)
        return run

    def options(self) -> dict[str, Any]:
        """Returns the entries of options.json besides the options of the run."""
        settings = self.settings
        warmup = "warmup_step" if "warmup_step" in settings.options else "num_warmup_steps"
        options = {**self.task.kept_options(), **settings.options,
                   warmup: settings.num_warmup_steps,
                   "learning_rate": settings.learning_rate}
        if settings.do_train:
            options["train_data"] = self.task.sources("train", self.sets["train"])
        return options

    def _reported(self, step: int, metrics: Mapping[str, float]) -> None:
        loss = metrics.get("loss")
        if (loss and self.chance and step >= max(self.patience, _FEW_STEPS)
                and loss >= 0.98 * self.chance):
            self._warn(step, f"the training loss is {loss:.3f}, and guessing has "
                       f"{self.chance:.3f}")
            self.chance = None

    def _warn(self, step: int, what: str) -> None:
        logging.warning(
            "At step %d %s. %s", step, what, "If you did not expect that, check that the "
            "model was trained for this task, with these labels."
            if not self.settings.do_train else "Train for more steps."
            if step < _FEW_STEPS else
            "The model does not seem to learn. A lower --learning_rate, a longer "
            "warm-up or another --random_seed may help (--num_seeds).")
