r"""Fine-tunes ALBERT to answer questions about a text: SQuAD 1.1 and 2.0.

    python run_squad.py --train_file=train-v2.0.json --predict_file=dev-v2.0.json \
        --version_2_with_negative --recipe \
        --init_checkpoint=albert_base/model.ckpt-best \
        --spm_model_file=albert_base/30k-clean.model \
        --output_dir=runs/squad --do_train --do_eval --do_predict

Once the model is trained, --do_predict needs only --output_dir and questions, which
need no answers:

    python run_squad.py --output_dir=runs/squad --predict_file=mine.json --do_predict
"""

from albert_tf.cli import script  # First: Ctrl-C while the rest loads.

import functools

from absl import flags

from albert_tf.cli import finetuning_flags
from albert_tf.cli.define import check_needs, define, given
from albert_tf.errors import InputError
from albert_tf.finetuning import tables
from albert_tf.finetuning.course import fine_tune
from albert_tf.finetuning.squad.task import SquadTask
from albert_tf.options import options_of

FLAGS = flags.FLAGS

finetuning_flags.define_flags(
    max_seq_length=384, do_train=False, do_eval=False, learning_rate=5e-5,
    save_checkpoints_steps=1000, num_train_epochs=3.0)
FLAGS["do_eval"].help += " Uses --predict_file, which must have answers."
# Lists these flags in --help, too.
flags.adopt_module_key_flags(finetuning_flags)
flags.DEFINE_string("train_file", None, "JSON file in SQuAD's format to train on, or "
                    "JSON lines, Parquet or Arrow with a row for each question. Several "
                    "paths or globs, separated by commas, are one set.")
flags.DEFINE_string(
    "predict_file", None, "File in SQuAD's format, like --train_file, to predict and "
    "evaluate on.")
for _set in ("train", "predict"):
    flags.DEFINE_string(
        f"{_set}_feature_file", None,
        f"File for the features of --{_set}_file; default: {_set}.tf_record in "
        "--cached_dir, else in --output_dir.")
flags.DEFINE_string(
    "predict_feature_left_file", None, "Ignored; kept for command lines of the "
    "original implementation. --predict_feature_file holds everything.")
finetuning_flags.define_export_flags()
finetuning_flags.define_prediction_flags(all_probabilities=False)
define(SquadTask)

# The flags that define the task. They are saved with the model and read from there.
_KEPT = ("version_2_with_negative", "max_seq_length", "doc_stride", "max_query_length",
         "do_lower_case", "strip_accents", "dropout_prob", "start_n_top", "end_n_top",
         "n_best_size", "max_answer_length", "answer_language",
         "metric")


def _export(task, settings, model, metrics, step):
    from albert_tf.serving.export import export, text_of

    del metrics
    threshold = task.known_threshold(settings.run.output_dir, step)
    export(model, model.head, FLAGS.export_dir, (), FLAGS.dtype, text_of(
        model.head, FLAGS.export_text and settings.tokenizer, FLAGS.max_seq_length,
        threshold=threshold, **finetuning_flags.values(
            "doc_stride", "max_query_length", "n_best_size", "max_answer_length")),
           threshold)


def main(argv):
    del argv
    finetuning_flags.use_kept_task(_KEPT)
    finetuning_flags.check_work()
    check_needs(FLAGS, options_of(SquadTask))
    finetuning_flags.check_prediction_file(
        tables.written_format_of, "train_file", "predict_file")
    if FLAGS.do_train and not FLAGS.train_file:
        raise InputError("give --train_file, the questions to train on.")
    if (FLAGS.do_eval or FLAGS.do_predict) and not FLAGS.predict_file:
        raise InputError("give --predict_file, the questions to "
                         f"{'predict' if FLAGS.do_predict else 'evaluate on'}.")
    if FLAGS.recipe and FLAGS.do_train:
        finetuning_flags.use_recipe(
            "squad-2.0" if FLAGS.version_2_with_negative else "squad-1.1")
    task = finetuning_flags.chosen(given(
        SquadTask, FLAGS, max_seq_length=FLAGS.max_seq_length, must_score=FLAGS.do_eval))
    settings = finetuning_flags.settings(
        _KEPT, task=task.name,
        data={"train": FLAGS.train_file, "predict": FLAGS.predict_file},
        options=finetuning_flags.values(
            *_KEPT, "learning_rate", "optimizer", "num_length_buckets"),
        feature_files={"train": "train_feature_file",
                       "predict": "predict_feature_file"})
    fine_tune(task, settings, functools.partial(_export, task, settings))


if __name__ == "__main__":
    script.run(main, first_flags=(
        "train_file predict_file version_2_with_negative output_dir "
        "init_checkpoint do_train do_predict recipe max_seq_length doc_stride "
        "train_batch_size learning_rate num_train_epochs save_checkpoints_steps "
        "num_seeds dtype gradient_accumulation_steps distribution_strategy tpu "
        "export_dir"))
