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

import dataclasses
import functools
import json
import os
from typing import Any, Mapping, Optional

from absl import flags, logging

from albert_tf import files
from albert_tf.checkpoints.files import holds_checkpoint
from albert_tf.cli import finetuning_flags, flags as cli_flags
from albert_tf.errors import InputError
from albert_tf.finetuning import features, model_folder
from albert_tf.finetuning.tasks import squad
from albert_tf.finetuning.tasks.recipes import RECIPES

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
for _set in ("train", "predict"):
    flags.DEFINE_string(
        f"{_set}_feature_file", None,
        f"File of the features of --{_set}_file; default: {_set}.tf_record in "
        "--cached_dir, else in --output_dir.")
flags.DEFINE_string(
    "predict_feature_left_file", None, "As in the release; all is in "
    "--predict_feature_file now. (Kept for old command lines.)")
flags.DEFINE_string("export_dir", None,
                    "Folder for a SavedModel of the best checkpoint.")
flags.DEFINE_bool("version_2_with_negative", False,
                  "SQuAD 2.0: some questions have no answer.")
flags.DEFINE_integer("doc_stride", 128,
                     "Pieces from the start of a window of the paragraph to the next.")
flags.DEFINE_integer("max_query_length", 64, "Pieces that are kept of a question.")
flags.DEFINE_float("num_train_epochs", 3.0, "How often to train on every question.",
                   lower_bound=0.0)
flags.DEFINE_integer("num_train_steps", 0,
                     "Step at which training ends; 0: by --num_train_epochs.",
                     lower_bound=0)
flags.DEFINE_float("warmup_proportion", 0.1, "Share of steps with linear warm-up.",
                   lower_bound=0.0, upper_bound=1.0)
flags.DEFINE_integer("num_warmup_steps", -1,
                     "Steps of linear warm-up; -1: by --warmup_proportion.",
                     lower_bound=-1)
flags.DEFINE_integer("n_best_size", 20, "Answers to a question that are kept, and "
                     "(SQuAD 1.1) starts and ends of a window that are tried.",
                     lower_bound=1)
flags.DEFINE_integer("max_answer_length", 30, "Longest answer, in pieces.",
                     lower_bound=1)
flags.DEFINE_integer("start_n_top", 5, "SQuAD 2.0: starts of a window that are tried.",
                     lower_bound=1)
flags.DEFINE_integer("end_n_top", 5, "SQuAD 2.0: ends that are tried for each start.",
                     lower_bound=1)
flags.DEFINE_float(
    "null_score_diff_threshold", None, "SQuAD 2.0: a question whose null odds reach it "
    "is left unanswered. Default: the threshold with the best F1 on --predict_file; "
    "where that has no answers, the one that was found in --output_dir before; else 0.")
flags.DEFINE_bool(
    "answer_at_threshold", False, "SQuAD 2.0: answer a question whose null odds equal "
    "the threshold, as the search for the best one counted it. The release does not, "
    "so that its F1 is mostly a little under the best.")

# What makes up the task: kept with the model, and taken from there.
_KEPT = ("version_2_with_negative", "max_seq_length", "doc_stride", "max_query_length",
         "do_lower_case", "dropout_prob", "start_n_top", "end_n_top", "n_best_size",
         "max_answer_length")
_DROPPED_FILE = "dropped_questions.txt"
_RESULTS_FILE = "eval_results.json"


def _task() -> squad.SquadTask:
    return squad.SquadTask(
        FLAGS.version_2_with_negative, threshold=FLAGS.null_score_diff_threshold,
        **{name: FLAGS[name].value for name in (
            "max_seq_length", "doc_stride", "max_query_length", "n_best_size",
            "max_answer_length", "start_n_top", "end_n_top", "answer_at_threshold")})


def _task_name() -> str:
    return "squad-2.0" if FLAGS.version_2_with_negative else "squad-1.1"


def _check_flags() -> None:
    if not (FLAGS.do_train or FLAGS.do_eval or FLAGS.do_predict or FLAGS.export_dir):
        raise InputError("nothing to do: give --do_train, --do_eval, --do_predict or "
                         "--export_dir.")
    if FLAGS.do_train and not FLAGS.train_file:
        raise InputError("give --train_file, the questions to train on.")
    if (FLAGS.do_eval or FLAGS.do_predict) and not FLAGS.predict_file:
        raise InputError("give --predict_file, the questions to "
                         f"{'predict' if FLAGS.do_predict else 'evaluate on'}.")
    if FLAGS.export_dir and files.exists(FLAGS.export_dir):
        raise InputError(
            f"--export_dir={FLAGS.export_dir} is there already; choose another.")


def _check_folder() -> None:
    """The other version's model, or another task's, cannot be used here."""
    if holds_checkpoint(FLAGS.output_dir):
        kept = model_folder.read(FLAGS.output_dir)
        if kept is not None:
            model_folder.check_same(FLAGS.output_dir, kept, {"task": _task_name()})


def _use_recipe() -> None:
    steps, warmup = "num_train_steps", "num_warmup_steps"
    flag_of = dict(
        albert_dropout="albert_dropout_prob", classifier_dropout="dropout_prob",
        batch_size="train_batch_size", learning_rate="learning_rate",
        max_seq_length="max_seq_length")
    # Flags of the same matter go before, whichever of them is given.
    if not (FLAGS["num_train_epochs"].present or FLAGS[steps].present):
        flag_of["num_train_steps"] = steps
        if not FLAGS["warmup_proportion"].present:
            flag_of["warmup_steps"] = warmup
    finetuning_flags.use_recipe(RECIPES[_task_name()], **flag_of)


def _read(task: squad.SquadTask, name: str) -> squad.QuestionSet:
    found = task.read(FLAGS[f"{name}_file"].value, is_training=name == "train",
                      must_score=FLAGS.do_eval)
    for note in found.notes:
        logging.warning("%s", note)
    return found


def _training_steps(num_examples: int) -> tuple[int, int]:
    """Steps, and those of them with warm-up; by questions, as in the release."""
    steps = FLAGS.num_train_steps or int(
        num_examples / FLAGS.train_batch_size * FLAGS.num_train_epochs)
    if steps < 1:
        raise InputError(
            f"{num_examples} questions, --num_train_epochs={FLAGS.num_train_epochs:g} "
            f"and --train_batch_size={FLAGS.train_batch_size} give no training step; "
            "give more epochs, or --num_train_steps.")
    warmup = FLAGS.num_warmup_steps
    return steps, int(steps * FLAGS.warmup_proportion) if warmup < 0 else warmup


def _features(task: squad.SquadTask, name: str, examples: list, config, tokenizer):
    """A FeatureTable, made or taken from a file that fits."""
    from albert_tf.finetuning.tasks import squad_alignment, squad_dataset
    from albert_tf.records.spec import span_spec

    function = functools.partial(
        task.featurize, tokenizer=tokenizer, is_training=name == "train")

    def create():
        yield from squad.number_features(features.featurize_all(
            examples, function, what=name, num_workers=FLAGS.num_workers))

    return features.load_or_create(
        FLAGS[f"{name}_feature_file"].value or finetuning_flags.features_path(name),
        span_spec(config.vocab_size, config.type_vocab_size,
                  max_seq_length=FLAGS.max_seq_length),
        finetuning_flags.features_fingerprint(
            {f"{name} data": FLAGS[f"{name}_file"].value},
            [squad, squad_alignment, squad_dataset], is_training=name == "train",
            doc_stride=FLAGS.doc_stride, max_query_length=FLAGS.max_query_length,
            version_2_with_negative=FLAGS.version_2_with_negative),
        create)


def _report_dropped(sets: Mapping[str, squad.QuestionSet],
                    tables: Mapping[str, Any]) -> None:
    """Questions without features: to the log, and all to a file, "set<tab>id"."""
    path, lines = os.path.join(FLAGS.output_dir, _DROPPED_FILE), []
    if files.exists(path):  # What is known of a set that is not used now.
        lines = [line for _, line in files.read_lines(path)
                 if line.partition("\t")[0] not in sets]
    for name, found in sets.items():
        kept = set(tables[name].columns["example_index"][:, 0].tolist())
        dropped = [example.qas_id for i, example in enumerate(found.examples)
                   if i not in kept]
        lines += [f"{name}\t{qas_id}" for qas_id in dropped]
        if dropped:
            logging.warning(
                "%s: %d of %d questions are %s, as their paragraph or answer cannot be "
                "matched with its pieces; %s lists them all: %s%s",
                FLAGS[f"{name}_file"].value, len(dropped), len(found.examples),
                "left out" if name == "train" else "answered with \"\"", path,
                ", ".join(dropped[:10]), ", ..." if len(dropped) > 10 else ".")
    if lines:
        with files.atomic_write(path) as stream:
            stream.write("".join(f"{line}\n" for line in lines).encode())
    else:
        files.remove(path)


def _known_threshold() -> Optional[float]:
    """The threshold of null odds where there are no answers to find it by."""
    if not FLAGS.version_2_with_negative:
        return None
    threshold, source = FLAGS.null_score_diff_threshold, "the flag"
    path = os.path.join(FLAGS.output_dir, _RESULTS_FILE)
    if threshold is None and files.exists(path):
        with files.open_binary(path) as stream:
            threshold = json.loads(stream.read()).get("null_score_diff_threshold")
        source = path
    if threshold is None:
        threshold, source = 0.0, "default; none was searched for in this folder"
    logging.info("Questions with null odds of %g or more are left unanswered (%s).",
                 threshold, source)
    return threshold


def _build(task: squad.SquadTask, config, options, warmup: int,
           data: Optional[squad.QuestionSet], tables: Mapping[str, Any]):
    """The FineTuning object; in the strategy's scope."""
    import tf_keras

    from albert_tf.finetuning import run
    from albert_tf.modeling import models
    from albert_tf.training import objectives

    tf_keras.utils.set_random_seed(FLAGS.random_seed)
    if FLAGS.version_2_with_negative:
        model = models.AlbertForConditionalSpans(
            config, FLAGS.start_n_top, FLAGS.end_n_top, FLAGS.dropout_prob)
        objective = objectives.CONDITIONAL_SPANS
    else:
        model = models.AlbertForSpans(config)
        objective = objectives.SPANS

    def score(outputs):
        return task.score(data, outputs, tables["predict"].columns)

    optimizer = run.make_optimizer(
        model, FLAGS.learning_rate, options.num_train_steps, warmup,
        FLAGS.optimizer) if FLAGS.do_train else None
    return run.FineTuning(
        run.make_task(model, objective, score, task.main_metric), config, options,
        run.BatchOptions(FLAGS.max_seq_length, FLAGS.num_length_buckets,
                                FLAGS.random_seed, FLAGS.predict_batch_size),
        tables.get("train"), tables["predict"] if FLAGS.do_eval else None, optimizer,
        {"task": _task_name(), "num_warmup_steps": warmup,
         **{name: FLAGS[name].value for name in (
             *_KEPT, "learning_rate", "optimizer", "num_length_buckets")}})


def _write(tuner, task: squad.SquadTask, data: squad.QuestionSet, table,
           outputs) -> None:
    """Prediction files and, where there are answers, the metrics."""
    if not data.answered:
        task = dataclasses.replace(task, threshold=_known_threshold())
    if not tuner.chief:
        return
    metrics = task.score(data, outputs, table.columns)
    if metrics and not FLAGS.do_eval:  # Which has told them.
        step = tuner.run.current_step
        logging.info("Predictions at step %d: %s", step, ", ".join(
            f"{name} {value:.6g}" for name, value in metrics.items()))
        path = os.path.join(FLAGS.output_dir, _RESULTS_FILE)
        with files.atomic_write(path) as stream:
            stream.write(
                json.dumps({"step": step, **metrics}, indent=2).encode() + b"\n")
    paths = task.write(FLAGS.output_dir, data, outputs, table.columns)
    logging.info("Wrote %s.", ", ".join(paths))


def _export(tuner) -> None:
    from albert_tf.serving import export

    tuner.load()
    if tuner.chief:
        export.export_spans(tuner.model, FLAGS.export_dir, FLAGS.dtype)


def main(argv):
    del argv
    finetuning_flags.use_kept_task(_KEPT)
    if FLAGS.recipe and FLAGS.do_train:
        _use_recipe()
    _check_flags()
    task = _task()
    options = cli_flags.run_options(
        num_train_steps=FLAGS.num_train_steps, from_scratch=FLAGS.from_scratch,
        early_stopping=FLAGS.early_stopping)
    _check_folder()
    config = finetuning_flags.model_config()
    tokenizer = finetuning_flags.tokenizer(config)
    finetuning_flags.check_start()
    sets, warmup = {}, 0
    if FLAGS.do_train:
        sets["train"] = _read(task, "train")
        steps, warmup = _training_steps(len(sets["train"].examples))
        options = dataclasses.replace(options, num_train_steps=steps)
    if FLAGS.do_eval or FLAGS.do_predict:
        sets["predict"] = _read(task, "predict")
    files.make_directory(options.output_dir, "--output_dir")
    finetuning_flags.keep_task(_KEPT, task=_task_name())
    # Before anything of TensorFlow runs, as making features does: devices and workers
    # cannot be arranged later.
    strategy = cli_flags.make_strategy()
    tables = {name: _features(task, name, found.examples, config, tokenizer)
              for name, found in sets.items()}
    _report_dropped(sets, tables)

    with strategy.scope():
        tuner = _build(task, config, options, warmup, sets.get("predict"), tables)
        outputs = None
        if FLAGS.do_train:
            tuner.train()
        if FLAGS.do_eval:
            _, outputs = tuner.evaluate()
        if FLAGS.do_predict:
            if outputs is None:
                outputs = tuner.predict(tables["predict"], "prediction")
            _write(tuner, task, sets["predict"], tables["predict"], outputs)
        if FLAGS.export_dir:
            _export(tuner)


if __name__ == "__main__":
    cli_flags.run(main)
