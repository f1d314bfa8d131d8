"""Stores each matrix of an ONNX graph once, in 32, 16 or 8 bits.

ALBERT's layers share their matrices, and the word embeddings are also the weights of
the masked-LM head. The file stores shared matrices once; engines unpack them when they
load it.
"""

# onnxruntime.quantization is not used: its quantize_dynamic leaves embeddings that the
# masked-LM head also reads in 32 bits (10.7 MB instead of 3.2 for 30,000 tokens, six
# layers of width 256), and gives all rows of a table one scale.

from typing import Any, Iterable

import numpy as np
from onnx import TensorProto, helper, numpy_helper

# A matrix with fewer rows or columns, such as a head's, stays as it is.
_LEAST = 8
# Number of axes of the inputs → their names, as optimum writes them.
_AXES = {2: ("batch_size", "sequence_length"),
         3: ("batch_size", "num_choices", "sequence_length")}

# Groups of nodes as the converter writes them: (type, inputs...), or a tensor's name here.
_MEAN = ("ReduceMean", "x", "axes")
_CENTRED = ("Sub", "x", _MEAN)
_SCALE = ("Mul", ("Reciprocal", ("Sqrt", ("Add", (
    "ReduceMean", ("Mul", _CENTRED, _CENTRED), "axes"), "epsilon"))), "gamma")
_NORM = ("Add", ("Mul", "x", _SCALE), ("Sub", "beta", ("Mul", _MEAN, _SCALE)))
_PRODUCT = ("Reshape", ("MatMul", ("Reshape", "x", "rows"), "matrix"), (
    "Cast", ("Concat", ("Slice", ("Cast", ("Shape", "x")), "start", "end", "axes"),
             "width")))


def stored_as(model: Any, precision: str) -> Any:
    """Stores the matrices of an onnx.ModelProto in a precision, and returns the model.

    float16, bfloat16: 16 bits, read as float32. int8: a number is a whole number times
    the scale of its column (for embeddings: of its row). Products are computed in
    integers, and their other factor is quantized at run time by its least and greatest
    number.
    """
    graph = _Graph(model.graph)
    if precision == "int8":
        graph.simplify()
    if precision != "float32":
        graph.pack(in_int8=precision == "int8")
    graph.share_transposed()
    graph.write()
    return model


class _Graph:
    """A graph's nodes in their order, and its constants."""

    def __init__(self, proto):
        self.proto = proto
        self.stored = {each.name: numpy_helper.to_array(each)
                       for each in proto.initializer}

    def _replace(self, nodes: Iterable) -> None:
        nodes = list(nodes)
        del self.proto.node[:]
        self.proto.node.extend(nodes)

    def _is_large(self, name: str) -> bool:
        """Returns whether this is a stored matrix of floats that is worth packing."""
        value = self.stored.get(name)
        return value is not None and value.dtype == np.float32 and value.ndim == 2 and (
            min(value.shape) >= _LEAST)

    def simplify(self) -> None:
        """Writes LayerNorm and the product of all rows with a matrix as one node each,
        in place of twelve and eight. ONNX Runtime then also fuses the sums before and
        after. In int8 the products are so short that the other nodes count."""
        producers = {name: node for node in self.proto.node for name in node.output}

        def matches(name, pattern, found):
            if isinstance(pattern, str):
                return found.setdefault(pattern, name) == name
            node = producers.get(name)
            return node is not None and node.op_type == pattern[0] and (
                len(node.input) == len(pattern) - 1) and all(
                    matches(*each, found) for each in zip(node.input, pattern[1:]))

        for node in self.proto.node:
            norm, product = {}, {}
            if matches(node.output[0], _NORM, norm):
                node.CopyFrom(helper.make_node(
                    "LayerNormalization", [norm["x"], norm["gamma"], norm["beta"]],
                    node.output, axis=-1, epsilon=self.stored[norm["epsilon"]].item()))
            elif matches(node.output[0], _PRODUCT, product) and (
                    self._is_large(product["matrix"])):
                node.CopyFrom(helper.make_node(
                    "MatMul", [product["x"], product["matrix"]], node.output))
        read, nodes = {each.name for each in self.proto.output}, []
        for node in reversed(self.proto.node):
            if read.intersection(node.output):
                read.update(node.input)
                nodes.append(node)
        self._replace(reversed(nodes))

    def pack(self, in_int8: bool) -> None:
        """Replaces each node that reads a large matrix by nodes that read it in 8 or 16
        bits."""
        nodes, outputs = [], set()

        def add(kind, inputs, *names, **attributes):
            """Adds a node, unless it is there for another reader; returns its output."""
            if names[0] not in outputs:
                outputs.add(names[0])
                nodes.append(helper.make_node(kind, inputs, names, **attributes))
            return names[0]

        for node in self.proto.node:
            large = [*map(self._is_large, node.input)]
            kind, output = in_int8 and node.op_type, node.output[0]
            if kind == "MatMul" and large[1]:
                # Engines recognise these nodes, in this order, as one operation.
                name, packed = node.input[1], f"{node.input[0]}/uint8"
                self.stored[f"{name}/int8"], scale = quantized(self.stored[name], 0)
                self.stored[f"{name}/scale"] = scale[0]
                add("DynamicQuantizeLinear", node.input[:1], packed, f"{packed}/scale",
                    f"{packed}/zero")
                integers = add("MatMulInteger", [packed, f"{name}/int8", f"{packed}/zero"],
                               f"{output}/integers")
                floats = add("Cast", [integers], f"{output}/floats", to=TensorProto.FLOAT)
                scales = add("Mul", [f"{packed}/scale", f"{name}/scale"],
                             f"{output}/scales")
                add("Mul", [floats, scales], output)
            elif kind == "Gather" and large[0] and not any(
                    each.name == "axis" and each.i for each in node.attribute):
                name, rows = node.input
                self.stored[f"{name}/rows"], self.stored[f"{name}/scales"] = quantized(
                    self.stored[name], 1)
                integers = add("Gather", [f"{name}/rows", rows], f"{output}/integers")
                floats = add("Cast", [integers], f"{output}/floats", to=TensorProto.FLOAT)
                scales = add("Gather", [f"{name}/scales", rows], f"{output}/scales")
                add("Mul", [floats, scales], output)
            else:
                for i, name in enumerate(node.input):
                    if large[i]:
                        half = f"{name}/float16"
                        self.stored[half] = self.stored[name].astype(np.float16)
                        node.input[i] = add("Cast", [half], f"{name}/float32",
                                            to=TensorProto.FLOAT)
                nodes.append(node)
        self._replace(nodes)

    def share_transposed(self) -> None:
        """Stores only one of two matrices that are each other's transpose."""
        nodes, seen = [], {}
        read = {name for node in self.proto.node for name in node.input}
        for name, value in list(self.stored.items()):
            if name in read and value.ndim == 2 and min(value.shape) >= _LEAST:
                other = seen.get((value.dtype, value.T.shape, value.T.tobytes()))
                if other:
                    nodes.append(helper.make_node(
                        "Transpose", [other], [name], perm=[1, 0]))
                    del self.stored[name]
                else:
                    seen[value.dtype, value.shape, value.tobytes()] = name
        self._replace([*nodes, *self.proto.node])

    def write(self) -> None:
        """Writes constants and names. Everything but inputs and outputs is named by
        number: the converter's names are long, and depend on its previous work, so that
        the same model would give different files."""
        ends = (*self.proto.input, *self.proto.output)
        names = {each.name: each.name for each in ends} | {"": ""}  # one left out
        axes = _AXES[len(self.proto.input[0].type.tensor_type.shape.dim)]
        for each in ends:
            for axis, size in zip(axes, each.type.tensor_type.shape.dim):
                if size.dim_param:
                    size.dim_param = axis
        for number, node in enumerate(self.proto.node):
            # An Unsqueeze without an axis, as the converter writes it, has no effect in
            # ONNX Runtime, but adds an axis in OpenVINO.
            if node.op_type == "Unsqueeze" and not self.stored.get(
                    node.input[1], np.ones(1)).size:
                node.op_type = "Identity"
                del node.input[1:]
            node.name = f"{node.op_type}{number}"
            for side in (node.input, node.output):
                side[:] = [names.setdefault(name, f"t{len(names)}") for name in side]
        self.proto.doc_string = ""
        del self.proto.value_info[:]  # It holds shapes by the old names.
        del self.proto.initializer[:]
        self.proto.initializer.extend(
            numpy_helper.from_array(np.ascontiguousarray(self.stored[old]), new)
            for old, new in names.items() if old in self.stored)


def quantized(value: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns whole numbers from -63 to 63, and the scales; the largest number along the
    axis becomes 63. Processors without VNNI add two products with numbers of 8 bits in 16
    bits, and would cut sums of larger ones off."""
    scale = np.abs(value).max(axis=axis, keepdims=True) / np.float32(63)
    scale = np.where(scale == 0, 1, scale).astype(np.float32)
    return np.rint(value / scale).astype(np.int8), scale
