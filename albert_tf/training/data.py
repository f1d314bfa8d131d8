"""The records that a pretraining run learns from and is evaluated on: found, checked
against the config and each other, and turned into batches.

Everything is checked before TensorFlow is loaded, so that mistakes are reported at once.
"""

import contextlib
import dataclasses
from typing import Any, Mapping, NamedTuple, Optional, Sequence

from absl import logging

from albert_tf import files
from albert_tf.checkpoints import vocabulary as model_vocabulary
from albert_tf.checkpoints.folders import files_of_run
from albert_tf.config import AlbertConfig
from albert_tf.errors import InputError
from albert_tf.masking.options import MaskingOptions, SpecialIds
from albert_tf.records import checks
from albert_tf.records.spec import FeatureSpec, pretraining_spec
from albert_tf.records.tfrecord import FileInfo
from albert_tf.training.options import RunOptions
from albert_tf.training.schedules import Stage, patterns_by_length


class DataOptions(NamedTuple):
    """Flags of run_pretraining.py, whose names these are."""

    input_file: str = ""
    eval_input_file: str = ""
    output_dir: str = ""
    do_train: bool = True
    do_eval: bool = False
    max_seq_length: int = 512
    length_schedule: str = ""
    sentence_objective: Optional[str] = None
    dynamic_masking: bool = False
    recipe: Optional[str] = None
    cls_id: Optional[int] = None
    sep_id: Optional[int] = None
    mask_id: Optional[int] = None


class PretrainingData(NamedTuple):
    """The records to train and evaluate on.

        data = PretrainingData.open(config, {512: 20}, DataOptions("data/*.tfrecord"))
        batches = data.batches(options, None, config, stages, streams=48, seed=1)

    Attributes:
      specs: what is read of the records, by their length.
      evaluation_spec: likewise, of those of evaluation.
      train: checked files by length; none without training.
      evaluation: checked files, or None.
      vocabulary: of the records, where it is known.
      sentence_objective: "order", "next" or "none".
      special_ids: where masks are made while training.
    """

    specs: Mapping[int, FeatureSpec]
    evaluation_spec: FeatureSpec
    train: Mapping[int, Sequence[FileInfo]]
    evaluation: Optional[Sequence[FileInfo]]
    vocabulary: Optional[dict[str, Any]]
    sentence_objective: str
    special_ids: Optional[SpecialIds]

    @classmethod
    def open(cls, config: AlbertConfig, predictions: Mapping[int, int],
             options: DataOptions) -> "PretrainingData":
        """Finds and checks all files; `predictions` are masked positions by length."""
        _check_positions(config, max(predictions), options)
        last, masked_before = options.max_seq_length, not options.dynamic_masking
        specs = {length: _spec(config, length, most, options, masked_before)
                 for length, most in predictions.items()}
        # 1. All names before any content, which takes longer to check.
        train, evaluation = _paths(options, list(specs))
        paths = [path for found in train.values() for path in found]
        files.prepare_outputs({"--output_dir": files_of_run(options.output_dir)}, {
            "--eval_input_file": evaluation, "--input_file": paths})
        # 2. What the summaries beside the records say.
        summaries = checks.summaries_of(paths + evaluation)
        vocabulary = checks.check_vocabulary(summaries, config.vocab_size)
        if vocabulary:
            model_vocabulary.check_records(options.output_dir, vocabulary)
        evaluation_masked = _masked_evaluation(evaluation, specs[last], options)
        evaluation_spec = _spec(
            config, last, predictions[last], options, evaluation_masked)
        with _fitting_recipe(options.recipe):
            # Where no sentences are learned, what the labels of evaluation say is not
            # read.
            objective = checks.sentence_objective(
                checks.summaries_of(paths) if options.sentence_objective == "none"
                else summaries, options.sentence_objective)
        # 3. Whether records are masked, by the first of them.
        groups = [(spec, found, masked) for spec, found, masked in (
            (evaluation_spec, evaluation, evaluation_masked),
            *((specs[length], found, masked_before)
              for length, found in train.items())) if found]
        with _fitting_recipe(options.recipe):
            for spec, found, masked in groups:
                checks.check_masks(found, spec, not masked)
        special_ids = None
        for spec, found, masked in groups:
            if not masked:
                special_ids = SpecialIds(**checks.special_ids(
                    found, spec, config.vocab_size,
                    (vocabulary or {}).get("special_ids"), {
                        name: getattr(options, name)
                        for name in ("cls_id", "sep_id", "mask_id")}))
        # 4. All records.
        evaluated = checks.check_files(evaluation, evaluation_spec) or None
        trained = {length: checks.check_files(found, specs[length])
                   for length, found in train.items()}
        if options.do_eval and evaluated is None:
            logging.warning(
                "Evaluating on the files of --input_file, as the release did: the "
                "numbers say nothing of unseen text. Give --eval_input_file.")
            evaluated, evaluation_spec = trained[last], specs[last]
        for what, found in (
                *(("Training" + f" at length {length}" * bool(options.length_schedule),
                   infos) for length, infos in trained.items()),
                ("Evaluation", evaluated)):
            if found:
                logging.info("%s: %d records in %d files.", what,
                             sum(info.num_records for info in found), len(found))
        return cls(specs, evaluation_spec, trained, evaluated, vocabulary, objective,
                   special_ids)

    def streams(self, options: RunOptions, num_processes: int) -> Optional[int]:
        """Into how many streams each set of records is cut, to train on."""
        from albert_tf.training import run_folder

        fewest = min(sum(info.num_records for info in infos)
                     for infos in self.train.values())
        return run_folder.streams(
            options.output_dir, fewest, options.train_batch_size, num_processes)

    def batches(self, options: RunOptions,
                masking: Optional[Mapping[int, MaskingOptions]], config: AlbertConfig,
                stages: Sequence[Stage], streams: Optional[int], seed: int,
                max_eval_steps: int = 0):
        """An input_pipeline.RecordBatches, masked while training where `masking`, by
        length, says so."""
        from albert_tf.masking import in_training
        from albert_tf.training import input_pipeline

        last = stages[-1].length
        maps = {length: masking and self.special_ids and in_training.DynamicMasking(
            masking[length], self.special_ids, length, config.vocab_size)
            for length in self.specs}
        masks = maps[last] if self.evaluation_spec == self.specs[last] else None
        return input_pipeline.RecordBatches(
            self.evaluation_spec, self.train.get(last), self.evaluation,
            train_batch_size=options.train_batch_size,
            eval_batch_size=options.eval_batch_size, seed=seed,
            max_eval_steps=max_eval_steps, streams=streams or 1,
            random_map=masks, stages=stages, sets={
                length: input_pipeline.RecordSet(
                    self.specs[length], infos, maps[length])
                for length, infos in self.train.items()})


def _check_positions(config: AlbertConfig, longest: int, options: DataOptions) -> None:
    if longest > config.max_position_embeddings:
        flag = ("length_schedule" if longest > options.max_seq_length
                else "max_seq_length")
        raise InputError(
            f"--{flag} {getattr(options, flag)} is over the config's "
            f"max_position_embeddings {config.max_position_embeddings}.")


def _spec(config: AlbertConfig, length: int, predictions: int, options: DataOptions,
          masked: bool) -> FeatureSpec:
    """Returns the features that are read from records of a length."""
    spec = pretraining_spec(
        length, predictions, config.vocab_size, config.type_vocab_size)
    if length != options.max_seq_length:
        flag_of = {"max_seq_length": "the length in --input_file",
                   "max_predictions_per_seq": "--max_predictions_by_length"}
        spec = FeatureSpec(tuple(
            dataclasses.replace(feature, set_by=flag_of.get(feature.set_by, ""))
            for feature in spec.features))
    return spec if masked else checks.unmasked_spec(spec)


def _paths(options: DataOptions, lengths: Sequence[int]
           ) -> tuple[dict[int, list[str]], list[str]]:
    """Files to train on, by length, and to evaluate on."""
    train, evaluation = {}, []
    if options.do_train or not options.eval_input_file:
        patterns = {options.max_seq_length: options.input_file}
        if options.length_schedule:
            patterns = patterns_by_length(options.input_file, "--input_file", lengths)
        train = {length: files.expand_patterns(found, "--input_file")
                 for length, found in patterns.items()}
    if options.eval_input_file:
        evaluation = files.expand_patterns(options.eval_input_file, "--eval_input_file")
    return train, evaluation


def _masked_evaluation(paths: Sequence[str], spec: FeatureSpec, options: DataOptions
                       ) -> bool:
    """Tells whether evaluation uses the masks in its records; else it makes them."""
    if not options.dynamic_masking:
        return True
    kinds = checks.are_masked(paths, spec)
    if any(kinds) and not all(kinds):
        raise InputError(
            f"--eval_input_file: {paths[kinds.index(True)]} is masked, "
            f"{paths[kinds.index(False)]} is not; give records of one kind.")
    return any(kinds)


@contextlib.contextmanager
def _fitting_recipe(recipe: Optional[str]):
    """Names --recipe where the records do not fit what it sets."""
    try:
        yield
    except InputError as error:
        if not recipe:
            raise
        raise InputError(
            f"--recipe={recipe}: {error} (create_pretraining_data.py "
            f"--recipe={recipe} makes records for it.)") from error
