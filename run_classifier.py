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

import functools
import math
import os

from absl import flags, logging

from albert_tf import files
from albert_tf.cli import finetuning_flags, flags as cli_flags
from albert_tf.errors import InputError
from albert_tf.finetuning import features as feature_files
from albert_tf.finetuning.tasks import classification, custom, glue
from albert_tf.finetuning.tasks.recipes import RECIPES

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
flags.DEFINE_integer("train_step", 1000, "Step at which training ends.", lower_bound=1)
flags.DEFINE_integer("warmup_step", 0, "Steps of linear warm-up.", lower_bound=0)
flags.DEFINE_string("export_dir", None,
                    "Folder for a SavedModel of the best checkpoint.")
flags.DEFINE_float("threshold_to_export", math.nan,
                   "Export only if the main metric reaches it; nan: in any case.")
for _split, _what in _USE_OF_SPLIT.items():
    flags.DEFINE_string(
        f"{_split}_file", None,
        f"Custom task: TSV, CSV or JSON lines to {_what}; may be .gz.")
flags.DEFINE_string("text_column", "0", "Custom task: column of the text: its name, "
                    "its number from 0 with --noheader, or a field of JSON lines.")
flags.DEFINE_string("text_b_column", None, "Custom task: column of a second text.")
flags.DEFINE_string("label_column", None, "Custom task: column of the label.")
flags.DEFINE_bool("header", True, "Custom task: whether the first line names columns.")
flags.DEFINE_list("labels", None, "Custom task: the labels in the order of their ids; "
                  "default: those of the training file, sorted.")
flags.DEFINE_bool("regression", False, "Custom task: labels are numbers to predict.")
flags.DEFINE_string("delimiter", None, "Custom task: in place of tab or comma.")

# What makes up the task: kept with the model, and taken from there.
_KEPT = ("task_name", "max_seq_length", "do_lower_case", "dropout_prob", "text_column",
         "text_b_column", "label_column", "header", "labels", "regression", "delimiter")
_OUTPUT_OF_SPLIT = {"dev": "eval_predictions", "test": ""}


def _task() -> classification.ClassificationTask:
    name = (FLAGS.task_name or "").lower()
    if name != "custom":
        if name not in glue.TASKS:
            raise InputError(
                f"--task_name={FLAGS.task_name or ''}: give one of "
                f"{', '.join(glue.TASKS)} or custom.")
        return glue.TASKS[name]
    data = {split: custom.DataFile(
        path, FLAGS.text_column, FLAGS.text_b_column, FLAGS.label_column, FLAGS.header,
        delimiter=FLAGS.delimiter)
        for split in classification.SPLITS if (path := FLAGS[f"{split}_file"].value)}
    return custom.build_task(data, labels=FLAGS.labels, regression=FLAGS.regression,
                             data_dir=FLAGS.data_dir)


def _splits() -> list[str]:
    """The sets that are needed, in the order of their use."""
    splits = [split for split, needed in (
        ("train", FLAGS.do_train), ("dev", FLAGS.do_eval), ("test", FLAGS.do_predict))
        if needed]
    if not (splits or FLAGS.export_dir):
        raise InputError("nothing to do: give --do_train, --do_eval, --do_predict or "
                         "--export_dir.")
    if (FLAGS.task_name or "").lower() == "custom":
        for split in splits:
            if not FLAGS[f"{split}_file"].value:
                raise InputError(
                    f"give --{split}_file, the data to {_USE_OF_SPLIT[split]}.")
    return splits


def _check_export() -> None:
    if not FLAGS.export_dir:
        return
    if files.exists(FLAGS.export_dir):
        raise InputError(
            f"--export_dir={FLAGS.export_dir} is there already; choose another.")
    if not (math.isnan(FLAGS.threshold_to_export) or FLAGS.do_eval):
        raise InputError("--threshold_to_export is compared with the evaluation: give "
                         "--do_eval, or leave it out.")


def _read(task, split):
    found = task.read(FLAGS.data_dir, split)
    for note in found.notes:
        logging.warning("%s", note)
    return found


def _features(task, split, found, config, tokenizer):
    """A FeatureTable, made or taken from a file that fits."""
    from albert_tf.records.spec import classification_spec

    paths = {f"{split} data {i}": path for i, path in enumerate(found.paths)}
    function = functools.partial(
        task.featurize, tokenizer=tokenizer, max_seq_length=FLAGS.max_seq_length)

    def create():
        for features in feature_files.featurize_all(
                found.examples, function, what=split, num_workers=FLAGS.num_workers):
            yield from features

    return feature_files.load_or_create(
        finetuning_flags.features_path(split),
        classification_spec(
            task.num_outputs, config.vocab_size, config.type_vocab_size),
        finetuning_flags.features_fingerprint(
            paths, [classification],
            **{name: FLAGS[name].value for name in (
                "text_column", "text_b_column", "label_column", "header", "delimiter")},
            task=task.name, labels=task.labels),
        create)


def _build(task, config, options, sets, tables):
    """The FineTuning object; in the strategy's scope."""
    import tf_keras

    from albert_tf.finetuning import run
    from albert_tf.modeling import models
    from albert_tf.training import objectives

    tf_keras.utils.set_random_seed(FLAGS.random_seed)
    model = models.AlbertForSequenceClassification(
        config, task.num_outputs, FLAGS.dropout_prob)

    def score(predictions):
        return task.score(sets["dev"].examples, predictions)

    objective = (objectives.REGRESSION if task.is_regression
                 else objectives.CLASSIFICATION)
    optimizer = run.make_optimizer(
        model, FLAGS.learning_rate, FLAGS.train_step, FLAGS.warmup_step,
        FLAGS.optimizer) if FLAGS.do_train else None
    return run.FineTuning(
        run.make_task(model, objective, score, task.main_metric),
        config, options,
        run.BatchOptions(FLAGS.max_seq_length, FLAGS.num_length_buckets,
                                FLAGS.random_seed, FLAGS.predict_batch_size),
        tables.get("train"), tables.get("dev"), optimizer,
        {name: FLAGS[name].value for name in (
            "task_name", "learning_rate", "warmup_step", "optimizer", "max_seq_length",
            "dropout_prob", "num_length_buckets")})


def _write(tuner, task, split, found, predictions):
    """Files of predictions and, for the evaluation set, the report."""
    if not tuner.chief:
        return
    folder = os.path.join(FLAGS.output_dir, _OUTPUT_OF_SPLIT[split])
    paths = task.write(folder, found.examples, predictions)
    if split == "dev":
        report = task.report(found.examples, predictions)
        paths.append(os.path.join(FLAGS.output_dir, "eval_report.txt"))
        with files.atomic_write(paths[-1]) as stream:
            stream.write(report.encode())
        for line in report.splitlines():
            logging.info("%s", line)
    logging.info("Wrote %s.", ", ".join(paths))


def _export(tuner, task, metrics):
    from albert_tf.serving import export

    value = metrics.get(task.main_metric, math.nan)
    # Never true where either is nan.
    if value < FLAGS.threshold_to_export:
        logging.info("Not exported: %s is %.4f, below --threshold_to_export=%g.",
                     task.main_metric, value, FLAGS.threshold_to_export)
        return
    tuner.load()
    if tuner.chief:
        export.export_classifier(
            tuner.model, FLAGS.export_dir, task.labels, FLAGS.dtype)


def main(argv):
    del argv
    finetuning_flags.use_kept_task(_KEPT)
    splits = _splits()
    _check_export()
    task = _task()
    if FLAGS.recipe and FLAGS.do_train:
        if task.name not in RECIPES:
            raise InputError("--recipe: the paper has none for a custom task.")
        finetuning_flags.use_recipe(
            RECIPES[task.name], albert_dropout="albert_dropout_prob",
            classifier_dropout="dropout_prob", batch_size="train_batch_size",
            learning_rate="learning_rate", num_train_steps="train_step",
            warmup_steps="warmup_step", max_seq_length="max_seq_length")
    options = cli_flags.run_options(
        num_train_steps=FLAGS.train_step, from_scratch=FLAGS.from_scratch,
        early_stopping=FLAGS.early_stopping)
    config = finetuning_flags.model_config()
    tokenizer = finetuning_flags.tokenizer(config)
    finetuning_flags.check_start()
    sets = {split: _read(task, split) for split in splits}
    files.make_directory(options.output_dir, "--output_dir")
    if task.name == "custom" and task.labels:
        FLAGS.labels = list(task.labels)  # Kept, where they came from the data.
    finetuning_flags.keep_task(_KEPT, task=task.name, labels=task.labels)
    # Before the features, which start TensorFlow.
    strategy = cli_flags.make_strategy()

    tables = {split: _features(task, split, found, config, tokenizer)
              for split, found in sets.items()}

    with strategy.scope():
        tuner = _build(task, config, options, sets, tables)
        metrics = {}
        if FLAGS.do_train:
            tuner.train()
        if FLAGS.do_eval:
            metrics, predictions = tuner.evaluate()
            _write(tuner, task, "dev", sets["dev"], predictions)
        if FLAGS.do_predict:
            predictions = tuner.predict(tables["test"], "prediction")
            _write(tuner, task, "test", sets["test"], predictions)
        if FLAGS.export_dir:
            _export(tuner, task, metrics)


if __name__ == "__main__":
    cli_flags.run(main)
