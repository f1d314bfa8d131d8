r"""Fine-tunes ALBERT to tag words: names (entities), parts of speech.

    python run_tagger.py --train_file=train.conll --dev_file=dev.conll \
        --init_checkpoint=albert_base/model.ckpt-best \
        --spm_model_file=albert_base/30k-clean.model \
        --output_dir=runs/ner --do_train --do_eval

Files are in CoNLL's column format (one word and its tag per line, a blank line between
sentences), CoNLL-U (*.conllu, --tag_column=UPOS), Parquet or Arrow with tokens and
ner_tags, or JSON lines (*.jsonl):

    {"text": "EU rejects a call", "entities": [{"start": 0, "end": 2, "type": "ORG"}]}

Once the model is trained, --do_predict needs only --output_dir and the sentences:

    python run_tagger.py --output_dir=runs/ner --test_file=mine.conll --do_predict
"""

from albert_tf.cli import script  # First: Ctrl-C while the rest loads.

import dataclasses
import functools

from absl import flags

from albert_tf.cli import finetuning_flags, flags as cli_flags
from albert_tf.errors import InputError
from albert_tf.finetuning.course import fine_tune
from albert_tf.finetuning.tagging import task as tagging, readers, scoring
from albert_tf.tokenization import cleaning

FLAGS = flags.FLAGS

finetuning_flags.define_flags(
    max_seq_length=128, do_train=False, do_eval=False, learning_rate=5e-5,
    save_checkpoints_steps=1000)
FLAGS["max_seq_length"].help = (
    "Maximum length of a sequence in tokens; longer sentences are split into "
    "overlapping windows.")
FLAGS["save_checkpoints_steps"].help += (
    " With --do_eval, a tenth of the steps by default.")
# Lists these flags in --help, too.
flags.adopt_module_key_flags(finetuning_flags)
_USE_OF_SPLIT = {"train": "train on", "dev": "evaluate on", "test": "predict"}
for _split, _use in _USE_OF_SPLIT.items():
    flags.DEFINE_string(f"{_split}_file", None, f"File of sentences to {_use}; may "
                        "be .gz. Several paths or globs, separated by commas, are one "
                        "set.")
finetuning_flags.define_export_flags()
flags.DEFINE_enum(
    "data_format", "auto", ["auto", *readers.FORMATS], "Format of the files; auto: "
    "given by the extension (.conllu, .jsonl, .json, .parquet, .arrow), else "
    "CoNLL's columns.")
flags.DEFINE_string(
    "tag_column", "", "Column of the tag: in CoNLL's columns a number, from 0 or from "
    "-1 backwards (default: the last); in CoNLL-U its name (default: UPOS), as in JSON "
    "lines (default: tags) and Parquet (default: tags or ner_tags).")
flags.DEFINE_integer("word_column", 0, "CoNLL's columns: number of the word's column, "
                     "from 0.")
flags.DEFINE_bool(
    "test_tags", None, "--test_file has tags, and predictions are scored against "
    "them; default: true if the file has a column or field for tags.")
flags.DEFINE_enum(
    "scheme", "auto", ["auto", *scoring.SCHEMES], "How tags mark "
    "entities; none: they mark none (e.g. parts of speech), and each tag is scored by "
    "itself; auto: detected from the tags of --train_file.")
flags.DEFINE_list("labels", None, "The tags in the order of their ids; default: the "
                  "tags that the schema of --train_file names (Parquet), or those in "
                  "it, O first, the others sorted. They also name tags that are "
                  "numbers.")
flags.DEFINE_enum(
    "split_words", "auto", ["auto", *cleaning.WORD_SPLITS], "How to split the text of "
    "JSON lines, and the text of later requests, into words: at white space; also at "
    "punctuation and between Chinese characters; or into single characters. auto: "
    "characters if each word in --train_file is one character, else punctuation.")
flags.DEFINE_bool(
    "strip_numbers", False, "Remove the segmentation number at the end of each word in "
    "columns, as in Weibo (\u79d10 \u62801).")
flags.DEFINE_integer("doc_stride", 64, "Distance between the starts of consecutive "
                     "windows of a long sentence, in tokens.",
                     lower_bound=1, upper_bound=cli_flags.MOST)

# The flags that define the task. They are saved with the model and read from there.
_KEPT = ("max_seq_length", "doc_stride", "do_lower_case", "strip_accents",
         "dropout_prob", "labels", "scheme", "split_words", "strip_numbers",
         "tag_column", "word_column", "metric")


def _export(task, settings, model, metrics, step):
    from albert_tf.serving.export import export, text_of

    del metrics, step
    export(model, model.head, FLAGS.export_dir, task.labels, FLAGS.dtype, text_of(
        model.head, FLAGS.export_text and settings.tokenizer, FLAGS.max_seq_length,
        labels=task.labels, scheme=task.scheme, split=task.reading.split,
        doc_stride=task.doc_stride))


def _task() -> tagging.TaggingTask:
    """Builds the task, and sets the flags left open so that they are saved with it."""
    for split, wanted in (("train", FLAGS.do_train), ("dev", FLAGS.do_eval),
                          ("test", FLAGS.do_predict)):
        if wanted and not FLAGS[f"{split}_file"].value:
            raise InputError(f"give --{split}_file, the sentences to "
                             f"{_USE_OF_SPLIT[split]}.")
    task = tagging.build_task(
        FLAGS.do_train and FLAGS.train_file or "", labels=FLAGS.labels,
        known_labels=() if FLAGS.labels else finetuning_flags.initial_labels(
            "token_classification"),
        scheme=FLAGS.scheme,
        reading=readers.Reading(FLAGS.data_format, FLAGS.tag_column, FLAGS.word_column,
                                FLAGS.split_words, FLAGS.strip_numbers),
        **finetuning_flags.values("max_seq_length", "doc_stride", "test_tags"))
    FLAGS.labels, FLAGS.scheme = list(task.labels), task.scheme
    FLAGS.split_words = task.reading.split
    return task


def main(argv):
    del argv
    finetuning_flags.use_kept_task(_KEPT)
    finetuning_flags.check_work()
    finetuning_flags.clean_labels()
    task, tokenizer = finetuning_flags.chosen(_task()), None
    finetuning_flags.check_labels("token_classification", len(task.labels))
    if FLAGS.recipe and FLAGS.do_train:
        sentences, _ = task.reading.read(FLAGS.train_file, task.scheme, True)
        tokenizer = finetuning_flags.use_recipe_for_data(sentences, task.length_of)
        task = dataclasses.replace(task, max_seq_length=FLAGS.max_seq_length)
    settings = finetuning_flags.settings(
        _KEPT,
        data={split: FLAGS[f"{split}_file"].value for split in _USE_OF_SPLIT},
        options=finetuning_flags.values(
            "learning_rate", "warmup_step", "optimizer", "num_length_buckets", *_KEPT),
        task=task.name, head="token_classification", labels=list(task.labels),
        known_tokenizer=tokenizer, own_data=True)
    fine_tune(task, settings, functools.partial(_export, task, settings))


if __name__ == "__main__":
    script.run(main, first_flags=(
        "train_file dev_file test_file output_dir init_checkpoint do_train "
        "do_eval do_predict recipe max_seq_length train_batch_size learning_rate "
        "train_step num_train_epochs warmup_step save_checkpoints_steps early_stopping num_seeds "
        "dtype gradient_accumulation_steps distribution_strategy tpu export_dir"))
