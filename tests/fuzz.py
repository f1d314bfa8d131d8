"""Damages files and flags of every script, and looks for what a user should never see.

    python -m tests.fuzz --tries=2000            # about an hour on one core
    python -m tests.fuzz --seed=1 --only=1234    # one of them again, shown

Each try takes a command that works, damages one of the files it reads (cut short, bits
flipped, bytes put in or taken out, a JSON value replaced) or gives one flag a bad value,
and runs it. It may end well, or with one sentence and a status that is not 0. It fails
with a traceback, a crash, a hang, an input that is no longer what it was, a leftover of a
file, a number that cannot be meant and is taken for a flag, or (of files that have
checksums) results that differ from those of the undamaged file.

It is no part of the test suite. TensorFlow is loaded once; each try is a fork.
"""

import argparse
import concurrent.futures
import contextlib
import functools
import gzip
import hashlib
import importlib
import json
import multiprocessing
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback

from tests.helpers import FIXTURES, ROOT

SECONDS = 60  # A try that takes longer hangs; most take less than three.
SPM = FIXTURES / "spm" / "en4k.model"
MODEL = {"vocab_size": 4000, "embedding_size": 4, "hidden_size": 8, "num_hidden_layers": 1,
         "num_attention_heads": 2, "intermediate_size": 8, "max_position_embeddings": 32,
         "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
RECORDS = ("--max_seq_length=24 --max_predictions_per_seq=4 --dupe_factor=1 --num_workers=1 "
           "--input_file=text.txt --output_file=out/t.tfrecord --spm_model_file=spm.model ")
PRETRAIN = ("--input_file=t.tfrecord --albert_config_file=config.json --max_seq_length=24 "
            "--max_predictions_per_seq=4 --train_batch_size=4 --save_checkpoints_steps=2 ")
TASK = ("--albert_config_file=config.json --spm_model_file=spm.model --from_scratch --do_train "
        "--train_batch_size=4 --max_seq_length=24 --num_workers=1 --save_checkpoints_steps=2 ")
TUNED = {  # folder → script, what it is made with; the command is also one that is tried
    "own": ("run_classifier", TASK + "--task_name=custom --train_file=own.csv --train_step=2 "
            "--dev_file=own.jsonl --text_column=text --label_column=label --do_eval"),
    "squad": ("run_squad", TASK + "--train_file=squad.json --predict_file=squad.json "
              "--num_train_steps=2 --doc_stride=8 --max_query_length=8 --do_predict"),
    "race": ("run_race", TASK + "--data_dir=RACE --train_step=2 --max_qa_length=8"),
    "tagger": ("run_tagger", TASK + "--train_file=tags.conll --dev_file=tags.jsonl "
               "--train_step=2 --do_eval --doc_stride=8")}
WEIGHTS = "{0}.index {0}.data-00000-of-00001"
OWN = " ".join(f"own/{name}" for name in (
    "task.json", "spm.model", "albert_config.json", *WEIGHTS.format("model.ckpt-best").split()))
# Formats of models, each a folder → its files that are read.
FOREIGN = {
    "hf": "config.json model.safetensors tokenizer.json tokenizer_config.json",
    "keras_hub": "config.json model.weights.h5 task.weights.h5 task.json tokenizer.json",
    "sentence_transformers": "config.json model.safetensors modules.json 1_Pooling/config.json"}
EXPORTED = {
    "onnx": "onnx/model.onnx portable.json task.json config.json spiece.model",
    "tflite": "model.tflite portable.json task.json albert_config.json spm.model labels.txt"}
COMMANDS = [  # script, flags, files that are damaged
    ("prepare_corpus", "--input_file=wiki.txt.gz --output_file=out/a.txt", "wiki.txt.gz"),
    ("prepare_corpus", "--input_file=text.jsonl --output_file=out/a.txt", "text.jsonl"),
    ("train_sentencepiece", "--input_file=text.txt --output_prefix=out/spm --vocab_size=120",
     "text.txt"),
    ("create_pretraining_data", RECORDS, "text.txt spm.model"),
    ("create_pretraining_data", RECORDS + "--reproduce_release", "text.txt spm.model"),
    ("count_parameters", "--albert_config_file=config.json", "config.json"),
    ("run_pretraining", PRETRAIN + "--output_dir=trained --num_train_steps=4",
     "t.tfrecord config.json trained/checkpoint trained/options.json trained/metrics.jsonl "
     + WEIGHTS.format("trained/model.ckpt-2")),
    *((script, f"{flags} --output_dir={folder}", files) for (folder, (script, flags)), files in
      zip(TUNED.items(), ("own.csv own.jsonl own/task.json", "squad.json squad/task.json",
                          "RACE/train/high/0.txt race/task.json", "tags.conll tags.jsonl"))),
    *(("predict", f"--model={folder} --input_file=ask.{end} --output_file=out/a.jsonl",
       f"ask.{end} {folder}/task.json")
      for folder, end in (("squad", "jsonl"), ("tagger", "txt"))),
    *(("predict", f"--model={folder} --input_file=ask.txt --output_file=out/a.jsonl",
       " ".join(f"{folder}/{name}" for name in files.split()))
      for folder, files in {**FOREIGN, **EXPORTED}.items()),
    ("extract_features", "--model=own --input_file=ask.txt --output_file=out/a.npz", OWN),
    ("analyze_layers", "--model=own,tagger --input_file=ask.txt --output=out/a.json", OWN),
    ("convert_checkpoint", "--input=own --output=out/a --format=hf", OWN),
    ("convert_checkpoint", "--input=keras_hub --output=out/a --format=tf1",
     "keras_hub/model.weights.h5 keras_hub/config.json"),
    ("export_model", "--model=own --export_dir=out/a --format=onnx --precision=int8", OWN)]
# Files whose content is checked: accepted damage must not change a result.
CHECKED = re.compile(r".*\.(tfrecord|gz|index|data-.*)")
# Flags whose values need a network, a device or a long time by what they mean.
LEFT_OUT = re.compile(r"tpu.*|gcp.*|master|runner|num_threads|num_train_steps|train_step|"
                      r"num_train_epochs|num_seeds|dupe_factor")
# Numbers that no flag can mean: they are refused, or the script came to no use of them.
ABSURD = ["nan", "inf", "-inf", "1e400", str(10 ** 20), str(-10 ** 20)]
VALUES = [*ABSURD, "", "-1", "0", "1", "1e-400", "0.5", "1e9", "None", "true", "maybe", ",",
          "/dev/null/x", "no/such/file", "/", ".", "\u00e9\u4e2d", "x" * 5000, "{}", "[", "*",
          "t.tfrecord", "config.json", "gs:/x", "\n", "out", "hidden_size=-1"]
JSON_VALUES = [None, True, -1, 1.5, float("nan"), 10 ** 20, "", "x", "\u0000", "\ud800", [],
               {}, [[]], {"a": 1}, "x" * 5000]


# ---- what is damaged -------------------------------------------------------


def write_material(folder):
    """Inputs of each script, models too, made by the scripts themselves."""
    def make(script, flags):
        subprocess.run([sys.executable, ROOT / f"{script}.py", *flags.split()], cwd=folder,
                       check=True, stdout=subprocess.DEVNULL)

    def write(name, content):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(
            content if isinstance(content, str) else json.dumps(content))

    text = gzip.decompress((FIXTURES / "pretraining_data/corpus.txt.gz").read_bytes()).decode()
    lines = [line for line in text.splitlines() if 20 < len(line) < 80][:12]
    write("text.txt", "\n\n".join(text.split("\n\n")[:20]) + "\n")
    (folder / "wiki.txt.gz").write_bytes(gzip.compress(text[:5000].encode()))
    write("text.jsonl", "".join(json.dumps({"text": line}) + "\n" for line in lines))
    write("config.json", MODEL)
    shutil.copy(SPM, folder / "spm.model")
    rows = [{"text": line, "label": "yes" if n % 2 else "no"} for n, line in enumerate(lines)]
    write("own.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    write("own.csv", "text,label\n" + "".join(
        '"{}",{}\n'.format(row["text"].replace('"', "'"), row["label"]) for row in rows))
    write("squad.json", {"version": "1.1", "data": [{"title": "t", "paragraphs": [
        {"context": line, "qas": [{"id": f"q{n}", "question": "What was it?", "answers": [
            {"text": line.split()[0], "answer_start": line.index(line.split()[0])}]}]}
        for n, line in enumerate(lines)]}]})
    for name in ("train/high", "train/middle", "dev/high", "dev/middle"):
        write(f"RACE/{name}/0.txt", {
            "article": lines[0], "questions": ["What?"] * 4, "answers": ["A", "B", "C", "D"],
            "options": [["one", "two", "three", "four"]] * 4})
    write("tags.conll", "\n".join("".join(
        f"{word} {'B-X' if word.istitle() else 'O'}\n" for word in line.split())
        for line in lines))
    write("tags.jsonl", "".join(json.dumps({"text": line, "entities": [
        {"start": 0, "end": 3, "type": "X"}]}) + "\n" for line in lines))
    write("ask.txt", "\n".join(lines) + "\n")
    write("ask.jsonl", "".join(json.dumps({
        "id": n, "question": "What was it?", "passage": line}) + "\n"
        for n, line in enumerate(lines)))
    make("create_pretraining_data", RECORDS.replace("out/", ""))
    make("run_pretraining", PRETRAIN + "--output_dir=trained --num_train_steps=2")
    for name, (script, flags) in TUNED.items():
        make(script, f"{flags} --output_dir={name}")
    for name in FOREIGN:
        make("convert_checkpoint", f"--input=own --output={name} --format={name}")
    for name in EXPORTED:
        make("export_model", f"--model=own --export_dir={name} --format={name}")


def damaged_json(data, generator):
    """One value of a document, or of a line of it, replaced."""
    lines = data.splitlines(keepends=True) if b"}\n{" in data else [data]
    number, new, path = generator.randrange(len(lines)), generator.choice(JSON_VALUES), []
    value = node = json.loads(lines[number])
    while isinstance(node, (dict, list)) and node and (not path or generator.random() < 0.7):
        path.append(generator.choice([*node] if isinstance(node, dict) else range(len(node))))
        inner, node = node, node[path[-1]]
    if path:
        inner[path[-1]] = new
    lines[number] = json.dumps(value if path else new).encode() + b"\n"
    return f"JSON {path} = {str(new)[:40]!r}", b"".join(lines)


def damage(path, generator):
    """Changes a file; returns how."""
    data = path.read_bytes()
    if path.suffix in (".json", ".jsonl") and generator.random() < 0.7:
        what, changed = damaged_json(data, generator)
    else:
        kind = generator.choice(["cut", "flip", "flip", "zeros", "insert", "remove", "double"])
        place, length = generator.randrange(len(data) + 1), generator.choice([1, 2, 8, 100])
        flipped = bytes(byte ^ 1 << generator.randrange(8) for byte in data[place:place + 1])
        what, changed = f"{kind} at {place}, {length}", {
            "cut": data[:place], "flip": data[:place] + flipped + data[place + 1:],
            "zeros": data[:place] + bytes(length) + data[place + length:],
            "insert": data[:place] + generator.randbytes(length) + data[place:],
            "remove": data[:place] + data[place + length:], "double": data + data}[kind]
    path.write_bytes(changed)
    return what


# ---- tries -----------------------------------------------------------------


def load():
    """What scripts load late, so that a try need not."""
    os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")
    for late in ("albert_tf.training.loop", "albert_tf.modeling.models", "sklearn.metrics"):
        importlib.import_module(late)


def run(script, words, folder, generator):
    """Runs a script in a fork, with a bad flag if there is a generator → status."""
    child = os.fork()
    if not child:
        status = 1
        signal.alarm(SECONDS)  # It ends what hangs.
        try:
            os.setsid()
            os.chdir(folder)
            os.dup2(os.open("stderr", os.O_WRONLY | os.O_CREAT), 2)
            os.dup2(2, 1)
            module = importlib.import_module(script)
            from absl import flags

            from albert_tf.cli import script as runner

            if generator:
                flag = generator.choice([
                    flag for flag in flags.FLAGS.get_key_flags_for_module(module)
                    if not LEFT_OUT.fullmatch(flag.name)])
                words = [*words, f"--{flag.name}={generator.choice(VALUES)}"]
                pathlib.Path("flag").write_text(f"{flag.flag_type()} {words[-1]}")
            sys.argv = [f"{script}.py", *words]
            runner.run(module.main)
            status = 0
        except SystemExit as error:
            status = error.code if isinstance(error.code, int) else bool(error.code)
        except BaseException:
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(status or 0)
    _, ended = os.waitpid(child, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(ended)


def sums(folder):
    """Path → content, but for times and logs."""
    return {str(path.relative_to(folder)): hashlib.sha256(
        re.sub(rb"(?m)^.*(seconds|_per_).*$", b"", path.read_bytes())).hexdigest()
            for path in sorted(folder.rglob("*")) if path.is_file() and not re.search(
                r"tensorboard|fingerprint|metrics.jsonl|\.png$|stderr$|flag$|summary", path.name)}


@functools.cache
def undamaged(script, words, material):
    with tempfile.TemporaryDirectory() as folder:
        folder = shutil.copytree(material, pathlib.Path(folder) / "try")
        status = run(script, words.split(), folder, None)
        assert status == 0, (folder / "stderr").read_text()[-2000:]
        return sums(folder)


def attempt(number, seed, material, show):
    """One try → what was wrong, or ""."""
    script, words, files = COMMANDS[number % len(COMMANDS)]
    generator, target = random.Random(f"{seed}/{number}"), ""
    expected = undamaged(script, words, material)
    with tempfile.TemporaryDirectory() as folder:
        folder = shutil.copytree(material, pathlib.Path(folder) / "try")
        if generator.random() < 0.7:
            target = generator.choice(files.split())
            what = f"{target}: {damage(folder / target, generator)}"
        before = sums(folder)
        status = run(script, words.split(), folder, None if target else generator)
        kind, _, flag = ("", "", "") if target else (
            folder / "flag").read_text().partition(" ")
        stderr, after = (folder / "stderr").read_text(errors="replace"), sums(folder)
    output = re.search(r"--output_dir=(\w+)|$", words)[1] or "out"
    sentences = re.findall(rf"(?m)^(?:{script}\.py: |FATAL)", stderr)
    changed = [name for name in before if before[name] != after.get(name)
               and not name.startswith(f"{output}/") and not (flag and name in flag)]
    other = [name for name in expected if name.startswith(f"{output}/") and name != target
             and after.get(name, expected[name]) != expected[name]]
    problem = (
        "traceback" if "Traceback (most" in stderr  # Status -14: a hang.
        else f"status {status}, {len(sentences)} sentences" if status not in (0, 1)
        or status == 1 and len(sentences) != 1
        else f"input changed: {changed[0]}" if changed
        else "left behind" if any("incomplete" in name or "_temp" in name for name in after)
        else f"accepted, with another {other[0]}" if (
            status == 0 and CHECKED.fullmatch(target) and "double" not in what and other)
        else "accepted" if status == 0 and kind in ("int", "float") and (
            flag.partition("=")[2] in ABSURD and "threshold" not in flag) else "")
    if problem or show:
        print(f"{number}: {script} {flag[:80] or what}: {problem}\n{stderr[-2000:]}", flush=True)
    return problem


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tries", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="this try alone, with its output")
    options = parser.parse_args()
    numbers = range(options.tries) if options.only is None else [options.only]
    with tempfile.TemporaryDirectory() as material:
        write_material(pathlib.Path(material))
        with concurrent.futures.ProcessPoolExecutor(
                None, multiprocessing.get_context("spawn"), load) as pool:
            failed = sum(map(bool, pool.map(
                attempt, numbers, *([each] * len(numbers) for each in (
                    options.seed, material, options.only is not None)))))
    print(f"{len(numbers)} tries: {failed} failed.")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
