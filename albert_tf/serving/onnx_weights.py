"""Stores each matrix of an ONNX graph once, in 32, 16 or 8 bits.

ALBERT's layers share their matrices, and the word embeddings are also the weights of
the masked-LM head. The file stores shared matrices once; engines unpack them when they
load it.
"""

# onnxruntime.quantization is not used: its quantize_dynamic leaves embeddings that the
# masked-LM head also reads in 32 bits (10.7 MB instead of 3.2 for 30,000 tokens, six
# layers of width 256), and gives all rows of a table one scale.

from typing import Any, Callable, Iterable

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
        graph.pack({"MatMul": _integer_product, "Gather": _integer_rows})
    elif precision != "float32":
        graph.pack({})
    graph.share_transposed()
    graph.write()
    return model


class _Graph:
    """A graph's nodes in their order, and its constants."""

    def __init__(self, proto):
        self.proto = proto
        self.stored = {each.name: numpy_helper.to_array(each)
                       for each in proto.initializer}
        self._shared: set[str] = set()  # tensors that several nodes read

    def _replace(self, nodes: Iterable) -> None:
        nodes = list(nodes)
        del self.proto.node[:]
        self.proto.node.extend(nodes)

    def matrix(self, name: str):
        """Returns a stored matrix of floats that is large enough to pack, else None."""
        value = self.stored.get(name)
        return value if value is not None and value.dtype == np.float32 and (
            value.ndim == 2 and min(value.shape) >= _LEAST) else None

    def pack(self, ways: dict[str, Callable]) -> None:
        """Replaces each node that reads a matrix with the nodes that a function of it
        returns, by the node's type, or with one that reads the matrix in float16."""
        nodes = []
        for node in self.proto.node:
            reads = any(self.matrix(name) is not None for name in node.input)
            way = ways.get(node.op_type, _as_float16)
            nodes += way(self, node) if reads else [node]
        self._replace(nodes)

    def once(self, node: Any) -> list[Any]:
        """Returns [node], or [] if its outputs are computed already."""
        if node.output[0] in self._shared:
            return []
        self._shared.add(node.output[0])
        return [node]

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

        def stored(found, names):
            """Returns the named constants as lists of numbers; None if one is none."""
            return [self.stored[found[name]].ravel().tolist()
                    if found[name] in self.stored else None for name in names.split()]

        for node in self.proto.node:
            found: dict[str, str] = {}
            if matches(node.output[0], _NORM, found):
                axes, epsilon = stored(found, "axes epsilon")
                if axes == [-1] and epsilon and len(epsilon) == 1:
                    node.CopyFrom(helper.make_node(
                        "LayerNormalization", [found[name] for name in (
                            "x", "gamma", "beta")], node.output, axis=-1,
                        epsilon=epsilon[0]))
            elif matches(node.output[0], _PRODUCT, found := {}):
                value = self.matrix(found["matrix"])
                if value is not None and stored(found, "rows width start end axes") == [
                        [-1, len(value)], [value.shape[1]], [0], [-1], [0]]:
                    node.CopyFrom(helper.make_node(
                        "MatMul", [found["x"], found["matrix"]], node.output))
        read, nodes = {each.name for each in self.proto.output}, []
        for node in reversed(self.proto.node):
            if read.intersection(node.output):
                read.update(node.input)
                nodes.append(node)
        self._replace(reversed(nodes))

    def share_transposed(self) -> None:
        """Stores only one of two matrices that are each other's transpose."""
        nodes, stored = [], {}
        read = {name for node in self.proto.node for name in node.input}
        for name, value in list(self.stored.items()):
            if name not in read or value.ndim != 2 or min(value.shape) < _LEAST:
                continue
            other = next((other for other in stored.get(
                (value.dtype, *value.shape[::-1]), ())
                          if np.array_equal(self.stored[other].T, value)), None)
            if other is None:
                stored.setdefault((value.dtype, *value.shape), []).append(name)
            else:
                nodes.append(helper.make_node("Transpose", [other], [name], perm=[1, 0]))
                del self.stored[name]
        self._replace([*nodes, *self.proto.node])

    def write(self) -> None:
        """Writes constants and names. Everything but inputs and outputs is named by
        number: the converter's names are long, and depend on its previous work, so that
        the same model would give different files."""
        ends = (*self.proto.input, *self.proto.output)
        names = {each.name: each.name for each in ends}
        names[""] = ""  # an input that is left out
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


def _as_floats(name, result):
    return helper.make_node("Cast", [name], [result], to=TensorProto.FLOAT)


def _as_float16(graph, node):
    """Returns the node with its matrices stored as float16 and cast when read."""
    added = []
    for i, name in enumerate(node.input):
        value = graph.matrix(name)
        if value is not None:
            graph.stored[f"{name}/float16"] = value.astype(np.float16)
            node.input[i] = f"{name}/float32"
            added += graph.once(_as_floats(f"{name}/float16", node.input[i]))
    return [*added, node]


def quantized(value: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns whole numbers from -127 to 127, and the scales; the largest number along
    the axis becomes 127."""
    scale = np.abs(value).max(axis=axis, keepdims=True) / np.float32(127)
    scale = np.where(scale == 0, 1, scale).astype(np.float32)
    return np.rint(value / scale).astype(np.int8), scale


def _integer_product(graph, node):
    """Returns the nodes for MatMul(x, w): x is quantized to 8 bits, the product is
    computed in integers, and multiplied by both scales. Engines recognise these nodes,
    in this order, as one operation."""
    inputs, name = node.input
    value, (output,) = graph.matrix(name), node.output
    if value is None:
        return _as_float16(graph, node)
    graph.stored[f"{name}/int8"], scale = quantized(value, 0)
    graph.stored[f"{name}/scale"] = scale[0]
    packed = f"{inputs}/uint8"
    integers, floats, scales = (f"{output}/{part}" for part in (
        "integers", "floats", "scales"))
    return [*graph.once(helper.make_node("DynamicQuantizeLinear", [inputs], [
                packed, f"{packed}/scale", f"{packed}/zero"])),
            helper.make_node("MatMulInteger", [
                packed, f"{name}/int8", f"{packed}/zero"], [integers]),
            _as_floats(integers, floats),
            helper.make_node("Mul", [f"{packed}/scale", f"{name}/scale"], [scales]),
            helper.make_node("Mul", [floats, scales], [output])]


def _integer_rows(graph, node):
    """Returns the nodes for Gather(w, i): rows of w, each times its scale."""
    name, rows = node.input
    value, (output,) = graph.matrix(name), node.output
    if value is None or any(each.name == "axis" and each.i for each in node.attribute):
        return _as_float16(graph, node)
    graph.stored[f"{name}/rows"], graph.stored[f"{name}/scales"] = quantized(value, 1)
    return [helper.make_node("Gather", [f"{name}/rows", rows], [f"{output}/integers"]),
            _as_floats(f"{output}/integers", f"{output}/floats"),
            helper.make_node("Gather", [f"{name}/scales", rows], [f"{output}/scales"]),
            helper.make_node("Mul", [f"{output}/floats", f"{output}/scales"], [output])]
