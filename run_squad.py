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

from albert_tf.cli import checks, finetuning_flags, flags as cli_flags
from albert_tf.errors import InputError
from albert_tf.finetuning import tables
from albert_tf.finetuning.course import fine_tune
from albert_tf.finetuning.squad import languages
from albert_tf.finetuning.squad.task import SquadTask

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
_MOST_TRIED = 1000  # starts and ends, in pairs
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
flags.DEFINE_bool("version_2_with_negative", False,
                  "Train for SQuAD 2.0, where some questions have no answer.")
flags.DEFINE_integer("doc_stride", 128,
                     "Distance between the starts of consecutive windows of a "
                     "paragraph, in tokens.",
                     lower_bound=1, upper_bound=cli_flags.MOST)
flags.DEFINE_integer("max_query_length", 64, "Maximum length of a question in tokens; "
                     "longer ones are cut.",
                     lower_bound=1, upper_bound=cli_flags.MOST)
flags.DEFINE_integer("n_best_size", 20, "Number of candidate answers kept for each "
                     "question and, for SQuAD 1.1, of starts and of ends tried in each "
                     "window.",
                     lower_bound=1, upper_bound=_MOST_TRIED)
flags.DEFINE_integer("max_answer_length", 30, "Maximum length of an answer in tokens.",
                     lower_bound=1, upper_bound=cli_flags.MOST)
flags.DEFINE_integer("start_n_top", 5, "SQuAD 2.0: number of starts tried in each "
                     "window.",
                     lower_bound=1, upper_bound=_MOST_TRIED)
flags.DEFINE_integer("end_n_top", 5, "SQuAD 2.0: number of ends tried for each start.",
                     lower_bound=1, upper_bound=_MOST_TRIED)
flags.DEFINE(
    checks.Number(lower_bound=-1e38), "null_score_diff_threshold", None,
    "SQuAD 2.0: questions whose null odds reach this threshold are left unanswered. "
    "Default: the threshold with the best F1 on --predict_file; if that file has no "
    "answers, the threshold of the model in --output_dir, which its evaluation found; "
    "else 0.")
flags.DEFINE_bool(
    "answer_at_threshold", False, "SQuAD 2.0: answer questions whose null odds equal "
    "the threshold, as the search for the best threshold assumes. The original "
    "implementation does not; its F1 is therefore usually slightly below the best.")

flags.DEFINE_enum(
    "answer_language", "auto", ["auto", languages.ENGLISH,
                                *languages.CHARACTER_LANGUAGES],
    "How exact match and F1 compare answers: en, the official script of SQuAD, for all "
    "languages with blanks between words; zh as CMRC and DRCD, ja and ko as KorQuAD, "
    "by characters. auto: by the script of --predict_file's passages.")

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
    checks.check_needs(
        "null_score_diff_threshold answer_at_threshold start_n_top end_n_top",
        FLAGS.version_2_with_negative, "--version_2_with_negative")
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
    task = finetuning_flags.chosen(SquadTask(
        FLAGS.version_2_with_negative, threshold=FLAGS.null_score_diff_threshold,
        must_score=FLAGS.do_eval, **finetuning_flags.values(
            "max_seq_length", "doc_stride", "max_query_length", "n_best_size",
            "max_answer_length", "start_n_top", "end_n_top", "answer_at_threshold",
            "answer_language")))
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
