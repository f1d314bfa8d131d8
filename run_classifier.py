r"""Fine-tunes ALBERT to classify texts: the GLUE tasks, or your own data.

    python run_classifier.py --task_name=sst-2 --data_dir=glue --recipe \
        --init_checkpoint=albert_base/model.ckpt-best \
        --spm_model_file=albert_base/30k-clean.model \
        --output_dir=runs/sst-2 --do_train --do_eval --do_predict

    python run_classifier.py --task_name=custom --train_file=train.csv \
        --dev_file=dev.csv --text_column=review --label_column=stars ...

Once the model is trained, --do_predict needs only --output_dir and the data:

    python run_classifier.py --output_dir=runs/sst-2 --data_dir=glue --do_predict
"""

from albert_tf.cli import script  # First: Ctrl-C while the rest loads.

import dataclasses
import functools
import math

from absl import flags, logging

from albert_tf.checkpoints.checkpoint import (
    LABEL_THRESHOLD, ONE_LABEL, REGRESSION, SEVERAL_LABELS)
from albert_tf.checkpoints.folders import holds_checkpoint
from albert_tf.cli import checks, finetuning_flags
from albert_tf.errors import InputError
from albert_tf.finetuning import tables
from albert_tf.finetuning.classification import (
    task as classification, custom, glue, weights)
from albert_tf.finetuning.course import fine_tune

FLAGS = flags.FLAGS

_USE_OF_SPLIT = {"train": "train on", "dev": "evaluate on", "test": "predict"}
_FLAG_OF_SPLIT = {"train": "--do_train", "dev": "--do_eval", "test": "--do_predict"}

finetuning_flags.define_flags(
    max_seq_length=512, do_train=False, do_eval=False, learning_rate=5e-5,
    save_checkpoints_steps=1000)
FLAGS["save_checkpoints_steps"].help += (
    " With --do_eval, a tenth of the steps by default for your own data.")
# Lists these flags in --help, too.
flags.adopt_module_key_flags(finetuning_flags)
flags.DEFINE_string(
    "task_name", None,
    f"The task: one of {', '.join(glue.TASKS)}, or custom for your own data.")
flags.DEFINE_string(
    "data_dir", "", "Folder of the data: the GLUE download, the task's folder in it, "
    "or the folder of the files of a custom task.")
finetuning_flags.define_export_flags()
flags.DEFINE_float("threshold_to_export", math.nan,
                   "Export only if the main metric reaches this value; nan: always "
                   "export.")
for _split, _what in _USE_OF_SPLIT.items():
    flags.DEFINE_string(
        f"{_split}_file", None,
        f"Custom task: file to {_what}" + (
            ": TSV, CSV, JSON lines, Parquet or Arrow; text may be .gz. Several paths or "
            "globs, separated by commas, are one set." if _split == "train" else
            ", as for --train_file."))
flags.DEFINE_string("text_column", "0", "Custom task: column of the text: its name "
                    "or, in Parquet and with --noheader, its number from 0.")
flags.DEFINE_string("text_b_column", None, "Custom task: column of the second text.")
flags.DEFINE_string("id_column", None, "Custom task: column of the examples' ids, "
                    "which are written to the predictions.")
flags.DEFINE_string("label_column", None, "Custom task: column of the label.")
flags.DEFINE_string(
    "probability_column", None, "Custom task: column of --train_file with the labels' "
    "probabilities, which are learned in place of the label: a JSON object of label: "
    "probability, or a list in the order of --labels, as predict.py writes them; or, "
    "separated by commas, a column for each label, whose title is the label or "
    "'probability of' and the label. Rows without probabilities need a label.")
flags.DEFINE(checks.Number(lower_bound=0.01, upper_bound=100), "temperature", 1.0,
             "With --probability_column: the probabilities, as scores, and the model's "
             "scores are divided by it in the loss.")
flags.DEFINE_bool("test_labels", True, "Custom task: check the labels of --test_file "
                  "and repeat them in the predictions; --notest_labels: its label "
                  "column is not read.")
flags.DEFINE_bool("header", True, "Custom task: the first line names the columns.")
finetuning_flags.define_prediction_flags()
flags.DEFINE_list("labels", None, "The labels in the order of the model's outputs; "
                  "default: those that the schema of the training file names "
                  "(Parquet), those of the training file, sorted, or of the model that "
                  "is used; for a GLUE task, the task's.")
flags.DEFINE_list(
    "class_weights", None, "Weights of the labels in the training loss, if their "
    "frequencies are uneven: balanced, so that all labels count the same, or a weight for "
    "each label, no=1,yes=4.5, where others have 1. Default: equal weights.")
flags.DEFINE_bool("regression", False, "Custom task: labels are numbers to predict.")
flags.DEFINE_bool(
    "multi_label", False, "Custom task: a text has any number of the labels. "
    "--label_column names one column with labels that --label_separator separates (in "
    "JSON lines and Parquet, it may be a list), or, separated by commas, a column of 1 "
    "and 0 for each label.")
flags.DEFINE_string("label_separator", ",", "With --multi_label: what separates the "
                    "labels in a column.")
flags.DEFINE(checks.Number(upper_bound=1), "label_threshold", LABEL_THRESHOLD,
             "With --multi_label: the probability from which on a label is given.")
flags.DEFINE_string("delimiter", None, "Custom task: column separator; default: tab "
                    "in TSV files, comma in CSV files.")

_OF_OWN_DATA = (*(f"{_split}_file" for _split in _USE_OF_SPLIT), "text_column",
                "text_b_column", "id_column", "label_column", "probability_column",
                "temperature", "test_labels", "header", "regression", "multi_label",
                "label_separator", "label_threshold", "delimiter")

# The flags that define the task. They are saved with the model and read from there.
_KEPT = ("task_name", "max_seq_length", "do_lower_case", "strip_accents",
         "dropout_prob", "text_column", "text_b_column", "label_column", "header",
         "labels", "regression", "multi_label", "label_separator", "label_threshold",
         "delimiter", "metric")


# What outputs are for, and the advice for a model of this kind.
_PROBLEM = {REGRESSION: "numbers", ONE_LABEL: "one label for each text",
            SEVERAL_LABELS: "any number of labels for each text"}
_ADVICE = {REGRESSION: "give --regression", ONE_LABEL: "leave --multi_label or "
           "--regression out", SEVERAL_LABELS: "give --multi_label"}


def _export(task, settings, model, metrics, step):
    from albert_tf.serving.export import export, text_of

    del step
    value = metrics.get(task.main_metric, math.nan)
    # The comparison is false if either number is nan.
    if value < FLAGS.threshold_to_export:
        logging.info("Not exported: %s is %.4f, below --threshold_to_export=%g.",
                     task.main_metric, value, FLAGS.threshold_to_export)
        return
    export(model, model.head, FLAGS.export_dir, task.labels, FLAGS.dtype, text_of(
        model.head, FLAGS.export_text and settings.tokenizer, FLAGS.max_seq_length,
        labels=task.labels, pairs=task.pairs, label_threshold=task.label_threshold))


def _check_flags() -> None:
    finetuning_flags.check_work()
    finetuning_flags.clean_labels()
    if not FLAGS.multi_label:
        for flag in ("label_separator", "label_threshold"):
            if FLAGS[flag].present:
                raise InputError(f"--{flag} applies to --multi_label; add that flag, or "
                                 "leave this one out.")
    elif not FLAGS.label_separator:
        raise InputError("--label_separator is empty; give what separates the labels "
                         "in a column.")
    checks.say_unused("all_probabilities", not FLAGS.regression,
                      "with --regression")
    if math.isinf(FLAGS.threshold_to_export):
        raise InputError(f"--threshold_to_export={FLAGS.threshold_to_export} is not a "
                         "score; give a finite number, or leave the flag out.")
    if not math.isnan(FLAGS.threshold_to_export):
        for flag, use in (("export_dir", "applies to an export"),
                          ("do_eval", "is compared with the evaluation")):
            if not FLAGS[flag].value:
                raise InputError(f"--threshold_to_export {use}; give --{flag}, or "
                                 "leave the threshold out.")
    if (FLAGS.task_name or "").lower() == "custom":
        for split, wanted in (("train", FLAGS.do_train), ("dev", FLAGS.do_eval),
                              ("test", FLAGS.do_predict)):
            if wanted and not FLAGS[f"{split}_file"].value:
                raise InputError(
                    f"give --{split}_file, the data to {_USE_OF_SPLIT[split]}.")
            # The labels are those of --train_file, even without training.
            checks.say_unused(f"{split}_file", wanted or split == "train",
                              f"without {_FLAG_OF_SPLIT[split]}")
        checks.say_unused("test_labels", FLAGS.do_predict, "without --do_predict")
        checks.check_needs("probability_column", FLAGS.train_file, "--train_file")
        checks.check_needs("temperature", FLAGS.probability_column,
                           "--probability_column")


def _with_order(task: classification.ClassificationTask
                ) -> classification.ClassificationTask:
    """Returns a GLUE task with its labels in the order of --labels."""
    if FLAGS.labels and sorted(FLAGS.labels) == sorted(task.labels):
        return dataclasses.replace(task, labels=tuple(FLAGS.labels))
    if FLAGS["labels"].present:
        raise InputError(
            f"--labels={','.join(FLAGS.labels)}: " + (
                f"the labels of {task.name} are {', '.join(task.labels)}; give each of "
                "them once, in the order of the model's outputs." if task.labels else
                f"{task.name} has numbers instead of labels; leave the flag out."))
    return task


def _task() -> classification.ClassificationTask:
    name = (FLAGS.task_name or "").lower()
    if name != "custom":
        if name not in glue.TASKS:
            raise InputError(
                f"--task_name={FLAGS.task_name or ''}: give one of "
                f"{', '.join(glue.TASKS)} or custom.")
        unused = [flag for flag in _OF_OWN_DATA if FLAGS[flag].present]
        if unused:
            raise InputError(f"--{unused[0]} is for your own data, but {name} reads "
                             "the files of GLUE; leave it out, or give "
                             "--task_name=custom.")
        return _with_order(glue.TASKS[name])
    labels, separator = FLAGS.label_column, None
    if FLAGS.multi_label:
        columns = tuple((labels or "").split(","))
        labels, separator = (columns, None) if len(columns) > 1 else (
            labels, FLAGS.label_separator)
    probability = FLAGS.probability_column
    if probability and "," in probability:
        probability = tuple(probability.split(","))
    data = {split: custom.DataFile(
        path, FLAGS.text_column, FLAGS.text_b_column,
        None if split == "test" and not FLAGS.test_labels else labels,
        FLAGS.header, delimiter=FLAGS.delimiter, guid=FLAGS.id_column,
        separator=separator, probability=probability if split == "train" else None)
        for split in classification.SPLITS if (path := FLAGS[f"{split}_file"].value)}
    known = () if FLAGS.labels or FLAGS.train_file or FLAGS.regression else (
        finetuning_flags.initial_labels("classification"))
    task = custom.build_task(data, labels=FLAGS.labels or known or None,
                             regression=FLAGS.regression,
                             data_dir=FLAGS.data_dir)
    if task.labels:
        FLAGS.labels = list(task.labels)  # Saved with the model even if from the data.
    return task


def _check_problem(problem_type: str) -> None:
    """Raises InputError if the initial model's outputs are of another kind, and nothing
    is trained."""
    if holds_checkpoint(FLAGS.output_dir or ""):
        return
    model = finetuning_flags.initial_model("classification")
    theirs = model.problem_type if model else ""
    if theirs in ("", problem_type):
        return
    what = (f"the outputs of --init_checkpoint={FLAGS.init_checkpoint} are for "
            f"{_PROBLEM[theirs]} ({theirs}), this task has {_PROBLEM[problem_type]}")
    if not FLAGS.do_train:
        raise InputError(f"{what}; {_ADVICE[theirs]}.")
    logging.warning("%s: training changes the meaning of its outputs.", what)


def main(argv):
    del argv
    finetuning_flags.use_kept_task(_KEPT)
    _check_flags()
    finetuning_flags.check_prediction_file(
        tables.written_format_of, *(f"{split}_file" for split in _USE_OF_SPLIT),
        *([] if FLAGS.task_name == "custom" else ["data_dir"]))
    task = _task()
    task = dataclasses.replace(
        task, pairs=task.pairs or FLAGS.text_b_column is not None,
        reading=finetuning_flags.values(
            "text_column", "text_b_column", "label_column", "header", "delimiter",
            *["label_separator"] * FLAGS.multi_label,
            *["probability_column"] * task.soft),
        label_threshold=FLAGS.label_threshold, temperature=FLAGS.temperature)
    task = dataclasses.replace(finetuning_flags.chosen(task), class_weights=(
        weights.parse(FLAGS.class_weights or ()) or ""))
    _check_problem(task.problem_type)
    if task.labels:
        finetuning_flags.check_labels("classification", len(task.labels))
    is_own, tokenizer = task.name == "custom", None
    if FLAGS.recipe and FLAGS.do_train and is_own:
        tokenizer = finetuning_flags.use_recipe_for_data(
            task.readers["train"](FLAGS.data_dir).examples, task.length_of)
    elif FLAGS.recipe and FLAGS.do_train:
        finetuning_flags.use_recipe(task.name)
    settings = finetuning_flags.settings(
        _KEPT, task=task.name, labels=task.labels, problem_type=task.problem_type,
        known_tokenizer=tokenizer, own_data=is_own,
        data=dict.fromkeys(_USE_OF_SPLIT, FLAGS.data_dir),
        options={**finetuning_flags.values(
            "task_name", "learning_rate", "warmup_step", "optimizer", "max_seq_length",
            "dropout_prob", "num_length_buckets",
            *["probability_column", "temperature"] * task.soft),
            **({"class_weights": task.class_weights} if task.class_weights else {})})
    fine_tune(task, settings, functools.partial(_export, task, settings))


if __name__ == "__main__":
    script.run(main, first_flags=(
        "task_name data_dir train_file dev_file test_file text_column "
        "label_column output_dir init_checkpoint do_train do_eval do_predict "
        "recipe max_seq_length train_batch_size learning_rate train_step "
        "num_train_epochs warmup_step save_checkpoints_steps metric early_stopping num_seeds dtype "
        "gradient_accumulation_steps distribution_strategy tpu export_dir"))
