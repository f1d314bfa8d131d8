"""All steps at a small scale: text, vocabulary, records, pretraining, evaluation.

    python quickstart.py --output_dir=quickstart_output [--text='my/*.txt']

Runs the project's scripts one after another and prints each command, so that you can
repeat and change every step. Without --text it uses the English documentation in Python
and the installed packages. It takes about four minutes on two cores.
"""

from albert_tf.cli import script  # First: Ctrl-C while the rest loads.

import inspect
import itertools
import os
import pathlib
import re
import shlex
import statistics
import subprocess
import sys
import sysconfig
import time
from typing import Iterator

from absl import flags

from albert_tf import files
from albert_tf.config import AlbertConfig
from albert_tf.errors import InputError
from albert_tf.modeling.parameter_count import count_parameters
from albert_tf.jobs.progress import duration
from albert_tf.training import log

FLAGS = flags.FLAGS

flags.DEFINE_string(
    "text", "", "Comma-separated paths or globs of plain text, wikiextractor output or "
    "JSON lines. Default: the English documentation in Python and installed packages.")
flags.DEFINE_string("language", None, "Language of --text, an ISO 639 code.")
flags.DEFINE_string("output_dir", "quickstart_output", "Folder for all output.")
flags.DEFINE_integer(
    "vocab_size", 4000, "Number of tokens in the vocabulary; reduced if the text is "
    "small.")
flags.DEFINE_integer(
    "num_train_steps", 1500, "Number of training steps.", lower_bound=1)
flags.DEFINE_integer("random_seed", 12345, "Seed of all random choices.")

# A model that two cores can train in minutes: three shared layers of width 128.
MODEL = dict(
    embedding_size=128, hidden_size=128, num_hidden_layers=3, num_attention_heads=4,
    intermediate_size=512, max_position_embeddings=64)
RECORDS = dict(max_seq_length=64, max_predictions_per_seq=10)
BATCH_SIZE = 64

# Bytes of text per token of the vocabulary; small texts get a smaller vocabulary.
BYTES_PER_PIECE = 500


def command(name: str) -> str:
    """Returns how a script is started: in a clone, or by the installed package."""
    return f"albert {name}" if script.typed_as else f"python {name}.py"


def run_script(step: str, script: str, **flag_values) -> None:
    """Runs one of the project's scripts and prints its command."""
    path = os.path.join(os.path.dirname(__file__) or ".", script)
    words = [f"--{name}={value}" for name, value in flag_values.items()]
    shown = " ".join([command(script.removesuffix(".py")), *map(shlex.quote, words)])
    print(f"\n== {step}\n{shown}\n", flush=True)
    begin = time.monotonic()
    with subprocess.Popen([sys.executable, path, *words]) as process:
        try:
            status = process.wait()
        except BaseException:
            process.terminate()  # Lets the script save its work and end.
            raise
    if status:
        raise InputError(
            f"{script} ended with status {status}; see its last lines above.")
    print(f"({duration(time.monotonic() - begin)})", flush=True)


def run_scripts(folder: str) -> AlbertConfig:
    """Makes corpus, vocabulary and records from the text, and trains a model, which is
    evaluated on held-out documents; returns its config."""
    corpus, heldout = f"{folder}/corpus.txt", f"{folder}/heldout.txt"
    texts = FLAGS.text and files.expand_patterns(FLAGS.text, "--text")
    files.make_directory(folder)
    if not texts:
        # Packages repeat each other's sentences.
        source = {"input_file": f"{folder}/python.txt", "deduplicate": "sentences",
                  "document_separator": "blank_line"}
        files.write(source["input_file"], "\n\n".join(python_documents()).encode())
    else:
        source = {"input_file": FLAGS.text}
        if FLAGS.language:
            source["language"] = FLAGS.language
        if len(texts) == 1:
            # A single book must be several documents, because some are held out.
            source["document_separator"] = "blank_line"
    run_script(
        "1. Text: one sentence per line, some documents held out for evaluation",
        "prepare_corpus.py", **source, output_file=corpus, heldout_file=heldout,
        heldout_share=0.05, min_document_sentences=3, random_seed=FLAGS.random_seed)
    vocab_size = min(FLAGS.vocab_size, os.path.getsize(corpus) // BYTES_PER_PIECE)
    run_script(
        "2. Vocabulary: SentencePiece with the original implementation's settings",
        "train_sentencepiece.py", input_file=corpus, output_prefix=f"{folder}/spm",
        vocab_size=vocab_size)
    for name, text, copies in (("train", corpus, 10), ("heldout", heldout, 2)):
        run_script(
            f"3. Records ({name}): sentence order and n-gram masks",
            "create_pretraining_data.py", input_file=text,
            output_file=f"{folder}/{name}.tfrecord",
            spm_model_file=f"{folder}/spm.model", **RECORDS, dupe_factor=copies,
            random_seed=FLAGS.random_seed)
    config = AlbertConfig(vocab_size=vocab_size, **MODEL)
    files.write(f"{folder}/albert_config.json", config.to_json().encode())
    steps = FLAGS.num_train_steps
    run_script(
        "4. Pretraining: masked LM and sentence order with LAMB",
        "run_pretraining.py", input_file=f"{folder}/train.tfrecord",
        eval_input_file=f"{folder}/heldout.tfrecord", output_dir=f"{folder}/model",
        albert_config_file=f"{folder}/albert_config.json", **RECORDS,
        train_batch_size=BATCH_SIZE, eval_batch_size=BATCH_SIZE, max_eval_steps=0,
        learning_rate=0.01, num_train_steps=steps, num_warmup_steps=steps // 20,
        save_checkpoints_steps=max(steps // 8, 1),
        iterations_per_loop=max(steps // 80, 1), random_seed=FLAGS.random_seed)
    return config


def report(folder: str, config: AlbertConfig, begin: float) -> None:
    """Prints the results and the files."""
    rows = log.read_metrics(f"{folder}/model/{log.METRICS_FILE}")
    result = [row for row in rows if row["split"] == "eval"][-1]
    speeds = [row["steps_per_second"] for row in rows if "steps_per_second" in row]
    print(f"""
== Results on held-out documents, after {result["step"]} steps of {BATCH_SIZE} sequences

  masked-LM accuracy        {result["masked_lm_accuracy"]:.1%}   (without the context about 15%)
  sentence-order accuracy   {result["sentence_order_accuracy"]:.1%}   (guessing has about 50%)
  masked-LM loss            {result["masked_lm_loss"]:.3f}
  sentence-order loss       {result["sentence_order_loss"]:.3f}
  steps/s                   {statistics.median(speeds or [0]):.1f}
  parameters                {count_parameters(config)["with heads"]:,}
  time                      {duration(time.monotonic() - begin)}

== Files

  {folder}/corpus.txt, heldout.txt       the text, one sentence per line
  {folder}/spm.model, spm.vocab          the vocabulary
  {folder}/train.tfrecord, heldout.tfrecord   the records
  {folder}/model                         checkpoints, metrics.jsonl, curves.png

== Next steps

  Your own text:         {command("quickstart")} --text='my/*.txt' --output_dir=mine
  Train longer:          the command of step 4 with a larger --num_train_steps
  A published size:      {command("run_pretraining")} --help   (--model=base)
""")


def main(argv):
    begin = time.monotonic()
    folder = FLAGS.output_dir
    if os.path.exists(f"{folder}/model/checkpoint"):
        raise InputError(
            f"{folder} holds the output of an earlier quickstart; remove it (rm -r "
            f"{folder}), or choose a different folder with --output_dir (make "
            "quickstart OUTPUT=FOLDER).")
    report(folder, run_scripts(folder), begin)


# ---- the documentation of Python -------------------------------------------

# Folders without documentation: tests, vendored copies, and pip itself.
_SKIPPED = {"_vendor", "site-packages", "dist-packages", "idlelib", "lib2to3", "pip",
            "pydoc_data", "test", "tests", "turtledemo", "testing", "vendor"}
_MIN_CHARS = 200  # A shorter document has only two or three sentences.
_DOCSTRING = re.compile(r"^ *r?(\"{3}|'{3})(.+?)\1", re.M | re.S)
_HEADING = re.compile(r"^.*\n([=\-~^*#\"'+])\1{2,} *$", re.M)  # underlined
_BULLET = re.compile(r"^( *)(?:[*+-]|\d\.) (?=\S)", re.M)
_MARKUP = re.compile(r":\w+:(?=`)|[`*]|\s?\[\w{1,9}\]_")  # :role:`name`, *emphasis*
_NOT_PROSE = re.compile(r"[=_{}|<>\\^~@$#]|->|::|://|\w\(\w*[,)]|\bself\.|copyright|"
                        "licen[cs]e", re.I)
_SENTENCES = re.compile(r"[\"'(]?[A-Z].*[.!?][\"')]*")
_WORD = re.compile(r"[A-Za-z][a-z']*(?:-[a-z]+)*[.,;:!?)\"']*")


def python_documents(*folders: str) -> Iterator[str]:
    """Yields the English prose in the docstrings of the running Python and its packages,
    or of the sources in `folders`, in an order that depends only on the names: for each
    file its paragraphs, one per line."""
    for folder in map(pathlib.Path, folders or dict.fromkeys(
            map(sysconfig.get_path, ("stdlib", "purelib", "platlib")))):
        for path in sorted(folder.rglob("*.py")):
            if path.is_file() and _SKIPPED.isdisjoint(path.relative_to(folder).parts):
                document = "\n".join(
                    paragraph for _, text in _DOCSTRING.findall(
                        path.read_text("utf-8", "replace")) for paragraph in _prose(text))
                if len(document) >= _MIN_CHARS:
                    yield document


def _prose(text: str) -> Iterator[str]:
    """Yields the paragraphs of a docstring that consist of sentences, and not of code,
    tables or lists of arguments; indentation separates paragraphs."""
    text = _BULLET.sub(r"\n\1  ", _HEADING.sub("", inspect.cleandoc(text)))
    for _, lines in itertools.groupby(text.splitlines(), lambda line: (
            len(line) - len(line.lstrip()) if line.strip() else -1)):
        paragraph = " ".join(_MARKUP.sub("", " ".join(lines)).split())
        words = paragraph.split()
        if (len(words) >= 4 and _SENTENCES.fullmatch(paragraph)
                and not _NOT_PROSE.search(paragraph)
                and sum(map(bool, map(_WORD.fullmatch, words))) >= 0.75 * len(words)):
            yield paragraph


if __name__ == "__main__":
    script.run(main)
