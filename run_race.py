r"""Fine-tunes ALBERT on RACE: reading comprehension with four choices.

    python run_race.py --data_dir=RACE --recipe \
        --init_checkpoint=albert_base/model.ckpt-best \
        --spm_model_file=albert_base/30k-clean.model \
        --output_dir=runs/race --gradient_accumulation_steps=8 --do_predict

Trains on RACE's training set, evaluates each checkpoint on the dev set and keeps the
best. With --do_predict, answers the test set; if that has answers, its accuracy is
reported, too.

A question is four sequences: a batch of 32 is 128 sequences of up to 512 tokens, which
do not fit on most devices. --gradient_accumulation_steps=8 computes it in parts of four
questions with the same result.

Once the model is trained, --do_predict needs only --output_dir and the data:

    python run_race.py --output_dir=runs/race --data_dir=RACE \
        --nodo_train --nodo_eval --do_predict
"""

from albert_tf.cli import script  # First: Ctrl-C while the rest loads.

import functools

from absl import flags

from albert_tf.cli import finetuning_flags, flags as cli_flags
from albert_tf.errors import InputError
from albert_tf.finetuning import tables
from albert_tf.finetuning.course import fine_tune
from albert_tf.finetuning.race.task import LETTERS, RaceTask
from albert_tf.tokenization.sequences import NUM_SPECIAL_PAIR

FLAGS = flags.FLAGS

finetuning_flags.define_flags(
    max_seq_length=512, do_train=True, do_eval=True, learning_rate=1e-5,
    save_checkpoints_steps=100, train_step=12000, warmup_step=1000)
# Lists these flags in --help, too.
flags.adopt_module_key_flags(finetuning_flags)
FLAGS["recipe"].help += (
    " For a model whose config has no dropout, the recipe is that of version 2 of the "
    "released models: no dropout, learning rate 1e-5. (The config of xxlarge version 1 "
    "has no dropout either, but the paper trains it with dropout: add "
    "--albert_dropout_prob=0.1.)")
flags.DEFINE_string("task_name", "race", "Must be race; kept for command lines of the "
                    "original implementation.")
flags.DEFINE_string(
    "data_dir", "", "The folder RACE as downloaded, or the folder that contains it, or "
    "a folder of Parquet or Arrow files with a row for each question (train*.parquet, "
    "validation*.parquet, test*.parquet).")
finetuning_flags.define_export_flags()
finetuning_flags.define_prediction_flags()
flags.DEFINE_integer(
    "max_qa_length", 128,
    "Maximum length of question and option together, in tokens; of longer ones the "
    "last tokens are kept.",
    lower_bound=1, upper_bound=cli_flags.MOST)
flags.DEFINE_bool("high_only", False, "Use only the high-school passages.")
flags.DEFINE_bool("middle_only", False, "Use only the middle-school passages.")
_FILE_OF_SPLIT = {"train": "train_file", "dev": "eval_file", "test": "predict_file"}
for _split, _flag in _FILE_OF_SPLIT.items():
    flags.DEFINE_string(
        _flag, None, f"File for the features of the {_split} set; default: "
        f"{_split}.tf_record in --cached_dir, else in --output_dir.")

# The flags that define the task. They are saved with the model and read from there.
_KEPT = ("task_name", "max_seq_length", "max_qa_length", "do_lower_case", "strip_accents",
         "dropout_prob")
_LEVELS = ("high_only", "middle_only")


def _export(settings, model, metrics, step):
    from albert_tf.serving.export import export, text_of

    del metrics, step
    export(model, model.head, FLAGS.export_dir, list(LETTERS), FLAGS.dtype, text_of(
        model.head, FLAGS.export_text and settings.tokenizer, FLAGS.max_seq_length,
        labels=LETTERS, max_qa_length=FLAGS.max_qa_length))


def _use_recipe():
    # The released models of version 2 have no dropout in their config.
    config = finetuning_flags.model_config()
    dropout = config.hidden_dropout_prob or config.attention_probs_dropout_prob
    finetuning_flags.use_recipe("race" if dropout else "race-v2")


def main(argv):
    del argv
    # The levels exclude each other, so that one given flag overrides both saved ones.
    has_level = any(FLAGS[name].present for name in _LEVELS)
    finetuning_flags.use_kept_task(_KEPT if has_level else _KEPT + _LEVELS)
    finetuning_flags.check_work()
    finetuning_flags.check_prediction_file(tables.written_format_of)
    if FLAGS.task_name.lower() != "race":
        raise InputError(
            f"--task_name={FLAGS.task_name}: this script supports only race; use "
            "run_classifier.py for the other tasks.")
    if not FLAGS.data_dir:
        raise InputError("--data_dir=FOLDER is needed: the folder RACE as downloaded.")
    if FLAGS.recipe and FLAGS.do_train:
        _use_recipe()
    room = FLAGS.max_seq_length - NUM_SPECIAL_PAIR
    if FLAGS["max_qa_length"].present and FLAGS.max_qa_length >= room > 1:
        raise InputError(
            f"--max_qa_length={FLAGS.max_qa_length} leaves no room for the passage in "
            f"--max_seq_length={FLAGS.max_seq_length}; give less than {room}, or a "
            "larger --max_seq_length.")
    task = finetuning_flags.chosen(RaceTask(**finetuning_flags.values(
        "max_seq_length", "max_qa_length", *_LEVELS)))
    settings = finetuning_flags.settings(
        _KEPT + _LEVELS,
        data=dict.fromkeys(_FILE_OF_SPLIT, FLAGS.data_dir),
        options=finetuning_flags.values(
            "task_name", "learning_rate", "warmup_step", "optimizer", "max_seq_length",
            "max_qa_length", "dropout_prob", "num_length_buckets", *_LEVELS),
        feature_files=_FILE_OF_SPLIT, task="race", labels=list(LETTERS))
    fine_tune(task, settings, functools.partial(_export, settings))


if __name__ == "__main__":
    script.run(main, first_flags=(
        "data_dir output_dir init_checkpoint do_train do_eval do_predict recipe "
        "max_seq_length max_qa_length train_batch_size learning_rate train_step "
        "num_train_epochs warmup_step save_checkpoints_steps num_seeds dtype "
        "gradient_accumulation_steps distribution_strategy tpu export_dir"))
