r"""Fine-tunes ALBERT to classify texts: the GLUE tasks, or your own data.

    python run_classifier.py --task_name=sst-2 --data_dir=glue --recipe \
        --init_checkpoint=albert_base/model.ckpt-best \
        --spm_model_file=albert_base/30k-clean.model \
        --output_dir=runs/sst-2 --do_train --do_eval --do_predict

    python run_classifier.py --task_name=custom --train_file=train.csv \
        --dev_file=dev.csv --text_column=review --label_column=stars ...

With the model trained, --do_predict alone needs --output_dir and the data:

    python run_classifier.py --output_dir=runs/sst-2 --data_dir=glue --do_predict
"""

from albert_tf.cli import script  # First: Ctrl-C while the rest loads.

import functools
import math
import os

from absl import flags, logging

from albert_tf import files
from albert_tf.cli import finetuning_flags, flags as cli_flags
from albert_tf.errors import InputError
from albert_tf.finetuning import early_exit
from albert_tf.finetuning.classification.head import Classification
from albert_tf.finetuning.task import FineTuningTask, fine_tune
from albert_tf.finetuning.classification import task as classification, custom, glue
from albert_tf.finetuning import tables
from albert_tf.finetuning.common import RECIPES, as_json, recipe_for, write_files
from albert_tf.records.spec import classification_spec
from albert_tf.text import inputs

FLAGS = flags.FLAGS

_USE_OF_SPLIT = {"train": "train on", "dev": "evaluate on", "test": "predict"}

finetuning_flags.define_flags(
    max_seq_length=512, do_train=False, do_eval=False, learning_rate=5e-5,
    save_checkpoints_steps=1000)
# --help lists them too.
flags.adopt_module_key_flags(finetuning_flags)
flags.DEFINE_string(
    "task_name", None, f"One of {', '.join(glue.TASKS)}, or custom for your own data.")
flags.DEFINE_string(
    "data_dir", "", "Folder of the data: the GLUE download, the task's folder in it, "
    "or where the files of a custom task lie.")
flags.DEFINE_integer("train_step", 1000, "Step at which training ends.",
                     lower_bound=1, upper_bound=cli_flags.MOST)
flags.DEFINE_integer("warmup_step", 0, "Steps of linear warm-up.",
                     lower_bound=0, upper_bound=cli_flags.MOST)
flags.DEFINE_string(
    "unlabeled_file", None, "Texts without labels, of which --teacher alone says "
    "something, to train on besides: a text a line (of pairs, a tab between), or JSON "
    "lines with text and text_pair; comma-separated paths or globs.")
finetuning_flags.define_export_flags()
flags.DEFINE_float("threshold_to_export", math.nan,
                   "Export only if the main metric reaches it; nan: in any case.")
for _split, _what in _USE_OF_SPLIT.items():
    flags.DEFINE_string(
        f"{_split}_file", None,
        f"Custom task: TSV, CSV or JSON lines to {_what}; may be .gz.")
flags.DEFINE_string("text_column", "0", "Custom task: column of the text: its name, "
                    "its number from 0 with --noheader, or a field of JSON lines.")
flags.DEFINE_string("text_b_column", None, "Custom task: column of a second text.")
flags.DEFINE_string("id_column", None, "Custom task: column of the examples' own names, "
                    "for files of predictions.")
flags.DEFINE_string("label_column", None, "Custom task: column of the label.")
flags.DEFINE_bool("header", True, "Custom task: whether the first line names columns.")
finetuning_flags.define_prediction_flags()
flags.DEFINE_list("labels", None, "Custom task: the labels in the order of their ids; "
                  "default: those of the training file, sorted.")
flags.DEFINE_bool("regression", False, "Custom task: labels are numbers to predict.")
flags.DEFINE_string("delimiter", None, "Custom task: in place of tab or comma.")

_OF_OWN_DATA = (*(f"{_split}_file" for _split in _USE_OF_SPLIT), "text_column",
                "text_b_column", "id_column", "label_column", "header", "labels",
                "regression", "delimiter")

# What makes up the task: kept with the model, and taken from there.
_KEPT = ("task_name", "max_seq_length", "do_lower_case", "strip_accents",
         "dropout_prob", "text_column", "text_b_column", "label_column", "header",
         "labels", "regression", "delimiter", "early_exit")


class ClassificationRun(FineTuningTask):
    """A task of `glue` or `custom`, with what the flags say of it."""

    code = (classification,)

    def __init__(self, task: classification.ClassificationTask):
        self.task = task
        self.main_metric = task.main_metric
        self.head = Classification(task.num_outputs, FLAGS.dropout_prob,
                                   FLAGS.exit_weight if FLAGS.early_exit else None)

    def read(self, split):
        found = self.task.read(FLAGS.data_dir, split)
        if split == "train" and FLAGS.unlabeled_file:
            paths = files.expand_patterns(FLAGS.unlabeled_file, "--unlabeled_file")
            texts = [text for path in paths for text in self._unlabeled(path)]
            if not texts:
                raise InputError("--unlabeled_file: there is no text in it.")
            found = found._replace(
                examples=[*found.examples, *texts], paths=(*found.paths, *paths),
                notes=(*found.notes, f"{len(texts):,} texts without labels are learned "
                       "from --teacher alone."))
        return found

    def _unlabeled(self, path):
        pairs = self.task.pairs or FLAGS.text_b_column is not None
        names = ("text", "text_pair") if pairs else ("text",)
        for number, each in enumerate(inputs.read(path)):
            try:
                given = inputs.named(each.given, names)
            except InputError as error:
                raise InputError(f"{each.where}: {error}") from error
            yield classification.Example(
                f"unlabeled-{number}", *(given[name] for name in names),
                where=each.where)

    def spec(self):
        config = self.settings.config
        return classification_spec(
            self.task.num_outputs, config.vocab_size, config.type_vocab_size,
            bool(FLAGS.unlabeled_file))

    def featurizer(self, split):
        return functools.partial(
            self.task.featurize, tokenizer=self.settings.tokenizer,
            max_seq_length=FLAGS.max_seq_length, marked=bool(FLAGS.unlabeled_file))

    def sources(self, split, data):
        return {f"{split} data {i}": files.sha256(path)
                for i, path in enumerate(data.paths)}

    def feature_settings(self, split):
        return {**finetuning_flags.values("text_column", "text_b_column",
                                          "label_column", "header", "delimiter"),
                "task": self.task.name, "labels": self.task.labels,
                **({"marked": True} if FLAGS.unlabeled_file else {})}

    def kept_options(self):
        return finetuning_flags.values(
            "task_name", "learning_rate", "warmup_step", "optimizer", "max_seq_length",
            "dropout_prob", "num_length_buckets",
            *["early_exit", "exit_weight"] * FLAGS.early_exit)

    def failure(self, data, outputs, table):
        return self.task.failure(data.examples, outputs)

    def chance_loss(self, data, table):
        return self.task.chance_loss(
            [example for example in data.examples if example.label is not None])

    def score(self, data, outputs, table):
        found = self.task.score(data.examples, outputs)
        if FLAGS.early_exit:
            found["exit_passes"] = early_exit.cheapest(
                self._curves(data, outputs), self.main_metric)["passes"]
        return found

    def _curves(self, data, outputs):
        labels = self.task.label_ids(data.examples)
        return early_exit.curves(
            outputs, lambda found: self.task.metrics_of(found, labels))

    def write(self, split, data, outputs, table, step):
        folder = "eval_predictions" if split == "dev" else ""
        paths = self.task.write(
            os.path.join(self.settings.run.output_dir, folder), data.examples, outputs,
            "" if split == "dev" else FLAGS.prediction_file or "",
            FLAGS.all_probabilities)
        if split == "dev":
            report, written = self.task.report(data.examples, outputs), {}
            if FLAGS.early_exit:
                curves = self._curves(data, outputs)
                report += f"\n{early_exit.table(curves)}"
                written["early_exit.json"] = as_json(
                    {"metric": self.main_metric, "curves": curves})
                paths.append(os.path.join(
                    self.settings.run.output_dir, "early_exit.png"))
                early_exit.draw({self.task.name: (curves, self.main_metric)}, paths[-1])
            paths += write_files(
                self.settings.run.output_dir, {"eval_report.txt": report, **written})
            for line in report.splitlines():
                logging.info("%s", line)
        logging.info("Wrote %s.", ", ".join(paths))

    def export(self, model, metrics):
        from albert_tf.serving import export
        from albert_tf.finetuning import text as text_tasks

        value = metrics.get(self.main_metric, math.nan)
        # Never true where either is nan.
        if value < FLAGS.threshold_to_export:
            logging.info("Not exported: %s is %.4f, below --threshold_to_export=%g.",
                         self.main_metric, value, FLAGS.threshold_to_export)
        else:
            export.export(
                model, self.head, FLAGS.export_dir, self.task.labels, FLAGS.dtype,
                text=finetuning_flags.of_text(
                    text_tasks.Texts, self.settings.tokenizer, labels=self.task.labels,
                    pairs=self.task.pairs or FLAGS.text_b_column is not None))


def _check_flags() -> None:
    finetuning_flags.check_work(exits=True)
    if FLAGS.unlabeled_file and not FLAGS.teacher:
        raise InputError("--unlabeled_file: only a teacher says something of texts "
                         "without labels; give --teacher, or leave it out.")
    if math.isinf(FLAGS.threshold_to_export):
        raise InputError(f"--threshold_to_export={FLAGS.threshold_to_export} is no "
                         "score; give a finite number, or leave it out.")
    if not math.isnan(FLAGS.threshold_to_export):
        for flag, use in (("export_dir", "is for an export"),
                          ("do_eval", "is compared with the evaluation")):
            if not FLAGS[flag].value:
                raise InputError(f"--threshold_to_export {use}: give --{flag}, or "
                                 "leave it out.")
    if (FLAGS.task_name or "").lower() == "custom":
        for split, wanted in (("train", FLAGS.do_train), ("dev", FLAGS.do_eval),
                              ("test", FLAGS.do_predict)):
            if wanted and not FLAGS[f"{split}_file"].value:
                raise InputError(
                    f"give --{split}_file, the data to {_USE_OF_SPLIT[split]}.")


def _task() -> classification.ClassificationTask:
    name = (FLAGS.task_name or "").lower()
    if name != "custom":
        if name not in glue.TASKS:
            raise InputError(
                f"--task_name={FLAGS.task_name or ''}: give one of "
                f"{', '.join(glue.TASKS)} or custom.")
        given = [flag for flag in _OF_OWN_DATA if FLAGS[flag].present]
        if given:
            raise InputError(f"--{given[0]} is for your own data; {name} has its own: "
                             "leave it out, or give --task_name=custom.")
        return glue.TASKS[name]
    data = {split: custom.DataFile(
        path, FLAGS.text_column, FLAGS.text_b_column, FLAGS.label_column, FLAGS.header,
        delimiter=FLAGS.delimiter, guid=FLAGS.id_column)
        for split in classification.SPLITS if (path := FLAGS[f"{split}_file"].value)}
    task = custom.build_task(data, labels=FLAGS.labels, regression=FLAGS.regression,
                             data_dir=FLAGS.data_dir)
    if task.labels:
        FLAGS.labels = list(task.labels)  # Kept, where they came from the data.
    return task


def main(argv):
    del argv
    finetuning_flags.use_kept_task(_KEPT)
    _check_flags()
    finetuning_flags.check_prediction_file(
        tables.format_of, *(f"{split}_file" for split in _USE_OF_SPLIT),
        *([] if FLAGS.task_name == "custom" else ["data_dir"]))
    task = _task()
    if FLAGS.recipe and FLAGS.do_train:
        if task.name not in RECIPES:
            raise InputError("--recipe: the paper has none for a custom task.")
        finetuning_flags.use_recipe(
            task.name, recipe_for, num_train_steps="train_step",
            warmup_steps="warmup_step")
    fine_tune(ClassificationRun(task), finetuning_flags.settings(
        FLAGS.train_step, FLAGS.warmup_step, _KEPT, task=task.name,
        labels=task.labels))


if __name__ == "__main__":
    script.run(main)
