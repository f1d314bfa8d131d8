"""The tables of a TFLite graph in 8 bits, each stored once."""

from typing import Any, Iterator

import numpy as np


def tables_once(content: bytes) -> bytes:
    """A graph whose masked-LM head reads the table that the embeddings are looked up in.

    The converter stores it twice: with one scale to look up in, which is all that a
    lookup can read, and with a scale for each row as the weights of a product. Those
    may have one scale, too.
    """
    # Of TensorFlow's package; a graph's parts have the names of its schema.
    from tensorflow.lite.python.schema_py_generated import BuiltinOperator
    from tensorflow.lite.tools import flatbuffer_utils

    model = flatbuffer_utils.read_model_from_bytearray(bytearray(content))
    for graph in model.subgraphs:
        tables = {tuple(table.shape): (lookup.inputs[0], table) for lookup, table in
                  _readers(model, graph, BuiltinOperator.GATHER, 0)}
        for product, weights in _readers(
                model, graph, BuiltinOperator.FULLY_CONNECTED, 1):
            place, table = tables.get(tuple(weights.shape), (None, weights))
            # The same but for the rounding.
            if table is not weights and np.allclose(
                    _numbers(model, table), _numbers(model, weights), rtol=0,
                    atol=table.quantization.scale[0]):
                product.inputs[1] = place
                model.buffers[weights.buffer].data = None
    return bytes(flatbuffer_utils.convert_object_to_bytearray(model))


def _readers(model: Any, graph: Any, kind: int, number: int) -> Iterator[tuple[Any, Any]]:
    """The operators of a kind whose input of a number is stored in 8 bits, and that."""
    for operator in graph.operators:
        code = model.operatorCodes[operator.opcodeIndex]
        if max(code.builtinCode, code.deprecatedBuiltinCode) == kind:
            tensor = graph.tensors[operator.inputs[number]]
            stored = model.buffers[tensor.buffer].data
            if stored is not None and len(stored) == np.prod(tensor.shape):
                yield operator, tensor


def _numbers(model: Any, tensor: Any) -> np.ndarray:
    """[rows, columns], of one scale or of one for each row."""
    stored = np.asarray(model.buffers[tensor.buffer].data, np.uint8).view(np.int8)
    return stored.reshape(tensor.shape) * np.asarray(
        tensor.quantization.scale, np.float32)[:, np.newaxis]
