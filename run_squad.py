r"""Fine-tunes ALBERT to answer questions about a text: SQuAD 1.1 and 2.0.

    python run_squad.py --train_file=train-v2.0.json --predict_file=dev-v2.0.json \
        --version_2_with_negative --recipe \
        --init_checkpoint=albert_base/model.ckpt-best \
        --spm_model_file=albert_base/30k-clean.model \
        --output_dir=runs/squad --do_train --do_eval --do_predict

With the model trained, --do_predict alone needs --output_dir and questions, which
need no answers:

    python run_squad.py --output_dir=runs/squad --predict_file=mine.json --do_predict
"""

from albert_tf.cli import script  # First: Ctrl-C while the rest loads.

import dataclasses
import functools
import os

from absl import flags, logging

from albert_tf import files, text_files
from albert_tf.cli import finetuning_flags, flags as cli_flags
from albert_tf.errors import InputError
from albert_tf.finetuning import features
from albert_tf.finetuning.task import FineTuningTask, fine_tune
from albert_tf.finetuning.squad import task as squad, alignment, dataset
from albert_tf.finetuning import tables
from albert_tf.finetuning.common import as_json, recipe_for, write_files
from albert_tf.records.spec import span_spec
from albert_tf.training.log import METRICS_FILE, read_metrics

FLAGS = flags.FLAGS

finetuning_flags.define_flags(
    max_seq_length=384, do_train=False, do_eval=False, learning_rate=5e-5,
    save_checkpoints_steps=1000)
FLAGS["do_eval"].help += " On --predict_file, which must have answers."
# --help lists them too.
flags.adopt_module_key_flags(finetuning_flags)
flags.DEFINE_string("train_file", None, "JSON file of SQuAD's format to train on.")
flags.DEFINE_string(
    "predict_file", None, "JSON file of SQuAD's format to predict and evaluate.")
_MOST_TRIED = 1000  # starts and ends, in pairs
for _set in ("train", "predict"):
    flags.DEFINE_string(
        f"{_set}_feature_file", None,
        f"File of the features of --{_set}_file; default: {_set}.tf_record in "
        "--cached_dir, else in --output_dir.")
flags.DEFINE_string(
    "predict_feature_left_file", None, "As in the release; all is in "
    "--predict_feature_file now. (Kept for old command lines.)")
finetuning_flags.define_export_flags()
finetuning_flags.define_prediction_flags(all_probabilities=False)
flags.DEFINE_bool("version_2_with_negative", False,
                  "SQuAD 2.0: some questions have no answer.")
flags.DEFINE_integer("doc_stride", 128,
                     "Pieces from the start of a window of the paragraph to the next.",
                     lower_bound=1, upper_bound=cli_flags.MOST)
flags.DEFINE_integer("max_query_length", 64, "Pieces that are kept of a question.",
                     lower_bound=1, upper_bound=cli_flags.MOST)
flags.DEFINE(cli_flags.Number(), "num_train_epochs", 3.0,
             "How often to train on every question.")
flags.DEFINE_integer("num_train_steps", 0,
                     "Step at which training ends; 0: by --num_train_epochs.",
                     lower_bound=0, upper_bound=cli_flags.MOST)
flags.DEFINE(cli_flags.Number(upper_bound=1), "warmup_proportion", 0.1,
             "Share of steps with linear warm-up.")
flags.DEFINE_integer("num_warmup_steps", -1,
                     "Steps of linear warm-up; -1: by --warmup_proportion.",
                     lower_bound=-1, upper_bound=cli_flags.MOST)
flags.DEFINE_integer("n_best_size", 20, "Answers to a question that are kept, and "
                     "(SQuAD 1.1) starts and ends of a window that are tried.",
                     lower_bound=1, upper_bound=_MOST_TRIED)
flags.DEFINE_integer("max_answer_length", 30, "Longest answer, in pieces.",
                     lower_bound=1, upper_bound=cli_flags.MOST)
flags.DEFINE_integer("start_n_top", 5, "SQuAD 2.0: starts of a window that are tried.",
                     lower_bound=1, upper_bound=_MOST_TRIED)
flags.DEFINE_integer("end_n_top", 5, "SQuAD 2.0: ends that are tried for each start.",
                     lower_bound=1, upper_bound=_MOST_TRIED)
flags.DEFINE(
    cli_flags.Number(lower_bound=-1e38), "null_score_diff_threshold", None,
    "SQuAD 2.0: a question whose null odds reach it is left unanswered. Default: the "
    "threshold with the best F1 on --predict_file; where that has no answers, the one "
    "that was found for this checkpoint in --output_dir before; else 0.")
flags.DEFINE_bool(
    "answer_at_threshold", False, "SQuAD 2.0: answer a question whose null odds equal "
    "the threshold, as the search for the best one counted it. The release does not, "
    "so that its F1 is mostly a little under the best.")

# What makes up the task: kept with the model, and taken from there.
_KEPT = ("version_2_with_negative", "max_seq_length", "doc_stride", "max_query_length",
         "do_lower_case", "strip_accents", "dropout_prob", "start_n_top", "end_n_top",
         "n_best_size", "max_answer_length")
_DROPPED_FILE = "dropped_questions.txt"
_RESULTS_FILE = "eval_results.json"
_THRESHOLD = "null_score_diff_threshold"


class Squad(FineTuningTask):
    """SQuAD of one version, with what the flags say of it."""

    evaluation_split = prediction_split = "predict"
    code = (squad, alignment, dataset)

    def __init__(self, task: squad.SquadTask):
        self.task = task
        self.main_metric = task.main_metric
        self.head = ("conditional_spans", 1) if task.version_2 else ("spans", 2)
        # Ends are scored for each start.
        self.vectors_of_piece = task.version_2 * task.start_n_top

    def read(self, split):
        return self.task.read(
            FLAGS[f"{split}_file"].value, is_training=split == "train",
            must_score=FLAGS.do_eval)

    def input_files(self, split, data):
        return [FLAGS[f"{split}_file"].value]

    def schedule(self, num_examples):
        """By questions, as in the release."""
        steps = FLAGS.num_train_steps or int(
            num_examples / FLAGS.train_batch_size * FLAGS.num_train_epochs)
        if steps < 1:
            raise InputError(
                f"{num_examples} questions, --num_train_epochs="
                f"{FLAGS.num_train_epochs:g} and --train_batch_size="
                f"{FLAGS.train_batch_size} give no training step; give more epochs, or "
                "--num_train_steps.")
        warmup = FLAGS.num_warmup_steps
        return steps, int(steps * FLAGS.warmup_proportion) if warmup < 0 else warmup

    def spec(self):
        config = self.settings.config
        return span_spec(config.vocab_size, config.type_vocab_size,
                         max_seq_length=FLAGS.max_seq_length)

    def featurizer(self, split):
        return functools.partial(self.task.featurize, is_training=split == "train",
                                 tokenizer=self.settings.tokenizer)

    def records(self, featurized):
        return squad.number_features(featurized)

    def sources(self, split, data):
        return {f"{split} data": files.sha256(FLAGS[f"{split}_file"].value)}

    def feature_settings(self, split):
        return {"is_training": split == "train", **finetuning_flags.values(
            "doc_stride", "max_query_length", "version_2_with_negative")}

    def features_path(self, split):
        path = FLAGS[f"{split}_feature_file"].value
        if path:
            features.check_own(path, f"--{split}_feature_file")
        return path or super().features_path(split)

    def check_features(self, sets, tables):
        """Questions without features: to the log, and all to a file, "set<tab>id"."""
        path, lines = os.path.join(FLAGS.output_dir, _DROPPED_FILE), []
        if files.exists(path):  # What is known of a set that is not used now.
            lines = [line for _, line in text_files.read_lines(path)
                     if line.partition("\t")[0] not in sets]
        for split, data in sets.items():
            kept = set(tables[split].columns["example_index"][:, 0].tolist())
            dropped = [example.qas_id for i, example in enumerate(data.examples)
                       if i not in kept]
            lines += [f"{split}\t{qas_id}" for qas_id in dropped]
            if dropped:
                logging.warning(
                    "%s: %d of %d questions are %s, as their paragraph or answer "
                    "cannot be matched with its pieces; %s lists them all: %s%s",
                    FLAGS[f"{split}_file"].value, len(dropped), len(data.examples),
                    "left out" if split == "train" else "answered with \"\"", path,
                    ", ".join(dropped[:10]), ", ..." if len(dropped) > 10 else ".")
        if lines:
            write_files(FLAGS.output_dir, {
                _DROPPED_FILE: "".join(f"{line}\n" for line in lines)})
        else:
            files.remove(path)

    def model(self):
        from albert_tf.modeling import models
        from albert_tf.training import losses

        if not self.task.version_2:
            return models.AlbertForSpans(self.settings.config), losses.SPANS
        return models.AlbertForConditionalSpans(
            self.settings.config, FLAGS.start_n_top, FLAGS.end_n_top,
            FLAGS.dropout_prob), losses.CONDITIONAL_SPANS

    def kept_options(self):
        return {"task": self.task.name,
                "num_warmup_steps": self.settings.num_warmup_steps,
                **finetuning_flags.values(
                    *_KEPT, "learning_rate", "optimizer", "num_length_buckets")}

    def failure(self, data, outputs, table):
        return self.task.failure(data, outputs, table.columns)

    def chance_loss(self, data, table):
        return self.task.chance_loss(table.columns)

    def score(self, data, outputs, table):
        return self.task.score(data, outputs, table.columns)

    def write(self, split, data, outputs, table, step):
        """Prediction files and, where there are answers, the metrics."""
        if not self.settings.do_predict:
            return
        task = self.task
        if not data.answered:
            task = dataclasses.replace(task, threshold=self._known_threshold(step))
        metrics = task.score(data, outputs, table.columns)
        if metrics and not FLAGS.do_eval:  # Which has logged them.
            logging.info("Predictions at step %d: %s", step, ", ".join(
                f"{name} {value:.6g}" for name, value in metrics.items()))
            write_files(self.settings.run.output_dir, {
                _RESULTS_FILE: as_json({"step": step, **metrics})})
        paths = task.write(self.settings.run.output_dir, data, outputs, table.columns,
                           FLAGS.prediction_file or "")
        logging.info("Wrote %s.", ", ".join(paths))

    def _known_threshold(self, step):
        """The threshold of null odds where there are no answers to find it by: that of
        the evaluation of this very step."""
        if not self.task.version_2:
            return None
        threshold, source = self.task.threshold, "the flag"
        for name, rows in ((_RESULTS_FILE, _results), (METRICS_FILE, read_metrics)):
            path = os.path.join(self.settings.run.output_dir, name)
            if threshold is None and files.exists(path):
                found = [row.get(_THRESHOLD) for row in rows(path)
                         if row.get("step") == step]
                threshold = next((float(value) for value in reversed(found)
                                  if isinstance(value, (int, float))), None)
                source = path
        if threshold is None:
            threshold = 0.0
            source = f"default; none was searched for at step {step} in this folder"
        logging.info("Questions with null odds of %g or more are left unanswered (%s).",
                     threshold, source)
        return threshold

    def export(self, model, metrics):
        from albert_tf.serving import export
        from albert_tf.finetuning.squad import text as text_spans

        threshold = metrics.get(_THRESHOLD)
        if threshold is None:
            threshold = self._known_threshold(self.step)
        export.export_spans(
            model, FLAGS.export_dir, FLAGS.dtype, threshold,
            text=finetuning_flags.of_text(
                text_spans.Spans, self.settings.tokenizer, threshold=threshold,
                **finetuning_flags.values("doc_stride", "max_query_length",
                                          "n_best_size", "max_answer_length")))


def _results(path: str) -> list[dict]:
    return [text_files.read_object(path, "remove it, and evaluate again")]


def _use_recipe() -> None:
    steps, flag_of = "num_train_steps", {}
    # Flags of the same matter go before, whichever of them is given.
    if not (FLAGS["num_train_epochs"].present or FLAGS[steps].present):
        flag_of[steps] = steps
        if not FLAGS["warmup_proportion"].present:
            flag_of["warmup_steps"] = "num_warmup_steps"
    name = "squad-2.0" if FLAGS.version_2_with_negative else "squad-1.1"
    finetuning_flags.use_recipe(name, recipe_for, **flag_of)


def main(argv):
    del argv
    finetuning_flags.use_kept_task(_KEPT)
    finetuning_flags.check_work()
    finetuning_flags.check_prediction_file(
        tables.format_of, "train_file", "predict_file")
    if FLAGS.do_train and not FLAGS.train_file:
        raise InputError("give --train_file, the questions to train on.")
    if (FLAGS.do_eval or FLAGS.do_predict) and not FLAGS.predict_file:
        raise InputError("give --predict_file, the questions to "
                         f"{'predict' if FLAGS.do_predict else 'evaluate on'}.")
    if FLAGS.recipe and FLAGS.do_train:
        _use_recipe()
    task = squad.SquadTask(
        FLAGS.version_2_with_negative, threshold=FLAGS.null_score_diff_threshold,
        **finetuning_flags.values(
            "max_seq_length", "doc_stride", "max_query_length", "n_best_size",
            "max_answer_length", "start_n_top", "end_n_top", "answer_at_threshold"))
    fine_tune(Squad(task), finetuning_flags.settings(
        FLAGS.num_train_steps, 0, _KEPT, task=task.name))


if __name__ == "__main__":
    script.run(main)
