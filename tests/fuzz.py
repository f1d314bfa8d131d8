"""Damages files and flags of every script, and looks for what a user should never see.

    python -m tests.fuzz --tries=2000 --output=tries.jsonl  # goes on where it stopped
    python -m tests.fuzz --seed=1 --only=1234    # one of them again, shown

Each try takes a command of a script that works, damages one of the files it reads (cut
short, bits flipped, bytes put in or taken out, JSON values replaced, lines changed) or
gives one flag a bad value, and runs it. It may end well, or with one sentence and a
status that is not 0. It fails this test with a traceback, a crash, a hang, an input that
is no longer what it was, a leftover of a file, a number that cannot be meant and is taken
for a flag, or (of files that have checksums) results that differ from those of the
undamaged file. A seed gives the same tries again.

It is no part of the test suite: 2,000 tries take about an hour on one core. A script is
imported once, TensorFlow with it, and each try is a fork of that process.
"""

import argparse
import concurrent.futures
import contextlib
import functools
import hashlib
import importlib
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).parents[1]
SECONDS = 60  # A try that takes longer hangs; most take less than three.
BIG = 10 ** 20

# ---- the commands ----------------------------------------------------------

WORDS = ("the a of in to was is man boat lake house old new red sold built went home "
         "again near big small water tree bird stone").split()
SYLLABLES = [a + b for a in "bdklmnprst" for b in "aeiou"]
MODEL = {"vocab_size": 150, "embedding_size": 4, "hidden_size": 8, "num_hidden_layers": 1,
         "num_attention_heads": 2, "intermediate_size": 8, "max_position_embeddings": 32,
         "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
TRAIN = dict(train_batch_size=4, eval_batch_size=4, max_seq_length=24)
TASK = dict(TRAIN, albert_config_file="config.json", spm_model_file="spm.model",
            num_workers=1, num_length_buckets=1, from_scratch="true", output_dir="out",
            save_checkpoints_steps=2)
RECORDS = dict(TRAIN, albert_config_file="config.json", max_predictions_per_seq=4,
               num_train_steps=2, save_checkpoints_steps=2, output_dir="out")
COLA = dict(TASK, task_name="cola", data_dir="glue", train_step=2, do_train="true",
            do_eval="true", do_predict="true")
# On folders whose training is at its end, where they need not train again.
CSV = dict(TASK, task_name="custom", train_file="own.csv", dev_file="own.jsonl",
           text_column="text", label_column="label", train_step=2, do_train="true",
           do_eval="true", output_dir="own")
SQUAD = dict(TASK, train_file="squad.json", predict_file="squad.json",
             num_train_steps=2, doc_stride=8, max_query_length=8, do_train="true",
             do_predict="true")
RACE = dict(TASK, data_dir="RACE", train_step=2, warmup_step=1, max_qa_length=8,
            do_train="true", do_eval="true")
TAGGER = dict(TASK, train_file="tags.conll", dev_file="tags.jsonl", train_step=2,
              warmup_step=1, doc_stride=8, do_train="true", do_eval="true")
SENTIMENT = [f"sentiment/{name}" for name in (
    "task.json", "spm.model", "albert_config.json", "model.ckpt-best.index",
    "model.ckpt-best.data-00000-of-00001")]
# Formats of models, each a folder → its files that are read.
FOREIGN = {
    "hf": ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"],
    "keras_hub": ["config.json", "model.weights.h5", "task.weights.h5", "task.json",
                  "tokenizer.json", "assets/tokenizer/vocabulary.spm"],
    "tf_models": ["albert_config.json", "ckpt-1.index", "spm.model", "checkpoint",
                  "ckpt-1.data-00000-of-00001"],
    "sentence": ["config.json", "model.safetensors", "modules.json", "tokenizer.json",
                 "1_Pooling/config.json", "sentence_bert_config.json"]}
EXPORTED = {
    "onnx": ["onnx/model.onnx", "portable.json", "config.json", "spiece.model",
             "labels.txt", "vocabulary.json"],
    "tflite": ["model.tflite", "portable.json", "albert_config.json", "spm.model",
               "labels.txt", "tokenizer_config.json"]}
# script → name → (flags, files that are damaged).
COMMANDS = {
    "prepare_corpus": {
        "plain": (dict(input_file="wiki.txt", output_file="out/a.txt",
                       heldout_file="out/b.txt", heldout_share=0.2,
                       document_separator="blank_line"), ["wiki.txt"]),
        "jsonl": (dict(input_file="text.jsonl", output_file="out/a.txt"),
                  ["text.jsonl"]),
        "gz": (dict(input_file="wiki.txt.gz", output_file="out/a.txt"),
               ["wiki.txt.gz"]),
        "squad": (dict(input_file="squad.json", input_format="squad",
                       output_file="out/a.txt"), ["squad.json"]),
        "race": (dict(input_file="RACE/dev", input_format="race",
                      output_file="out/a.txt"), ["RACE/dev/high/0.txt"])},
    "train_sentencepiece": {
        "plain": (dict(input_file="text.txt", output_prefix="out/spm", vocab_size=120,
                       num_threads=1), ["text.txt"])},
    "create_pretraining_data": {
        "plain": (dict(input_file="text.txt", output_file="out/t.tfrecord",
                       spm_model_file="spm.model", max_seq_length=24,
                       max_predictions_per_seq=4, dupe_factor=1, num_workers=1),
                  ["text.txt", "spm.model"]),
        "wordpiece": (dict(input_file="text.txt", output_file="out/t.tfrecord",
                           vocab_file="vocab.txt", max_seq_length=24, dupe_factor=1,
                           max_predictions_per_seq=4, num_workers=1),
                      ["text.txt", "vocab.txt"]),
        "release": (dict(input_file="text.txt", output_file="out/t.tfrecord",
                         spm_model_file="spm.model", max_seq_length=24, dupe_factor=1,
                         max_predictions_per_seq=4, reproduce_release="true"),
                    ["text.txt", "spm.model"])},
    "count_parameters": {
        "config": (dict(albert_config_file="config.json"), ["config.json"])},
    "extend_vocabulary": {
        "plain": (dict(input_file="wiki.txt", spm_model_file="spm.model", num_pieces=5,
                       init_checkpoint="model", output_dir="out"),
                  ["wiki.txt", "spm.model", "model/model.ckpt-best.index",
                   "model/model.ckpt-best.data-00000-of-00001",
                   "model/albert_config.json", "model/vocabulary.json"])},
    "run_pretraining": {
        "train": (dict(RECORDS, input_file="t.tfrecord", eval_input_file="t.tfrecord"),
                  ["t.tfrecord", "config.json"]),
        "start": (dict(RECORDS, input_file="t.tfrecord", init_checkpoint="model"),
                  ["t.tfrecord", "model/model.ckpt-best.index", "model/albert_config.json",
                   "model/model.ckpt-best.data-00000-of-00001"]),
        "resume": (dict(RECORDS, input_file="t.tfrecord", output_dir="trained",
                        num_train_steps=4),
                   ["trained/model.ckpt-2.index", "trained/checkpoint",
                    "trained/model.ckpt-2.data-00000-of-00001", "trained/options.json",
                    "trained/albert_config.json", "trained/metrics.jsonl",
                    "trained/vocabulary.json", "trained/best_metric.json"])},
    "run_classifier": {
        "train": (COLA, ["spm.model", "config.json"]),
        "cola": (dict(COLA, output_dir="sentiment"),
                 ["glue/CoLA/train.tsv", "glue/CoLA/dev.tsv", "glue/CoLA/test.tsv"]),
        "csv": (CSV, ["own.csv", "own.jsonl"]),
        "again": (dict(output_dir="sentiment", data_dir="glue", do_predict="true",
                       num_workers=1),
                  ["sentiment/task.json", "sentiment/spm.model",
                   "sentiment/test.tf_record",
                   "sentiment/test.tf_record.fingerprint.json",
                   "sentiment/albert_config.json", "sentiment/model.ckpt-best.index",
                   "sentiment/model.ckpt-best.data-00000-of-00001"])},
    "run_squad": {
        "train": (dict(SQUAD, version_2_with_negative="true"), []),
        "v1": (dict(SQUAD, output_dir="squad1"), ["squad.json"]),
        "v2": (dict(SQUAD, output_dir="squad2", version_2_with_negative="true"),
               ["squad.json", "squad2/task.json", "squad2/eval_results.json"])},
    "run_race": {
        "train": (RACE, []),
        "race": (dict(RACE, output_dir="race"),
                 ["RACE/train/high/0.txt", "RACE/dev/middle/1.txt"])},
    "run_tagger": {
        "train": (TAGGER, []),
        "columns": (dict(TAGGER, output_dir="tagger", test_file="tags.conllu",
                         do_predict="true"),
                    ["tags.conll", "tags.jsonl", "tags.conllu", "tagger/task.json"])},
    # What serve.py answers comes by the same way; it ends only when it is stopped.
    "predict": {
        "lines": (dict(model="sentiment", input_file="ask.txt", output_file="out/a.jsonl"),
                  ["ask.txt", *SENTIMENT]),
        "questions": (dict(model="squad2", input_file="ask.jsonl",
                           output_file="out/a.jsonl"),
                      ["ask.jsonl", "squad2/task.json", "squad2/eval_results.json"]),
        "tags": (dict(model="tagger", input_file="ask.txt", output_file="out/a.jsonl"),
                 ["ask.txt", "tagger/task.json"]),
        **{name: (dict(model=name, input_file="ask.txt", output_file="out/a.jsonl"),
                  [f"{name}/{file}" for file in found])
           for name, found in {**FOREIGN, **EXPORTED}.items()}},
    "extract_features": {
        "pieces": (dict(model="tagger", input_file="ask.txt", output_file="out/a.jsonl",
                        pooling="pieces,mean"),
                   ["ask.txt", "tagger/albert_config.json", "tagger/task.json"]),
        "npz": (dict(model="sentiment", input_file="texts.jsonl",
                     output_file="out/a.npz"), ["texts.jsonl", *SENTIMENT]),
        "sentence": (dict(model="sentence", input_file="ask.txt",
                          output_file="out/a.npz"),
                     [f"sentence/{file}" for file in FOREIGN["sentence"]])},
    "analyze_layers": {
        "plain": (dict(model="sentiment,tagger", input_file="ask.txt",
                       output="out/a.json", picture="out/a.png"),
                  ["ask.txt", "tagger/albert_config.json", *SENTIMENT])},
    "convert_checkpoint": {
        **{name: (dict(input=name, output="out/a", format=to),
                  [f"{name}/{file}" for file in FOREIGN[name]])
           for name, to in (("hf", "tf1"), ("keras_hub", "hf"), ("tf_models", "tf1"),
                            ("sentence", "keras_hub"))},
        "run": (dict(input="sentiment", output="out/a", format="hf"), SENTIMENT)},
    "export_model": {
        "tags": (dict(model="tagger", export_dir="out/a"),
                 ["tagger/task.json", "tagger/spm.model", "tagger/albert_config.json"]),
        "ids": (dict(model="hf", export_dir="out/a", export_text="false"),
                [f"hf/{file}" for file in FOREIGN["hf"]]),
        **{name: (dict(model="sentiment", export_dir="out/a", format=name,
                       precision="int8"), SENTIMENT)
           for name in ("onnx", "tflite")}},
}
# Those that train take long: a half of the others' tries.
TRAINING = ("train", "start", "resume")
# Files whose content is checked, by a checksum or a fingerprint: accepted damage must
# not change a result.
CHECKED = re.compile(r".*\.(tfrecord|tf_record|gz|index|data-.*)")
# Scripts that do without TensorFlow.
LIGHT = ("prepare_corpus", "train_sentencepiece", "create_pretraining_data",
         "count_parameters")
# Flags whose values need a network, a device or a long time by what they mean.
LEFT_OUT = ("tpu", "tpu_zone", "gcp_project", "master", "runner", "only_check_args",
            "logtostderr", "verbosity", "v", "pdb", "log_dir", "run_with_pdb",
            "run_with_profiling", "use_cprofile_for_profiling", "profile_file",
            "pdb_post_mortem", "alsologtostderr", "stderrthreshold", "help", "helpshort",
            "helpfull", "helpxml", "flagfile", "undefok", "xml_output_file",
            "showprefixforinfo", "logger_levels", "num_threads")
# Numbers that no flag can mean: they are refused, or the script came to no use of them.
ABSURD = ("nan", "inf", "-inf", "1e400", str(BIG), str(-BIG))
# Steps and repeats that would take for ever if they are taken at their word.
LONG = ("num_train_steps", "train_step", "dupe_factor", "num_train_epochs",
        "max_train_steps", "num_seeds")
VALUES = ["", "-1", "0", "1", *ABSURD, "1e-400", "0.5", "-0.0", "1e9", "2147483648",
          "None", "true", "maybe", ",", "a,b",
          "/dev/null/x", "no/such/file", "/", ".", "~", " ", "\u00e9\u4e2d", "x" * 5000,
          "{}", "[1]", "*", "[", "t.tfrecord", "config.json", "text.txt", "gs:/x", "\n",
          "--", "spm.model", "out", "hidden_size=-1", "hidden_size=nan",
          "vocab_size=1e9", "num_hidden_layers=1000000000", "initializer_range=nan"]
JSON_VALUES = [None, True, False, -1, 0, 1.5, float("nan"), float("inf"), BIG, -BIG, "",
               "x", "\u0000", "\ud800", "NaN", [], {}, [[]], [None], {"a": 1}, "x" * 5000,
               10 ** 9, 1e308]


def sentences(number):
    generator = random.Random(number)
    return [" ".join([*generator.choices(WORDS, k=generator.randint(3, 6)), *(
        "".join(generator.choices(SYLLABLES, k=3)) for _ in range(3))]) + "."
            for _ in range(8)]


def make(folder, script, **flags):
    subprocess.run([sys.executable, ROOT / f"{script}.py", *map(
        "--{0[0]}={0[1]}".format, flags.items())], cwd=folder, check=True,
        stdout=subprocess.DEVNULL, env=environment())


def write_inputs(folder):
    """Texts and data in the current format of each script, a vocabulary and records."""
    def write(name, content):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))

    documents = [sentences(n) for n in range(30)]
    write("text.txt", "\n\n".join("\n".join(lines) for lines in documents) + "\n")
    write("wiki.txt", "\n\n".join(" ".join(lines) for lines in documents))
    write("text.jsonl", "\n".join(json.dumps({"text": " ".join(lines)})
                                  for lines in documents))
    write("config.json", MODEL)
    write("vocab.txt", "\n".join(
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "."]))
    rows = [(sentences(n)[0], n % 2) for n in range(12)]
    for split in ("train", "dev"):
        write(f"glue/CoLA/{split}.tsv",
              "".join(f"x\t{label}\t\t{text}\n" for text, label in rows))
    write("glue/CoLA/test.tsv", "index\tsentence\n" + "".join(
        f"{n}\t{text}\n" for n, (text, _) in enumerate(rows)))
    write("own.csv", "text,label\n" + "".join(
        f"{text},{'yes' if label else 'no'}\n" for text, label in rows))
    write("own.jsonl", "".join(json.dumps(
        {"text": text, "label": "yes" if label else "no"}) + "\n" for text, label in rows))
    write("squad.json", {"version": "v2.0", "data": [{"title": "t", "paragraphs": [
        {"context": " ".join(lines), "qas": [{
            "id": f"q{n}", "question": "What was it?", "is_impossible": False,
            "answers": [{"text": lines[0], "answer_start": 0}]}]}
        for n, lines in enumerate(documents[:6])]}]})
    for split in ("train", "dev"):
        for n, level in enumerate(("high", "middle")):
            write(f"RACE/{split}/{level}/{n}.txt", {
                "id": f"{level}{n}.txt", "article": " ".join(documents[n]),
                "questions": ["What was it?"] * 4, "answers": ["A", "B", "C", "D"],
                "options": [WORDS[4 * i:4 * i + 4] for i in range(4)]})
    tags = [(text.split(), ["B-X", "I-X", "O"][:n % 3] + ["O"] * 9)
            for text, n in rows for n in [len(text)]]
    write("tags.conll", "\n".join("".join(f"{word} {tag}\n" for word, tag in zip(*pair))
                                  for pair in tags))
    write("tags.conllu", "\n".join("".join(
        f"{i}\t{word}\t_\t{tag}{6 * chr(9)}\n" for i, (word, tag) in enumerate(
            zip(*pair), 1)) for pair in tags))
    write("tags.jsonl", "".join(json.dumps({"text": text, "entities": [
        {"start": 0, "end": text.index(" "), "type": "X"}]}) + "\n" for text, _ in rows))
    write("ask.txt", "".join(f"{lines[0]}\n" for lines in documents[:5]))
    write("texts.jsonl", "".join(json.dumps({"id": n, "text": text}) + "\n"
                                 for n, (text, _) in enumerate(rows)))
    write("ask.jsonl", "".join(json.dumps({
        "id": n, "question": "What was it?", "passage": " ".join(lines)}) + "\n"
                               for n, lines in enumerate(documents[:5])))
    with open(folder / "wiki.txt", "rb") as source:
        import gzip

        with gzip.GzipFile(folder / "wiki.txt.gz", "wb", mtime=0) as stream:
            stream.write(source.read())
    make(folder, "train_sentencepiece", input_file="text.txt", output_prefix="spm",
         vocab_size=150, num_threads=1)
    make(folder, "create_pretraining_data", **{
        **COMMANDS["create_pretraining_data"]["plain"][0], "output_file": "t.tfrecord"})


def write_material(folder):
    """Inputs of each script, models too, made by the scripts themselves."""
    run = functools.partial(make, folder)
    write_inputs(folder)
    run("run_pretraining", **{
        **COMMANDS["run_pretraining"]["train"][0], "output_dir": "model"})
    shutil.copytree(folder / "model", folder / "trained")
    for script, name in (("run_classifier", "cola"), ("run_classifier", "csv"),
                         ("run_squad", "v1"), ("run_squad", "v2"), ("run_race", "race"),
                         ("run_tagger", "columns")):
        run(script, **COMMANDS[script][name][0])
    for name, more in (("hf", {}), ("keras_hub", {}), ("tf_models", {"encoder_only": "true"}),
                       ("sentence", {"format": "sentence_transformers"})):
        run("convert_checkpoint", **{
            "input": "sentiment", "output": name, "format": name, **more})
    for name in EXPORTED:
        run("export_model", model="sentiment", export_dir=name, format=name)


# ---- damage ----------------------------------------------------------------


def damaged_bytes(data, generator):
    """(what was done, the new content)."""
    size = len(data)
    place = generator.randrange(size + 1)
    kind = generator.choice(
        ["cut", "empty", "flip", "flip", "flip", "zeros", "noise", "insert", "remove",
         "append", "double"])
    length = generator.choice([1, 2, 8, 100])
    noise = generator.randbytes(length)
    if kind == "cut":
        return f"cut at {place}", data[:place]
    if kind == "empty":
        return "emptied", b""
    if kind == "flip":
        changed = bytearray(data)
        places = sorted(generator.randrange(8 * size) for _ in range(
            generator.choice([1, 1, 1, 3])) if size)
        for bit in places:
            changed[bit // 8] ^= 1 << bit % 8
        return f"bits {places} flipped", bytes(changed)
    if kind in ("zeros", "noise"):
        new = bytes(length) if kind == "zeros" else noise
        return f"{length} bytes of {kind} at {place}", (
            data[:place] + new + data[place + length:])
    if kind == "insert":
        return f"{length} bytes put in at {place}", data[:place] + noise + data[place:]
    if kind == "remove":
        return f"{length} bytes taken out at {place}", data[:place] + data[place + length:]
    if kind == "append":
        return f"{length} bytes appended", data + noise
    return "written twice", data + data


def damaged_json(data, generator):
    """One value of a document, or of a line of it, replaced or left out."""
    lines = [data] if data.strip().count(b"\n") == 0 or data.startswith(
        b"{\n") else data.splitlines(keepends=True)
    number = generator.randrange(len(lines))
    value = json.loads(lines[number])
    paths = []

    def walk(node, path):
        paths.append(path)
        for key in node if isinstance(node, dict) else range(len(node)) if isinstance(
                node, list) else ():
            walk(node[key], (*path, key))

    walk(value, ())
    path = generator.choice(paths)
    new = generator.choice([*JSON_VALUES, "deep", "digits", "gone"])
    text = json.dumps(new)
    if new == "deep":
        text = "[" * 100_000 + "]" * 100_000
    elif new == "digits":
        text = "9" * 5000
    marker = "\u0001marker\u0001"
    if not path:
        changed = text
    else:
        parent = value
        for key in path[:-1]:
            parent = parent[key]
        if new == "gone":
            del parent[path[-1]]
        else:
            parent[path[-1]] = marker
        changed = json.dumps(value).replace(json.dumps(marker), text)
    lines[number] = changed.encode() + b"\n"
    return f"JSON {list(path)} = {text[:40]}", b"".join(lines)


def damaged_lines(data, generator):
    """A text's line changed."""
    lines = data.split(b"\n")
    number = generator.randrange(len(lines))
    line = lines[number]
    kind, new = generator.choice([
        ("twice", line + b"\n" + line), ("gone", None), ("NUL", line[:3] + b"\0" + line[3:]),
        ("CR", line.replace(b" ", b"\r")), ("tabs", line.replace(b" ", b"\t")),
        ("quotes", b'"' + line), ("no UTF-8", b"\xff\xfe" + line),
        ("BOM", b"\xef\xbb\xbf" + line), ("blank", b""), ("commas", line.replace(b" ", b",")),
        ("no separator", re.sub(rb"[\t,]", b"", line)),
        ("long", line + b" " + b"ab " * 200_000), ("one word", b"a" * 300_000)])
    lines[number:number + 1] = [] if new is None else [new]
    return f"line {number + 1} {kind}", b"\n".join(lines)


def damage(path, generator):
    data = path.read_bytes()
    ways = [damaged_bytes]
    if path.suffix in (".json", ".jsonl") or "RACE" in path.parts:
        ways += [damaged_json] * 3
    elif path.suffix in (".txt", ".tsv", ".csv"):
        ways += [damaged_lines] * 2
    try:
        what, changed = generator.choice(ways)(data, generator)
    except ValueError:  # Not JSON of a kind that damaged_json knows.
        what, changed = damaged_bytes(data, generator)
    path.write_bytes(changed)
    return what


# ---- tries -----------------------------------------------------------------


def environment():
    return {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}


class Server:
    """A process that has a script imported and forks for each try."""

    def __init__(self, script):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz", f"--serve={script}"], cwd=ROOT,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            stderr=subprocess.DEVNULL, env=environment())
        self.flags = json.loads(self.process.stdout.readline())

    def run(self, arguments, folder):
        """(status, seconds); the status of a hang is "hang"."""
        self.process.stdin.write(json.dumps([arguments, str(folder)]) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.kill()
        self.process.wait()


def serve(name):
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    module = importlib.import_module(name)
    from absl import flags

    from albert_tf.cli import script

    if name not in LIGHT:
        # What they load late, so that a try need not.
        for late in ("tensorflow", "tf_keras", "orbit", "official.common.distribute_utils",
                     "albert_tf.training.loop", "albert_tf.modeling.models",
                     "albert_tf.finetuning.length_batching", "sklearn.metrics",
                     "albert_tf.training.optimization", "albert_tf.records.checks",
                     "albert_tf.training.input_pipeline", "albert_tf.masking.in_training",
                     "matplotlib.backends.backend_agg", "matplotlib.pyplot",
                     "tensorboard.plugins.scalar.metadata"):
            importlib.import_module(late)
    known = {flag.name: flag.flag_type()
             for flag in flags.FLAGS.get_key_flags_for_module(sys.modules[name])
             if flag.name not in LEFT_OUT}
    print(json.dumps(known), file=answers, flush=True)
    for line in sys.stdin:
        arguments, folder = json.loads(line)
        child = os.fork()
        if not child:
            os.setsid()
            os.chdir(folder)
            for number, path in ((1, "stdout"), (2, "stderr")):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
            sys.argv = [f"{name}.py", *arguments]
            status = 1
            try:
                script.run(module.main)
                status = 0
            except SystemExit as error:
                status = error.code if isinstance(error.code, int) else bool(error.code)
            except BaseException:
                import traceback

                traceback.print_exc()
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status or 0)
        begin, status = time.monotonic(), "hang"
        while time.monotonic() - begin < SECONDS:
            found, code = os.waitpid(child, os.WNOHANG)
            if found:
                status = os.waitstatus_to_exitcode(code)
                break
            time.sleep(0.02)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        if status == "hang":
            os.waitpid(child, 0)
        print(json.dumps([status, time.monotonic() - begin]), file=answers, flush=True)


def digest(folder):
    """Path → content of what a command wrote, but for times and logs."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_file() and path.suffix not in (".png", ".summary") and (
                "tensorboard" not in name and "fingerprint" not in name
                and path.name not in ("checkpoint", "metrics.jsonl")):
            data = path.read_bytes()
            if path.suffix == ".json":
                data = re.sub(rb"(?m)^.*(seconds|_per_).*$", b"", data)
            found[name] = hashlib.sha256(data).hexdigest()
    return found


def sums(folder):
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in folder.rglob("*") if path.is_file()}


def problem_of(status, folder, script, inputs, output):
    """What is wrong with the end of a try, or ""."""
    stderr = (folder / "stderr").read_text(errors="replace")
    if status == "hang":
        return "hang"
    if "Traceback (most recent call last)" in stderr:
        return "traceback: " + stderr.strip().splitlines()[-1][:200]
    if status not in (0, 1):
        return f"status {status}"
    lines = [line for line in stderr.splitlines()
             if line.startswith((f"{script}.py: ", "FATAL"))]
    if status == 1 and not lines:
        return "no sentence"
    if len(lines) > 1:
        return f"{len(lines)} sentences"
    now = sums(folder)
    changed = [name for name, sum_ in inputs.items()
               if not name.startswith(f"{output}/") and now.get(name) != sum_]
    if changed:
        return f"input changed: {changed[0]}"
    left = [name for name in now if "incomplete" in name or "_temp" in name]
    if left:
        return f"left behind: {left[0]}"
    return ""


def one_try(number, seed, server, script, name, material, work, show):
    """What was tried and what was wrong."""
    expected = reference(server, script, name, material, work)
    generator = random.Random(f"{seed}/{number}")
    given, damageable = COMMANDS[script][name]
    given = dict(given)
    folder = work / f"try{number}"
    shutil.copytree(material, folder)
    target = ""
    if damageable and generator.random() < (0.5 if name in TRAINING else 0.8):
        target = generator.choice(damageable)
        what = f"{target}: {damage(folder / target, generator)}"
    else:
        flag = generator.choice(sorted(server.flags))
        values = [v for v in VALUES if flag not in LONG or v in (
            "", "-1", "0", "nan", "inf", str(BIG), str(-BIG), "None", "1e400", "x" * 5000)]
        given[flag] = generator.choice(values)
        what = f"--{flag}={given[flag][:60]!r}"
    inputs = sums(folder)
    status, seconds = server.run(
        [f"--{flag}={value}" for flag, value in given.items()], folder)
    output = pathlib.PurePath(str(given.get("output_dir", "out"))).parts[:1]
    if not target and re.search("output|summary|heldout", flag):
        inputs.pop(given[flag], None)  # What it names is what is written.
    problem = problem_of(status, folder, script, inputs, output[0] if output else "out")
    # Text that was compressed twice is twice the text.
    if not problem and status == 0 and CHECKED.fullmatch(target) and (
            "twice" not in what):
        outputs = digest(folder / output[0])
        if target.startswith(output[0]):
            outputs.pop(target[len(output[0]) + 1:], None)
        differing = [k for k in outputs if expected.get(k, outputs[k]) != outputs[k]]
        if differing:
            problem = f"accepted, with another {differing[0]}"
    if not problem and status == 0 and not target and given[flag] in ABSURD and (
            server.flags[flag] in ("int", "float") and flag != "threshold_to_export"):
        problem = "accepted"
    if show:
        print((folder / "stderr").read_text(errors="replace")[-5000:])
    else:
        shutil.rmtree(folder)
    return {"seed": seed, "number": number, "command": f"{script} {name}", "what": what,
            "status": status, "seconds": round(seconds, 1), "problem": problem}


@functools.cache
def reference(server, script, name, material, work):
    """What a command writes when nothing is damaged."""
    folder = work / f"reference_{script}_{name}_{server.process.pid}"
    shutil.copytree(material, folder)
    given, _ = COMMANDS[script][name]
    status, _ = server.run(
        [f"--{flag}={value}" for flag, value in given.items()], folder)
    if status:
        raise RuntimeError(f"{script} {name} fails undamaged: "
                           + (folder / "stderr").read_text()[-2000:])
    return digest(folder / given.get("output_dir", "out").split("/")[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tries", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="this try alone, with its output")
    parser.add_argument("--scripts", default=",".join(COMMANDS))
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--output", help="JSON lines, one for each try")
    parser.add_argument("--material", help="folder that keeps the undamaged files")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    commands = [(script, name) for script in options.scripts.split(",")
                for name in COMMANDS[script]
                for _ in range(1 if name in TRAINING else 2)]
    results = []
    if options.output and os.path.exists(options.output):
        with open(options.output, encoding="utf-8") as stream:
            results = [json.loads(line) for line in stream]
    done = {(row["seed"], row["number"]) for row in results}
    numbers = range(options.tries) if options.only is None else [options.only]
    # Scripts in a row, for their servers' sake.
    tries = sorted((commands[n % len(commands)], n) for n in numbers
                   if (options.seed, n) not in done)
    with contextlib.ExitStack() as stack:
        output = stack.enter_context(open(options.output or os.devnull, "a",
                                          encoding="utf-8", buffering=1))
        work = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        material = pathlib.Path(options.material or work / "material")
        if not material.exists():
            write_material(material)
        local, servers, begin = threading.local(), [], time.monotonic()
        stack.callback(lambda: [server.close() for server in servers])

        def run(item):
            (script, name), number = item
            if getattr(local, "script", None) != script:
                local.script, local.server = script, Server(script)
                servers.append(local.server)
            return one_try(number, options.seed, local.server, script, name,
                           material, work, options.only is not None)

        pool = stack.enter_context(
            concurrent.futures.ThreadPoolExecutor(options.workers))
        for made, result in enumerate(pool.map(run, tries), 1):
            results.append(result)
            output.write(json.dumps(result) + "\n")
            if result["problem"] or options.only is not None:
                print(json.dumps(result, ensure_ascii=False), flush=True)
            if made % 100 == 0:
                print(f"{made} tries, {time.monotonic() - begin:.0f} s", flush=True)
    refused = sum(row["status"] == 1 for row in results)
    failed = sum(bool(row["problem"]) for row in results)
    print(f"{len(results)} tries: {refused} refused in a sentence, "
          f"{len(results) - refused - failed} accepted, {failed} failed.")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
