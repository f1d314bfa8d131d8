"""The records of a pretraining run: finds them, checks them against the config and each
other, and turns them into batches.

Everything is checked before TensorFlow is loaded, so that errors are reported at once.
"""

import hashlib
import os
from typing import Any, NamedTuple, Optional, Sequence

from absl import logging

from albert_tf import files
from albert_tf.checkpoints import vocabulary as model_vocabulary
from albert_tf.checkpoints.folders import check_run_folder, files_of_run
from albert_tf.config import AlbertConfig
from albert_tf.errors import InputError
from albert_tf.masking.options import MaskingOptions, SpecialIds
from albert_tf.records import checks
from albert_tf.records.spec import FeatureSpec, pretraining_spec
from albert_tf.records.tfrecord import FileInfo
from albert_tf.training.options import RunOptions


def drawn_by(flags: Any) -> str:
    """Returns the flag by which training draws what to predict; "" if the records hold
    masks."""
    if flags.objective == "permutation":
        return "--objective=permutation"
    return "--dynamic_masking" if flags.dynamic_masking else ""


class PretrainingData(NamedTuple):
    """The records for training and evaluation.

        data = PretrainingData.open(config, FLAGS)  # of run_pretraining.py
        batches = data.batches(options, None, config, streams=48, seed=1)

    `special_ids` are there if masks or orders are drawn during training.
    """

    length: int  # number of tokens of each sequence
    spec: FeatureSpec  # features read from the training records
    evaluation_spec: FeatureSpec
    train: Sequence[FileInfo]  # checked; empty without training
    evaluation: Optional[Sequence[FileInfo]]
    vocabulary: Optional[dict[str, Any]]  # if it is known
    sentence_objective: str  # "order", "next" or "none"
    special_ids: Optional[SpecialIds]
    objective: str = "masked"  # or "permutation"

    @classmethod
    def open(cls, config: AlbertConfig, options: Any) -> "PretrainingData":
        """Finds and checks all files; `options` has the flags of run_pretraining.py as
        attributes."""
        length, drawn = options.max_seq_length, drawn_by(options)
        if length > config.max_position_embeddings:
            raise InputError(
                f"--max_seq_length {length} is over the config's "
                f"max_position_embeddings {config.max_position_embeddings}; use a "
                "shorter length.")
        whole = pretraining_spec(
            length, options.max_predictions_per_seq, config.vocab_size,
            config.type_vocab_size)
        spec = checks.unmasked_spec(whole) if drawn else whole
        # 1. Find the files and check the outputs, before any content is read.
        paths, evaluation = [], []
        if options.do_train or not options.eval_input_file:
            paths = files.expand_patterns(options.input_file or "", "--input_file")
        if options.eval_input_file:
            evaluation = files.expand_patterns(
                options.eval_input_file, "--eval_input_file")
        for path in (*paths, *evaluation):
            files.check_in_tensorflow(path)
        check_run_folder(options.output_dir)
        files.prepare_outputs({"--output_dir": files_of_run(options.output_dir)}, {
            "--eval_input_file": evaluation, "--input_file": paths})
        # 2. Check the summaries beside the records: vocabulary and objective.
        summaries = checks.summaries_of(paths + evaluation)
        vocabulary = checks.check_vocabulary(summaries, config.vocab_size)
        if vocabulary:
            model_vocabulary.check_records(options.output_dir, vocabulary)
        # A masked token has no place in an order; check_masks refuses it.
        kinds = checks.are_masked(evaluation, spec) if (
            drawn and options.objective != "permutation") else [not drawn]
        if any(kinds) and not all(kinds):
            raise InputError(
                f"--eval_input_file: {evaluation[kinds.index(True)]} is masked, but "
                f"{evaluation[kinds.index(False)]} is not; give records of one kind.")
        evaluation_masked = any(kinds)
        evaluation_spec = whole if evaluation_masked else checks.unmasked_spec(whole)
        # With objective "none" the evaluation records' sentence labels are unused.
        objective = checks.sentence_objective(
            checks.summaries_of(paths) if options.sentence_objective == "none"
            else summaries, options.sentence_objective)
        # 3. Check in the first records whether they are masked.
        special_ids, own_ids = None, {
            name: getattr(options, name) for name in ("cls_id", "sep_id", "mask_id")}
        for of_group, group, masked in (
                (evaluation_spec, evaluation, evaluation_masked),
                (spec, paths, not drawn)):
            if group:
                checks.check_masks(group, of_group, "" if masked else drawn)
            if group and not masked:
                special_ids = SpecialIds(**checks.special_ids(
                    group, of_group, config.vocab_size,
                    (vocabulary or {}).get("special_ids"), own_ids, drawn))
        # 4. Check all records.
        evaluated = checks.check_files(evaluation, evaluation_spec) or None
        trained = checks.check_files(paths, spec)
        if options.do_eval and evaluated is None:
            logging.warning(
                "Evaluating on the files of --input_file, as the original "
                "implementation does: the metrics say nothing about unseen text. Give "
                "--eval_input_file to evaluate on other records.")
            evaluated, evaluation_spec = trained, spec
        for what, group in (("Training", trained), ("Evaluation", evaluated)):
            if group:
                logging.info("%s: %d records in %d files.", what,
                             sum(info.num_records for info in group), len(group))
        return cls(length, spec, evaluation_spec, trained, evaluated, vocabulary,
                   objective, special_ids, options.objective)

    def evaluation_set(self, eval_batch_size: int, max_eval_steps: int
                       ) -> dict[str, Any]:
        """Returns what tells the evaluated records from others: the files, each with a
        digest of its beginning, and the number of sequences; {} if there are none."""
        if not self.evaluation:
            return {}
        found, total = [], sum(info.num_records for info in self.evaluation)
        for info in self.evaluation:
            with files.open_binary(info.path) as stream:
                digest = hashlib.sha256(stream.read(1 << 20)).hexdigest()
            found.append([os.path.basename(info.path), info.num_records, info.num_bytes,
                          digest])
        return {"files": found, "number of sequences": min(
            total, max_eval_steps * eval_batch_size or total)}

    def batches(self, options: RunOptions, masking: Optional[MaskingOptions],
                config: AlbertConfig, streams: Optional[int], seed: int,
                max_eval_steps: int = 0):
        """Returns an input_pipeline.RecordBatches. `masking` holds the options of masks
        or orders drawn during training; None keeps the records' masks."""
        from albert_tf.masking import in_training
        from albert_tf.training import input_pipeline, permutation

        drawn = (permutation.Orders if self.objective == "permutation"
                 else in_training.DynamicMasking)
        random_map = masking and self.special_ids and drawn(
            masking, self.special_ids, self.length, config.vocab_size)
        return input_pipeline.RecordBatches(
            self.spec, self.train, self.evaluation,
            train_batch_size=options.train_batch_size,
            eval_batch_size=options.eval_batch_size, seed=seed,
            max_eval_steps=max_eval_steps, streams=streams or 1, random_map=random_map,
            evaluation_spec=None if self.evaluation_spec == self.spec
            else self.evaluation_spec)
