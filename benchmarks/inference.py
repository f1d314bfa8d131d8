r"""Measures answers of our exports beside transformers' ALBERT in the same engines.

    python -m benchmarks.inference --output=benchmarks/results/engines.json

All contestants have ALBERT-base's shape with random weights and no dropout. They answer
real sequences of their own lengths: sentences of SST-2 and pairs of MRPC (development
sets) for classification, and windows of SQuAD's development set (max_seq_length 384) for
spans.

  ours       a SavedModel of export_model.py
  ours-onnx, ours-openvino, ours-tflite
             exports of export_model.py --format in these engines
  onnxruntime, onnxruntime-optimized, openvino
             transformers' ALBERT, exported to ONNX by PyTorch, in these engines; ONNX
             Runtime with its general optimizer or its optimizer for transformers, in
             int8 with dynamic quantization (one scale for each matrix)

Types are float32, bfloat16 and int8, as far as a contestant supports them; each type runs
in a process of its own. The contestants take turns, first with single sequences (median
and 95th percentile), then with batches of 32 in file order, which each contestant pads
itself. In float32 the scores of all our exports must agree. The peers need
benchmarks/requirements.txt; missing packages are reported and left out.
"""

import functools
import json
import os
import shutil
import tempfile
import time

import numpy as np
from absl import flags, logging

from albert_tf.cli import flags as cli_flags, script
from albert_tf.cli.define import define
from albert_tf.errors import InputError
from benchmarks import benchmark_flags, peers, runs

FLAGS = flags.FLAGS

DTYPES = ("float32", "bfloat16", "int8")
# Task → (kind, number of single requests, number of sequences in batches).
TASKS = {"sst-2": ("classification", 48, 96), "mrpc": ("classification", 32, 96),
         "squad": ("spans", 12, 32)}
INPUTS = ("input_ids", "input_mask", "segment_ids")
PEER_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
# Allowed difference of our exports in float32, as a share of the largest score.
LARGEST_DIFFERENCE = 1e-4

define(cli_flags.ModelOptions)
flags.DEFINE_string("data_dir", benchmark_flags.DATA,
                    "Data folder with glue/SST-2, glue/MRPC and squad/dev-v1.1.json.")
benchmark_flags.define_spm_model_flag()  # Its size becomes the model's vocab_size.
flags.DEFINE_list("tasks", list(TASKS), "Tasks to measure.")
flags.DEFINE_list("dtypes", list(DTYPES), "Number types of products and activations.")
flags.DEFINE_list("contestants", None, "Contestants to measure; default: all.")
flags.DEFINE_integer("batch_size", 32, "Sequences in a batch.", lower_bound=1)
benchmark_flags.define_output_flag()
flags.DEFINE_string("one_dtype", "", "Internal: used by the benchmark itself.")


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
    else:
        kind = glue.TASKS[task]
        examples = kind.read(os.path.join(FLAGS.data_dir, "glue"), "dev").examples
    chosen = np.linspace(0, len(examples) - 1, min(count, len(examples))).astype(int)
    return [window for i in chosen
            for window in kind.featurize(examples[i], tokenizer=tokenizer)][:count]


def padded(features, dtype=np.int32) -> dict[str, np.ndarray]:
    """Pads sequences to a batch [B, S], S being the longest of them."""
    length = max(len(row["input_ids"]) for row in features)
    batch = {name: np.zeros([len(features), length], dtype) for name in INPUTS}
    for name, values in batch.items():
        for row, feature in zip(values, features):
            row[:len(feature[name])] = feature[name]
    return batch


# ---- contestants -----------------------------------------------------------
# Each takes a config, "classification" or "spans", a number type and a folder to write
# to, and returns a function from features to the scores that are compared.


def score_name(kind: str) -> str:
    return "start_log_probs" if kind == "spans" else "logits"


def our_folder(config, kind, folder) -> str:
    """Writes our model's folder unless it exists; returns its path."""
    path = os.path.join(folder, f"ours-{kind}")
    if os.path.exists(path):
        return path
    import tensorflow as tf

    from albert_tf.checkpoints import restore
    from albert_tf.finetuning.classification.head import Classification
    from albert_tf.finetuning.squad.head import Spans
    from albert_tf.modeling.models import AlbertForTask

    model = AlbertForTask(config, Spans() if kind == "spans" else Classification(2))
    # Scale as in a trained head: scores spread by 1, not by hundredths.
    weights = model.head_layers[model.head.name]["output_layer"].output_weights
    weights.assign(tf.random.stateless_normal(weights.shape, [1, 2]))
    os.makedirs(path)
    restore.export_tf1(model, os.path.join(path, "model.ckpt-best"))
    restore.write_config(path, config)
    shutil.copy(FLAGS.spm_model_file, path)
    return path


def ours(config, kind, dtype, folder):
    if dtype == "int8":
        raise peers.NotInstalled("a SavedModel has no int8")
    import tensorflow as tf

    import albert_tf
    from albert_tf.serving import export

    loaded = albert_tf.load(our_folder(config, kind, folder))
    head, = filter(None, loaded.tasks().values())
    path = os.path.join(folder, f"ours-{kind}-saved_model-{dtype}")
    export.export(loaded.model, head, path,
                  () if kind == "spans" else ("0", "1"), dtype)
    saved = tf.saved_model.load(path)
    serve = saved.signatures["serving_default"]

    def answer(features):
        batch = {name: tf.constant(value) for name, value in padded(features).items()}
        return serve(**batch)[score_name(kind)].numpy()

    answer.saved = saved  # A signature does not keep its variables.
    return answer


def our_export(form, config, kind, dtype, folder):
    """Returns an export of export_model.py --format in its engine."""
    import albert_tf
    from albert_tf.serving import portable, runtimes

    if dtype not in runtimes.FORMS[form].precisions:
        raise peers.NotInstalled(f"{form} has no {dtype}")
    try:
        runtimes.needed(form, runtimes.FORMS[form].readers)
    except InputError as error:
        raise peers.NotInstalled(str(error)) from error
    path = os.path.join(folder, f"ours-{kind}-{form}-{dtype}")
    model = albert_tf.load(our_folder(config, kind, folder))
    portable.export(model, next(iter(model.tasks())), path, form, dtype)
    exported = albert_tf.load(path)
    answering = exported.head(next(iter(exported.tasks())))
    return lambda features: answering.compute(padded(features))[score_name(kind)]


def peer_graph(config, kind, folder) -> str:
    """Exports transformers' model to ONNX with PyTorch, as its users do."""
    path = os.path.join(folder, f"hf-{kind}.onnx")
    if os.path.exists(path):
        return path
    torch = peers.imported("torch", "PyTorch")
    transformers = peers.imported("transformers", "transformers")
    model = (transformers.AlbertForQuestionAnswering if kind == "spans"
             else transformers.AlbertForSequenceClassification)
    outputs = ["start_logits", "end_logits"] if kind == "spans" else ["logits"]
    torch.onnx.export(
        model(peers.hf_config(config)).eval(),
        tuple(torch.ones([2, 7], dtype=torch.int64) for _ in PEER_INPUTS), path,
        input_names=PEER_INPUTS, output_names=outputs, opset_version=17, dynamo=False,
        dynamic_axes={name: {0: "batch", 1: "length"}
                      for name in (*PEER_INPUTS, *outputs[:2 * (kind == "spans")])})
    return path


def peer_batch(features):
    return dict(zip(PEER_INPUTS, padded(features, np.int64).values()))


def onnxruntime(config, kind, dtype, folder, optimized=False):
    """Returns the peer's graph in ONNX Runtime."""
    if dtype not in (("float32", "int8") if optimized else ("float32",)):
        raise peers.NotInstalled(f"not measured in {dtype}")
    engine = peers.imported("onnxruntime", "ONNX Runtime")
    path = peer_graph(config, kind, folder)
    if optimized:
        from onnxruntime.transformers import optimizer

        better = path.replace(".onnx", "-optimized.onnx")
        optimizer.optimize_model(
            path, "bert", num_heads=config.num_attention_heads,
            hidden_size=config.hidden_size).save_model_to_file(better)
        path = better
    if dtype == "int8":
        import onnx
        from onnxruntime import quantization

        whole, path = path, path.replace(".onnx", "-int8.onnx")
        # The quantizer does not know the types of its own fused operations.
        quantization.quantize_dynamic(whole, path, extra_options={
            "DefaultTensorType": onnx.TensorProto.FLOAT})
    options = engine.SessionOptions()
    options.log_severity_level = 3
    session = engine.InferenceSession(
        path, options, providers=["CPUExecutionProvider"])
    return lambda features: session.run(None, peer_batch(features))[0]


def openvino(config, kind, dtype, folder):
    """Returns the peer's graph in OpenVINO."""
    if dtype == "int8":
        raise peers.NotInstalled("not measured in int8")
    engine = peers.imported("openvino", "OpenVINO")
    compiled = engine.Core().compile_model(peer_graph(config, kind, folder), "CPU", {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "bf16" if dtype == "bfloat16" else "f32"})
    request = compiled.create_infer_request()
    return lambda features: np.array(request.infer(peer_batch(features))[0])


MAKERS = {
    "ours": ours, **{f"ours-{form}": functools.partial(our_export, form)
                     for form in ("onnx", "openvino", "tflite")},
    "onnxruntime": onnxruntime,
    "onnxruntime-optimized": functools.partial(onnxruntime, optimized=True),
    "openvino": openvino}


# ---- one number type -------------------------------------------------------


def in_turns(contestants, batches) -> tuple[dict, dict]:
    """Sends each batch to each contestant, after a warm-up; returns the seconds and the
    answers of each."""
    by_length = np.argsort([max(len(row["input_ids"]) for row in batch)
                            for batch in batches])
    # Warm up with the shortest, median and longest batch.
    for i in sorted({int(by_length[i]) for i in (0, len(batches) // 2, -1)}):
        for answer in contestants.values():
            answer(batches[i])
    seconds, answers = ({name: [] for name in contestants} for _ in range(2))
    for batch in batches:
        for name, answer in contestants.items():
            time.sleep(0.1)  # The threads of the previous contestant spin for a while.
            start = time.perf_counter()
            answers[name].append(answer(batch))
            seconds[name].append(time.perf_counter() - start)
    return seconds, answers


def check_equal(answers) -> None:
    """Raises InputError if the scores of our exports differ."""
    own = {name: values for name, values in answers.items() if name.startswith("ours")}
    for name, values in own.items():
        for found, expected in zip(values, next(iter(own.values()))):
            # Log-probabilities of impossible answers are far below any score.
            possible = np.abs(expected) < 1e4
            largest = np.abs(expected[possible]).max()
            difference = np.abs(found - expected)[possible].max() / largest
            if not difference <= LARGEST_DIFFERENCE:
                raise InputError(f"The scores of {name} differ by {difference:.2g} of the "
                                 "largest. This is a bug; please report it.")


def measure(config, task: str, dtype: str, folder: str) -> dict:
    """Measures all contestants on one task in one number type."""
    kind, num_requests, num_batched = TASKS[task]
    rows = sequences(task, num_batched)
    contestants = peers.installed({
        name: functools.partial(MAKERS[name], config, kind, dtype, folder)
        for name in FLAGS.contestants or MAKERS})
    step = max(1, len(rows) // num_requests)
    single, answers = in_turns(
        contestants, [[row] for row in rows[::step][:num_requests]])
    if dtype == "float32":
        check_equal(answers)
    batched, _ = in_turns(contestants, [
        rows[i:i + FLAGS.batch_size] for i in range(0, len(rows), FLAGS.batch_size)])
    found = {"task": task, "dtype": dtype, "sequences": len(rows), "contestants": {}}
    for name in contestants:
        found["contestants"][name] = row = {
            "request_ms": 1e3 * float(np.median(single[name])),
            "request_ms_percentile_95": 1e3 * float(np.percentile(single[name], 95)),
            "batches_s": float(np.sum(batched[name]))}
        logging.info("%s %s %s: a request %.1f ms (95 %%: %.1f), batches %.2f s", task,
                     dtype, name, *row.values())
    return found


def main(argv):
    del argv
    from albert_tf.tokenization.tokenizer import FullTokenizer

    if not (FLAGS.model or FLAGS.albert_config_file):
        FLAGS.model = "base"
    for flag, known in (("contestants", MAKERS), ("tasks", TASKS), ("dtypes", DTYPES)):
        if unknown := set(FLAGS[flag].value or ()) - set(known):
            raise InputError(f"--{flag}: {unknown.pop()} is unknown; choose from "
                             f"{', '.join(known)}.")
    config = cli_flags.model_config(FLAGS).replace(
        vocab_size=FullTokenizer(spm_model_file=FLAGS.spm_model_file).vocab_size,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    if FLAGS.one_dtype:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps([
                measure(config, task, FLAGS.one_dtype, tempfile.mkdtemp(dir=folder))
                for task in FLAGS.tasks]))
        return
    results = []
    for dtype in FLAGS.dtypes:
        results += runs.in_own_process("benchmarks.inference", f"--one_dtype={dtype}")
    benchmark_flags.write_output({
        **benchmark_flags.machine(), "config": config.to_dict(), "results": results})


if __name__ == "__main__":
    script.run(main)
