r"""Measures the latency and speed of answers: ours, ours without fused parts, and peers.

    python -m benchmarks.inference --output=benchmarks/results/inference.json

All contestants have ALBERT-base's shape with random weights and no dropout. They answer
real sequences of their own lengths: sentences of SST-2 and pairs of MRPC (development
sets) for classification, and windows of SQuAD's development set (max_seq_length 384) for
spans.

  limit      the matrix products of the tokens alone, without padding
  ours       serving.Server with a SavedModel of export_model.py
  plain      our model in a tf.function for any shape, with padding computed
  tf-models  tf-models-official's AlbertEncoder in such a function
  keras-hub  keras-hub's ALBERT in such a function
  hf         transformers' ALBERT in PyTorch: eager, inference_mode, autocast
  compiled   the same through torch.compile(dynamic=True)
  ours-onnx, ours-openvino, ours-tflite
             exports of export_model.py --format in these engines
  onnxruntime, onnxruntime-optimized, openvino
             transformers' ALBERT, exported to ONNX by PyTorch, in these engines; ONNX
             Runtime with its general optimizer or its optimizer for transformers, in
             int8 with dynamic quantization (one scale for each matrix)

Types are float32, bfloat16 and int8, as far as a contestant supports them. LiteRT only
runs our export, because PyTorch's graph cannot be converted to it.

The contestants take turns, first with single sequences (median and 95th percentile), then
with batches of 32 in file order, which each contestant pads itself (transformers and
keras-hub do not sort by length). In addition, ours answers all batches as one file, which
Server sorts by length.

With --starts, each kind is started that often in a new process, in turns: seconds from
the start of the process to the first answer, imports included, and its memory then.

The scores of ours and of plain must agree for every batching. The peers need
benchmarks/requirements.txt; missing packages are reported and left out.
"""

import functools
import json
import os
import subprocess
import sys
import tempfile
import time

import numpy as np
from absl import flags, logging

from albert_tf.cli import flags as cli_flags, script
from albert_tf.errors import InputError
from benchmarks import benchmark_flags, predictors
from benchmarks.peers import installed

FLAGS = flags.FLAGS

DTYPES = ("float32", "bfloat16", "int8")
CONTESTANTS = ("limit", *predictors.MAKERS)
# Task → (kind, number of single requests, number of sequences in batches).
TASKS = {"sst-2": ("classification", 48, 96), "mrpc": ("classification", 32, 96),
         "squad": ("spans", 12, 32)}

cli_flags.define_model_flags()
flags.DEFINE_string("data_dir", benchmark_flags.DATA,
                    "Data folder with glue/SST-2, glue/MRPC and squad/dev-v1.1.json.")
benchmark_flags.define_spm_model_flag()  # Its size becomes the model's vocab_size.
flags.DEFINE_list("tasks", list(TASKS), "Tasks to measure.")
flags.DEFINE_list("dtypes", list(DTYPES), "Number types of products and activations.")
flags.DEFINE_list("contestants", list(CONTESTANTS), "Contestants to measure.")
flags.DEFINE_integer("batch_size", 32, "Sequences in a batch.", lower_bound=1)
flags.DEFINE_integer("num_requests", 0, "Number of single requests; 0: the default of "
                     "each task.", lower_bound=0)
flags.DEFINE_integer("num_batched", 0, "Number of sequences in batches; 0: the default "
                     "of each task.",
                     lower_bound=0)
flags.DEFINE_integer("starts", 3, "Number of first answers of each kind.", lower_bound=0)
benchmark_flags.define_output_flag()
flags.DEFINE_string("one_dtype", "", "Internal: used by the benchmark itself.")

# Allowed differences as a share of the largest score: many times the rounding of
# twelve layers.
LARGEST_DIFFERENCE = {"float32": 1e-5, "bfloat16": 0.05}


# ---- data ------------------------------------------------------------------


def sequences(task: str, count: int) -> list[dict]:
    """Returns the features of `count` sequences at equal distances, in file order."""
    from albert_tf.finetuning.classification import glue
    from albert_tf.finetuning.squad import task as squad
    from albert_tf.tokenization.tokenizer import FullTokenizer

    tokenizer = FullTokenizer(spm_model_file=FLAGS.spm_model_file)
    if task == "squad":
        kind = squad.SquadTask()
        examples = kind.read(
            os.path.join(FLAGS.data_dir, "squad", "dev-v1.1.json")).examples
        function = functools.partial(
            kind.featurize, tokenizer=tokenizer, is_training=False)
    else:
        kind = glue.TASKS[task]
        examples = kind.read(os.path.join(FLAGS.data_dir, "glue"), "dev").examples
        function = functools.partial(
            kind.featurize, tokenizer=tokenizer, max_seq_length=512)
    chosen = np.linspace(0, len(examples) - 1, min(count, len(examples))).astype(int)
    return [window for i in chosen for window in function(examples[i])][:count]


# ---- one number type --------------------------------------------------------------


class Clock:
    """The seconds of each contestant: wall-clock time and core time."""

    def __init__(self):
        self.seconds, self.cores, self.answers = {}, {}, {}

    def measure(self, name, function, *args):
        time.sleep(0.1)  # The threads of the previous contestant spin for a while.
        start, cores = time.perf_counter(), time.process_time()
        answer = function(*args)
        self.seconds.setdefault(name, []).append(time.perf_counter() - start)
        self.cores.setdefault(name, []).append(
            (time.process_time() - cores) / os.cpu_count())
        self.answers.setdefault(name, []).append(answer)


def makers(config, kind, dtype, folder):
    """Returns the available contestants."""
    return installed({
        name: functools.partial(predictors.MAKERS[name], config, kind, dtype, folder)
        for name in FLAGS.contestants
        if name != "limit" and predictors.supports(name, dtype)})


def in_turns(contestants, limit, batches) -> Clock:
    """Sends each batch to each contestant, after a warm-up."""
    clock = Clock()
    lengths = [[len(row["input_ids"]) for row in batch] for batch in batches]
    by_length = np.argsort([max(each) for each in lengths])
    # Warm up with the shortest, median and longest batch, which compiles for their sizes.
    warm = {int(by_length[i]) for i in (0, len(batches) // 2, -1)}
    for i, (batch, of_batch) in enumerate(zip(batches, lengths)):
        if i in warm:
            for name in list(contestants):
                try:
                    contestants[name](batch)
                except Exception as error:  # pylint: disable=broad-except
                    # torch.compile fails in many ways that are not errors of this project.
                    if name != "compiled":
                        raise
                    logging.warning("Leaving out compiled: %s",
                                    (str(error).splitlines() or [type(error)])[0])
                    del contestants[name]
            if limit:
                limit(of_batch)
    for batch, of_batch in zip(batches, lengths):
        if limit:
            clock.measure("limit", limit, of_batch)
        for name, answer in contestants.items():
            clock.measure(name, answer, batch)
    return clock


def requests_row(clock: Clock) -> dict:
    """Returns the latencies of single requests."""
    return _rows(clock, lambda values: {
        "median": float(np.median(values)),
        "percentile_95": float(np.percentile(values, 95))})


def batches_row(clock: Clock) -> dict:
    """Returns the seconds of all batches, and the minimum and maximum of one."""
    return _rows(clock, lambda values: {
        "sum": float(np.sum(values)), "least": min(values), "most": max(values)})


def _rows(clock, statistics):
    found = {}
    for name, values in clock.seconds.items():
        row = found[name] = {**statistics(values), "cores": float(
            np.sum(clock.cores[name])), "seconds": values}
        for other in ("limit", "ours", "ours-onnx"):
            # Per request, so that a disturbed one counts once.
            if other in clock.seconds:
                row[f"times_{other}"] = float(np.median(
                    np.array(values) / np.array(clock.seconds[other])))
        if "ours" in clock.cores:
            row["cores_times_ours"] = row["cores"] / float(np.sum(clock.cores["ours"]))
    return found


def _different(left, right) -> float:
    """Returns the largest difference of the scores of the same sequences, which may be
    padded, as a share of the largest score."""
    found, largest = 0.0, 0.0
    for one, other in zip(left, right, strict=True):
        size = min(len(one), len(other))
        found = max(found, float(np.max(np.abs(one[:size] - other[:size]))))
        # Log-probabilities of impossible answers are far below any score.
        sizes = np.abs(one[:size])
        largest = max(largest, float(np.max(sizes, where=sizes < 1e4, initial=0.0)))
    return found / max(largest, 1e-9)


def _flat(answers):
    return [row for answer in answers for row in answer]


def measure(config, task: str, dtype: str, folder: str) -> dict:
    """Measures all of a task in one number type."""
    kind, num_requests, num_batched = TASKS[task]
    num_requests = FLAGS.num_requests or num_requests
    rows = sequences(task, FLAGS.num_batched or num_batched)
    step = max(1, len(rows) // num_requests)
    singles = [[row] for row in rows[::step][:num_requests]]
    batches = [rows[i:i + FLAGS.batch_size]
               for i in range(0, len(rows), FLAGS.batch_size)]
    contestants = makers(config, kind, dtype, folder)
    limit, flops = predictors.limit(config, kind, dtype)
    limit = limit if "limit" in FLAGS.contestants and dtype != "int8" else None
    one = in_turns(contestants, limit, singles)
    many = in_turns(contestants, limit, batches)
    lengths = [len(row["input_ids"]) for row in rows]
    found = {"task": task, "dtype": dtype, "sequences": len(rows),
             "mean_length": float(np.mean(lengths)), "longest": max(lengths),
             "padding": 1 - sum(lengths) / sum(
                 len(batch) * max(len(row["input_ids"]) for row in batch)
                 for batch in batches),
             "gigaflop": flops(lengths) / 1e9,
             "requests": requests_row(one), "batches": batches_row(many)}
    if "ours" in contestants:
        server = predictors.server(config, kind, dtype, folder)
        whole = Clock()
        for _ in range(2):
            whole.measure("file", lambda: predictors.scores(
                kind, server.predict(rows, FLAGS.batch_size)))
        found["file"] = {"seconds": whole.seconds["file"],
                         "cores": min(whole.cores["file"])}
        ways = {"batches": _flat(many.answers["ours"])}
        if "plain" in contestants:
            ways["plain"] = _flat(many.answers["plain"])
        found["differences"] = {
            name: _different(whole.answers["file"][0], answers)
            for name, answers in ways.items()}
        found["differences"]["requests"] = _different(
            whole.answers["file"][0][::step][:num_requests], _flat(one.answers["ours"]))
        check_equal(found)
    _log(found)
    return found


def check_equal(found: dict) -> None:
    """Raises InputError if our scores depend on the way of serving."""
    for name, difference in found["differences"].items():
        if not difference <= LARGEST_DIFFERENCE[found["dtype"]]:
            raise InputError(
                f"{found['task']} {found['dtype']}: the scores of one file and of {name} "
                f"differ by {difference:.2g} of the largest. This is a bug; please "
                "report it.")


def _log(found):
    for what, key, unit in (("requests", "median", 1e3), ("batches", "sum", 1.0)):
        for name, row in found[what].items():
            logging.info(
                "%s %s %-8s %-9s %8.3f %s, %.2f x ours (cores %.2f)", found["task"],
                found["dtype"], what, name, row[key] * unit,
                "ms" if unit > 1 else "s", row.get("times_ours", 0),
                row.get("cores_times_ours", 0))
    if "file" in found:
        logging.info("%s %s file     ours      %8.3f s; scores differ by %s",
                     found["task"], found["dtype"], min(found["file"]["seconds"]),
                     max(found["differences"].values()))


# ---- first answers ---------------------------------------------------------


def write_models(config, folder) -> dict[str, str]:
    """Writes the models of all kinds of start: kind → folder."""
    writers = {
        "saved_model": lambda path: os.rename(predictors.export(
            config, "classification", "float32", os.path.dirname(path)), path),
        "checkpoint": lambda path: os.rename(predictors.save_checkpoint(
            config, "classification", os.path.dirname(path)), path),
        "hf": lambda path: predictors.hf_model(
            config, "classification").save_pretrained(path),
        # A classifier without a tokenizer cannot be saved as a whole.
        "keras_hub": lambda path: predictors.keras_hub_model(
            config, "classification", "float32").backbone.save_to_preset(path)}
    paths = {name: os.path.join(folder, name) for name in writers}
    written = installed({name: functools.partial(write, paths[name])
                         for name, write in writers.items()})
    return {name: paths[name] for name in written}


def first_answers(folders) -> dict:
    """Returns the seconds to the first answer, and the memory then, of each kind."""
    found = {name: {"seconds": [], "cores": [], "megabytes": []} for name in folders}
    # One start more than is measured: the first reads the packages from disk.
    for number in range(FLAGS.starts + 1):
        for name, folder in folders.items():
            start = time.time()
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.first_answer", name, folder],
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                check=True)
            if number:
                end, cores, megabytes = map(
                    float, done.stdout.splitlines()[-1].split())
                found[name]["seconds"].append(end - start)
                found[name]["cores"].append(cores)
                found[name]["megabytes"].append(megabytes)
    for name, row in found.items():
        logging.info("first answer %-11s %.2f s (%.2f to %.2f), cores' seconds %.2f, "
                     "%.0f MB", name, np.median(row["seconds"]), min(row["seconds"]),
                     max(row["seconds"]), np.median(row["cores"]),
                     np.median(row["megabytes"]))
    return found


# ---- all -------------------------------------------------------------------


def _config():
    from albert_tf.tokenization.tokenizer import FullTokenizer

    return cli_flags.model_config().replace(
        vocab_size=FullTokenizer(spm_model_file=FLAGS.spm_model_file).vocab_size,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


def _check_flags():
    for flag, known in (("contestants", CONTESTANTS), ("tasks", TASKS),
                        ("dtypes", DTYPES)):
        unknown = set(FLAGS[flag].value) - set(known)
        if unknown:
            raise InputError(f"--{flag}: {unknown.pop()} is unknown; choose from "
                             f"{', '.join(known)}.")


def _in_own_process(dtype: str) -> list:
    """Runs one number type in its own process; "" writes the models and times first
    answers."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.inference", *sys.argv[1:],
         f"--one_dtype={dtype}"], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main(argv):
    del argv
    if not (FLAGS.model or FLAGS.albert_config_file):
        FLAGS.model = "base"
    _check_flags()
    with tempfile.TemporaryDirectory() as folder:
        if FLAGS.one_dtype == "starts":
            print(json.dumps(first_answers(write_models(_config(), folder))))
            return
        if FLAGS.one_dtype:
            print(json.dumps([measure(_config(), task, FLAGS.one_dtype, folder)
                              for task in FLAGS.tasks]))
            return
    results = [row for dtype in FLAGS.dtypes for row in _in_own_process(dtype)]
    starts = _in_own_process("starts") if FLAGS.starts else {}
    benchmark_flags.write_output({
        **benchmark_flags.machine(), "config": _config().to_dict(), "results": results,
        "first_answers": starts})


if __name__ == "__main__":
    script.run(main)
