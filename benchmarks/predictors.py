"""Models that answer: ours, ours without fused parts and the peers', for inference.py.

Each function takes a config, "classification" or "spans", a number type and a folder to
write to. It returns a function from features of one or more sequences (without padding) to
an array of scores; `supports` says for which types. All have ALBERT's shape, random
weights and no dropout, and pad to the longest sequence. benchmarks/requirements.txt has
the peers' packages.
"""

import functools
import os
import shutil

import numpy as np
from absl import flags

import albert_tf
from albert_tf.errors import InputError
from benchmarks import peers

FLAGS = flags.FLAGS

INPUTS = ("input_ids", "input_mask", "segment_ids")


def padded(features, dtype=np.int32) -> dict[str, np.ndarray]:
    """Pads sequences to a batch [B, S], S being the longest of them."""
    length = max(len(row["input_ids"]) for row in features)
    batch = {name: np.zeros([len(features), length], dtype) for name in INPUTS}
    for name, values in batch.items():
        for row, feature in zip(values, features):
            row[:len(feature[name])] = feature[name]
    return batch


# ---- ours ------------------------------------------------------------------


_our_models = {}


def our_model(config, task):
    """Returns one model for all ways of serving, so that their scores can be compared."""
    key = config.to_json(), task
    if key not in _our_models:
        _our_models[key] = _make_our_model(config, task)
    return _our_models[key]


def _make_our_model(config, task):
    import tensorflow as tf

    from albert_tf.finetuning.classification.head import Classification
    from albert_tf.finetuning.squad.head import Spans
    from albert_tf.modeling.models import AlbertForTask

    model = AlbertForTask(config, Spans() if task == "spans" else Classification(2))
    # Scale as in a trained head: scores spread by 1, not by hundredths.
    weights = model.head_layers[model.head.name]["output_layer"].output_weights
    weights.assign(tf.random.stateless_normal(weights.shape, [1, 2]))
    return model


def export(config, task, dtype, folder) -> str:
    """Writes our SavedModel unless it exists; returns its folder."""
    from albert_tf.serving import export as model_export

    path = os.path.join(folder, f"ours-{task}-{dtype}")
    if not os.path.exists(path):
        model = our_model(config, task)
        model_export.export(
            model, model.head, path, () if task == "spans" else ("0", "1"), dtype)
    return path


def server(config, task, dtype, folder):
    from albert_tf.serving import saved_model as serving

    return serving.Server(export(config, task, dtype, folder))


def scores(task, outputs) -> np.ndarray:
    """Returns the outputs of a model that are compared, for each sequence."""
    return outputs["start_log_probs" if task == "spans" else "logits"]


def ours(config, task, dtype, folder):
    loaded = server(config, task, dtype, folder)
    return lambda features: scores(task, loaded.predict(features))


def our_export(form, config, task, dtype, folder):
    """Returns an export of export_model.py --format in its engine."""
    from albert_tf.serving import portable

    try:
        portable.check(form, dtype)
        portable.needed(form, portable.FORMS[form].readers)
    except InputError as error:
        raise peers.NotInstalled(str(error)) from error
    path = os.path.join(folder, f"ours-{task}-{form}-{dtype}")
    if not os.path.exists(path):
        loaded = albert_tf.load(save_checkpoint(config, task, folder))
        portable.export(loaded, next(iter(loaded.tasks())), path, form, dtype)
    exported = albert_tf.load(path)
    answering = exported.head(next(iter(exported.tasks())))
    return lambda features: scores(task, answering.compute(padded(features)))


def save_checkpoint(config, task, folder) -> str:
    """Writes our model's folder unless it exists."""
    from albert_tf.checkpoints import restore

    path = os.path.join(folder, f"ours-{task}")
    if not os.path.exists(path):
        os.makedirs(path)
        restore.export_tf1(our_model(config, task), os.path.join(path, "model.ckpt-best"))
        restore.write_config(path, config)
        shutil.copy(FLAGS.spm_model_file, path)
    return path


def plain(config, task, dtype, folder):
    """Returns the model without fused parts, in a tf.function for any shape."""
    del folder
    import tensorflow as tf

    from albert_tf.modeling.encoder import Computation

    model = our_model(config, task)

    @tf.function(input_signature=[{
        name: tf.TensorSpec([None, None], tf.int32) for name in INPUTS}])
    def call(batch):
        return scores(task, model(batch, computation=Computation(dtype)))

    return lambda features: call(
        {name: tf.constant(value) for name, value in padded(features).items()}).numpy()


# ---- peers -----------------------------------------------------------------


def tf_models(config, task, dtype, folder):
    del folder
    import tensorflow as tf
    import tf_keras

    encoder = peers.tf_models_encoder(config, dtype)
    head = tf_keras.layers.Dense(2, dtype="float32")
    output = "sequence_output" if task == "spans" else "pooled_output"

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)] * 3)
    def call(ids, mask, segments):
        return head(encoder({"input_word_ids": ids, "input_mask": mask,
                             "input_type_ids": segments}, training=False)[output])

    return lambda features: call(*map(tf.constant, padded(features).values())).numpy()


def hf_model(config, task):
    """Returns transformers' model."""
    torch = peers.imported("torch", "PyTorch")
    transformers = peers.imported("transformers", "transformers")
    torch.set_num_threads(os.cpu_count())
    model = (transformers.AlbertForQuestionAnswering if task == "spans"
             else transformers.AlbertForSequenceClassification)
    return model(peers.hf_config(config)).eval()


def hf(config, task, dtype, folder, compiled=False):
    del folder
    model = hf_model(config, task)
    torch = peers.imported("torch", "PyTorch")
    called = torch.compile(model, dynamic=True) if compiled else model

    def answer(features):
        ids, mask, segments = map(torch.from_numpy, padded(features, np.int64).values())
        with torch.inference_mode(), torch.autocast(
                "cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
            outputs = called(
                input_ids=ids, attention_mask=mask, token_type_ids=segments)
        return (outputs.start_logits if task == "spans"
                else outputs.logits).float().numpy()

    return answer


def keras_hub_model(config, task, dtype):
    """Returns keras-hub's model on Keras 3 with TensorFlow."""
    models, keras, backbone = peers.keras_hub_backbone(config, dtype)
    if task == "spans":
        outputs = keras.layers.Dense(2)(backbone.output["sequence_output"])
        return keras.Model(backbone.input, outputs)
    return models.AlbertTextClassifier(backbone, 2, preprocessor=None, dropout=0.0)


def keras_hub(config, task, dtype, folder):
    del folder
    import tensorflow as tf

    model = keras_hub_model(config, task, dtype)

    # predict() of Keras creates a data pipeline per call, which makes requests slower.
    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)] * 3)
    def call(ids, mask, segments):
        return model({"token_ids": ids, "padding_mask": mask, "segment_ids": segments},
                     training=False)

    return lambda features: call(*map(tf.constant, padded(features).values())).numpy()


def _peer_graph(config, task, folder) -> str:
    """Exports transformers' model to ONNX with PyTorch, as its users do."""
    path = os.path.join(folder, f"hf-{task}.onnx")
    if not os.path.exists(path):
        model = hf_model(config, task)
        torch = peers.imported("torch", "PyTorch")
        names = ["input_ids", "attention_mask", "token_type_ids"]
        outputs = ["start_logits", "end_logits"] if task == "spans" else ["logits"]
        torch.onnx.export(
            model, tuple(torch.ones([2, 7], dtype=torch.int64) for _ in names), path,
            input_names=names, output_names=outputs, opset_version=17, dynamo=False,
            dynamic_axes={name: {0: "batch", 1: "length"}
                          for name in (*names, *outputs[:2 * (task == "spans")])})
    return path


def _peer_batch(features):
    return dict(zip(("input_ids", "attention_mask", "token_type_ids"),
                    padded(features, np.int64).values()))


def onnxruntime(config, task, dtype, folder, optimized=False):
    """Returns the peer's graph in ONNX Runtime.

    ONNX Runtime uses its general optimizer or first its optimizer for transformers; in int8
    dynamic quantization with one scale for each matrix.
    """
    engine = peers.imported("onnxruntime", "ONNX Runtime")
    path = _peer_graph(config, task, folder)
    if optimized:
        from onnxruntime.transformers import optimizer

        better = path.replace(".onnx", "-optimized.onnx")
        if not os.path.exists(better):
            optimizer.optimize_model(
                path, "bert", num_heads=config.num_attention_heads,
                hidden_size=config.hidden_size).save_model_to_file(better)
        path = better
    if dtype == "int8":
        import onnx
        from onnxruntime import quantization

        whole = path.replace(".onnx", "-int8.onnx")
        if not os.path.exists(whole):
            # The quantizer does not know the types of its own fused operations.
            quantization.quantize_dynamic(path, whole, extra_options={
                "DefaultTensorType": onnx.TensorProto.FLOAT})
        path = whole
    options = engine.SessionOptions()
    options.log_severity_level = 3
    session = engine.InferenceSession(
        path, options, providers=["CPUExecutionProvider"])
    return lambda features: session.run(None, _peer_batch(features))[0]


def openvino(config, task, dtype, folder):
    """Returns the peer's graph in OpenVINO."""
    engine = peers.imported("openvino", "OpenVINO")
    compiled = engine.Core().compile_model(_peer_graph(config, task, folder), "CPU", {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "bf16" if dtype == "bfloat16" else "f32"})
    request = compiled.create_infer_request()
    return lambda features: np.array(request.infer(_peer_batch(features))[0])


MAKERS = {
    "ours": ours, "plain": plain,
    **{f"ours-{form}": functools.partial(our_export, form)
       for form in ("onnx", "openvino", "tflite")},
    "tf-models": tf_models, "keras-hub": keras_hub,
    "hf": hf, "compiled": functools.partial(hf, compiled=True),
    "onnxruntime": onnxruntime,
    "onnxruntime-optimized": functools.partial(onnxruntime, optimized=True),
    "openvino": openvino}
# Types of the peers whose types are not float32 and bfloat16.
_DTYPES = {"onnxruntime": ("float32",), "onnxruntime-optimized": ("float32", "int8")}


def supports(name: str, dtype: str) -> bool:
    """Returns whether a contestant computes in a type."""
    if name.startswith("ours-"):
        from albert_tf.serving import portable

        return dtype in portable.FORMS[name.removeprefix("ours-")].precisions
    return dtype in _DTYPES.get(name, ("float32", "bfloat16"))


# ---- the limit -------------------------------------------------------------


def limit(config, task, dtype):
    """Returns the matrix products of the tokens alone, without padding.

    The products of all tokens of a batch run together, those of attention per sequence.
    In the last layer before a classifier only [CLS] counts. Returns a function of the
    sequences' lengths, and one that counts their operations.
    """
    import tensorflow as tf

    size, inner = config.hidden_size, config.intermediate_size
    heads = config.num_attention_heads
    layers = config.num_hidden_layers * config.inner_group_num
    whole = layers if task == "spans" else layers - 1

    def shapes(lengths):
        """Yields (count, batch, rows, inner, columns)."""
        pieces, first = sum(lengths), len(lengths)
        found = [(1, 0, pieces, config.embedding_size, size),
                 (whole, 0, pieces, size, 3 * size), (whole, 0, pieces, size, size),
                 (whole, 0, pieces, size, inner), (whole, 0, pieces, inner, size)]
        if whole < layers:
            found += [(1, 0, pieces, size, 2 * size), (1, 0, first, size, size),
                      (1, 0, first, size, size), (1, 0, first, size, inner),
                      (1, 0, first, inner, size)]
        for length in lengths:
            found += [(whole, heads, length, size // heads, length),
                      (whole, heads, length, length, size // heads)]
        return found

    def flops(lengths) -> float:
        return float(sum(2 * count * max(batch, 1) * rows * middle * columns
                         for count, batch, rows, middle, columns in shapes(lengths)))

    @functools.lru_cache
    def operand(*shape):
        return tf.cast(tf.random.normal(shape), dtype)

    def run(lengths):
        for count, batch, rows, middle, columns in shapes(lengths):
            outer = (batch,) if batch else ()
            left = operand(*outer, rows, middle)
            right = operand(*outer, middle, columns)
            for _ in range(count):
                product = tf.matmul(left, right)
        product.numpy()

    return run, flops
