"""The TPU's own compiler, without a TPU: the package libtpu compiles for a topology that
is described, not present.

TensorFlow exports what a replica computes in a step as HLO for CPUs. `to_tpu` replaces in
it what TensorFlow would have written for a TPU: the generator of random numbers, whose
state there is one key and one count (tf2xla's MaybeSliceCounter). The compiled program
holds an `estimated_cycles` for every fusion. Seconds from these are estimates of the
compiler, not of a clock. benchmarks/requirements-tpu.txt has jax and libtpu.
"""

import collections
import contextlib
import dataclasses
import os
import re
from typing import Any, Callable, Iterator, NamedTuple, Optional, Sequence

from benchmarks import peers

# libtpu would ask Google's cloud which TPU this is, and lock it.
_ENVIRONMENT = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1", "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v3-8", "TPU_WORKER_HOSTNAMES": "localhost",
    "JAX_PLATFORMS": "cpu",
    # For v6e, libtpu 0.0.52 gives the lookup of embeddings to the chip's SparseCore, in
    # an asynchronous form that jaxlib 0.10.2 cannot read.
    "LIBTPU_INIT_ARGS": "--xla_tpu_offload_gather_to_sparsecore=false"}


class Chip(NamedTuple):
    """One core of a TPU, from Google's documentation of the chip.

    Attributes:
      topologies: number of replicas → a topology that libtpu describes.
      clock: cycles per second.
      flops: dense bfloat16 operations per second of a core.
      memory: bytes of memory of a core.
      bandwidth: bytes per second from and to this memory, of a core.
      cores: per chip.
    """

    topologies: dict[int, str]
    clock: float
    flops: float
    memory: float
    bandwidth: float
    cores: int


CHIPS = {
    "v3": Chip({1: "v3:2x2", 8: "v3:2x2", 512: "v3:16x16"}, 0.94e9, 61.5e12,
               16 * 2 ** 30, 450e9, 2),
    "v4": Chip({1: "v4:2x2x1"}, 1.05e9, 137.5e12, 16 * 2 ** 30, 614e9, 2),
    "v5e": Chip({1: "v5e:2x2", 4: "v5e:2x2", 16: "v5e:4x4"}, 1.5e9, 197e12,
                16 * 2 ** 30, 819e9, 1),
    # Both cores of a chip of v5p work as one.
    "v5p": Chip({1: "v5p:2x2x1"}, 1.75e9, 459e12, 95e9, 2765e9, 1),
    "v6e": Chip({1: "v6e:2x2"}, 1.75e9, 918e12, 32 * 2 ** 30, 1638e9, 1),
}


@dataclasses.dataclass(frozen=True)
class Program:
    """A compiled program.

    Attributes:
      cycles: the compiler's estimate for a run.
      temporary, arguments, code: bytes of memory while it runs.
      random_bytes: random numbers that it writes, for which there is no estimate.
      groups: kind of operation → cycles.
    """

    cycles: int
    temporary: int
    arguments: int
    code: int
    random_bytes: int
    groups: dict[str, int]

    @property
    def memory(self) -> int:
        """Returns bytes of memory in all."""
        return self.temporary + self.arguments + self.code


def prepare() -> None:
    """Imports jax and finds libtpu; raises peers.NotInstalled."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    peers.imported("libtpu", "libtpu, the TPU's compiler,")
    peers.imported("jax", "jax")


def exported(function: Callable[..., Any], *specs: Any) -> bytes:
    """Returns the HLO of a function of tensors, as TensorFlow would give it to XLA on a
    TPU but for what `to_tpu` replaces."""
    import tensorflow as tf
    from albert_tf.modeling.kernels import fast
    from tensorflow.python.eager.polymorphic_function import compiler_ir

    kind, fast.device_kind = fast.device_kind, lambda: "TPU"
    try:
        concrete = tf.function(
            function, jit_compile=True, autograph=False).get_concrete_function(*specs)
    finally:
        fast.device_kind = kind
    return compiler_ir.from_concrete_function(concrete)(
        stage="hlo_serialized", platform_name="CPU")


def to_tpu(hlo: bytes) -> Any:
    """Converts HLO from `exported` to a module of StableHLO for a TPU, and the context
    in which it lives."""
    from jax._src.interpreters import mlir
    from jaxlib import _jax
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    context = mlir.make_ir_context()
    with context, ir.Location.unknown():
        module = ir.Module.parse(_jax.mlir.hlo_to_stablehlo(hlo))
        replaced: dict[str, list] = {"mhlo.copy": [], "stablehlo.rng_bit_generator": []}

        def visit(operation):
            if operation.name in replaced:
                replaced[operation.name].append(operation)
            return ir.WalkResult.ADVANCE

        module.operation.walk(visit)
        for copy in replaced["mhlo.copy"]:  # Has no meaning in StableHLO.
            copy.results[0].replace_all_uses_with(copy.operands[0])
            copy.operation.erase()
        for draw in replaced["stablehlo.rng_bit_generator"]:
            with ir.InsertionPoint(draw):
                state, rest = (stablehlo.slice(draw.operands[0], [first], [end], [1])
                               for first, end in ((0, 2), (2, 3)))
                new = stablehlo.RngBitGeneratorOp(
                    state.type, draw.results[1].type,
                    stablehlo.RngAlgorithmAttr.get("DEFAULT"), state)
                draw.results[0].replace_all_uses_with(
                    stablehlo.concatenate([new.results[0], rest], 0))
                draw.results[1].replace_all_uses_with(new.results[1])
            draw.operation.erase()
    return module, context


def compile_module(module: Any, chip: Chip, replicas: int = 1) -> Program:
    """Compiles a module of StableHLO for one core, or for as many as replicas."""
    import numpy as np
    from jax.experimental import topologies
    from jaxlib import xla_client

    devices = topologies.get_topology_desc(
        topology_name=chip.topologies[replicas], platform="tpu").devices[:replicas]
    options = xla_client.CompileOptions()
    options.num_replicas, options.num_partitions = replicas, 1
    options.device_assignment = xla_client.DeviceAssignment.create(
        np.array([[device.id] for device in devices]))
    return program_of(devices[0].client.compile(
        module, xla_client.DeviceList(tuple(devices)), options))


def compiled(function: Callable[..., Any], specs: Sequence[Any], chip: Chip,
             replicas: int = 1) -> Program:
    """Compiles what a replica computes, a TensorFlow function of tensors."""
    with _replica_of(replicas):
        module, context = to_tpu(exported(function, *specs))
    with context:
        return compile_module(module, chip, replicas)


class _Replica:
    """A replica's context for the training step, in XLA's own operations."""

    def __init__(self, replicas: int):
        self.num_replicas_in_sync = replicas

    @property
    def replica_id_in_sync_group(self) -> Any:
        from tensorflow.compiler.tf2xla.ops import gen_xla_ops

        return gen_xla_ops.xla_replica_id()

    def all_reduce(self, _, values: Any) -> Any:
        """Returns the means over the replicas."""
        import tensorflow as tf
        from tensorflow.compiler.tf2xla.ops import gen_xla_ops

        count = self.num_replicas_in_sync
        return tf.nest.map_structure(lambda value: gen_xla_ops.xla_all_reduce(
            value, [list(range(count))], "Add", "CrossReplica") / count, values)


@contextlib.contextmanager
def _replica_of(replicas: int):
    if replicas == 1:
        yield
        return
    from unittest import mock

    import tensorflow as tf

    context = _Replica(replicas)
    with mock.patch.object(tf.distribute, "get_replica_context", lambda: context):
        yield


def program_of(executable: Any) -> Program:
    """Returns what the compiler says of its program."""
    memory = executable.get_compiled_memory_stats()
    groups, random_bytes = _costs(executable.hlo_modules()[0].to_string())
    return Program(sum(groups.values()), memory.temp_size_in_bytes,
                   memory.argument_size_in_bytes, memory.generated_code_size_in_bytes,
                   random_bytes, groups)


# ---- reading the compiled text ---------------------------------------------

_START = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_OPERATION = re.compile(
    r"^\s+(?:ROOT )?%?[\w.\-]+ = (.*?) ([a-z][a-z\-]*)\(.*?\)(?:, |$)")
_BYTES = {"pred": 1, "u8": 1, "s8": 1, "bf16": 2, "u16": 2, "f32": 4, "u32": 4, "s32": 4,
          "u64": 8, "s64": 8, "f64": 8}
# The first kind whose operation occurs in a fusion is its kind.
_KINDS = (("products", ("convolution", "dot")),
          ("sums and maxima", ("reduce", "reduce-window", "scatter")),
          ("exchange", ("all-reduce",)))


class Operation(NamedTuple):
    """A line of a compiled program, such as

        %y = f32[8]{0} fusion(%x, %z), calls=%f, backend_config={...}

    Attributes:
      kind, shape: here fusion, and f32[8]{0}.
      line: all of it.
    """

    kind: str
    shape: str
    line: str

    @property
    def called(self) -> str:
        """Returns the name of a fusion's computation, or nothing."""
        called = re.search(r"\bcalls=%?([\w.\-]+)", self.line)
        return called[1] if called else ""


def _computations_of(text: str) -> tuple[dict[str, list[Operation]], str]:
    """Splits the text into the operations of each computation; also returns the
    entry's name."""
    found: dict[str, list[Operation]] = collections.defaultdict(list)
    name = entry = ""
    for line in text.splitlines():
        start, operation = _START.match(line), _OPERATION.match(line)
        if start:
            name = start[2]
            entry = name if start[1] else entry
        elif name and operation:
            found[name].append(Operation(operation[2], operation[1], line))
    return found, entry


def _executed(text: str) -> Iterator[tuple[int, Operation]]:
    """Yields the operations of the program, and how often each runs; a loop's body runs
    as often as the loop."""
    computations, entry = _computations_of(text)
    trips = 1

    def walk(name: str, times: int) -> Iterator[tuple[int, Operation]]:
        nonlocal trips
        for operation in computations[name]:
            yield times, operation
            if operation.kind == "while":
                parts = dict(re.findall(
                    r"(condition|body)=%?([\w.\-]+)", operation.line))
                # The loop of a gradient has no constant: it counts as its forward
                # loop, the one before it.
                trips = _trips(parts["condition"], computations) or trips
                yield from walk(parts["body"], times * trips)
            elif operation.kind in ("call", "conditional"):
                for called in re.findall(
                        r"(?:to_apply=|computation=|branch_computations=\{)%?([\w.\-]+)",
                        operation.line):
                    yield from walk(called, times)

    yield from walk(entry, 1)


def _costs(text: str) -> tuple[dict[str, int], int]:
    """Returns the estimated cycles of each kind of operation and the bytes of random
    numbers."""
    computations, _ = _computations_of(text)
    cycles: dict[str, int] = collections.Counter()
    random_bytes = 0
    for times, operation in _executed(text):
        estimate = re.search(r'"estimated_cycles":"(\d+)"', operation.line)
        if estimate:
            cycles[_kind_of(operation, computations)] += times * int(estimate[1])
        if operation.kind in ("rng-bit-generator", "rng"):
            random_bytes += times * _bytes_of(operation.shape)
    return dict(cycles), random_bytes


def _kind_of(operation: Operation, computations: dict[str, list[Operation]]) -> str:
    kinds = {operation.kind} | {
        inner.kind for inner in computations.get(operation.called, [])}
    for name, operations in _KINDS:
        if kinds & set(operations):
            return name
    moves = {"copy", "transpose", "reshape", "bitcast", "parameter", "fusion", "slice",
             "concatenate", "dynamic-slice", "dynamic-update-slice", "constant",
             "copy-start", "copy-done", "broadcast"}
    return "copies" if kinds <= moves else "other element-wise"


def _trips(condition: str, computations: dict[str, list[Operation]]) -> int:
    """Returns how often a loop runs that counts from 0: the largest constant in its
    condition, or 0 if there is none."""
    operations = list(computations[condition])
    for operation in computations[condition]:
        operations += computations.get(operation.called, [])
    numbers = [int(number) for operation in operations for number in re.findall(
        r"s32\[\][^ ]* constant\((\d+)\)", operation.line)]
    return max(numbers, default=0)


def _bytes_of(shape: str) -> int:
    """Returns the bytes of a shape such as (u64[2], u32[8,128])."""
    total = 0
    for kind, sizes in re.findall(r"\b([a-z]+\d*)\[([\d,]*)\]", shape):
        count = 1
        for size in filter(None, sizes.split(",")):
            count *= int(size)
        total += count * _BYTES.get(kind, 4)
    return total


# ---- the steps -------------------------------------------------------------


def trainer_program(trainer: Any, batch: dict[str, Any], chip: Chip, parts: int = 1,
                    passes: Optional[int] = None, replicas: int = 1) -> Program:
    """Compiles what one replica of a Trainer computes in a step: its share of a batch in
    some parts, with the first `passes` layers."""
    import tensorflow as tf

    specs = {name: tf.TensorSpec(value.shape, value.dtype)
             for name, value in batch.items()}
    computation = dataclasses.replace(trainer.computation, passes=passes)
    return compiled(lambda features: trainer._replica_step(
        computation, parts, features), [specs], chip, replicas)


def keras_hub_program(config: Any, size: int, length: int, dtype: str, chip: Chip
                      ) -> Program:
    """Compiles keras-hub's AlbertMaskedLM on JAX, with AdamW as in
    contestants.keras_hub: it has no sentence loss."""
    os.environ["KERAS_BACKEND"] = "jax"
    import jax
    import numpy as np
    from jax.experimental import topologies

    from benchmarks import contestants

    keras, model, optimizer = peers.keras_hub_pretrainer(config, dtype)
    batch = contestants.random_batch(config, size, length)
    features = peers.keras_hub_inputs(batch)
    labels = batch["masked_lm_ids"]

    def loss(trainable, fixed, features, labels):
        scores, fixed = model.stateless_call(trainable, fixed, features, training=True)
        return keras.ops.mean(keras.losses.sparse_categorical_crossentropy(
            labels, keras.ops.cast(scores, "float32"))), fixed

    def step(trainable, fixed, state, features, labels):
        (value, fixed), gradients = jax.value_and_grad(loss, has_aux=True)(
            trainable, fixed, features, labels)
        trainable, state = optimizer.stateless_apply(state, gradients, trainable)
        return value, trainable, fixed, state

    device = topologies.get_topology_desc(
        topology_name=chip.topologies[1], platform="tpu").devices[0]
    place = jax.sharding.SingleDeviceSharding(device)

    def spec(value):
        value = np.asarray(value)
        return jax.ShapeDtypeStruct(value.shape, value.dtype)

    arguments = jax.tree.map(spec, (
        [v.value for v in model.trainable_variables],
        [v.value for v in model.non_trainable_variables],
        [v.value for v in optimizer.variables], features, labels))
    lowered = jax.jit(step, in_shardings=place, out_shardings=place,
                      donate_argnums=(0, 1, 2)).lower(*arguments)
    return program_of(lowered.compile().runtime_executable())
