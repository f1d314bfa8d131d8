"""How long a program for a TPU takes at least: the instructions that the TPU's compiler
has written, and the memory that they move.

`estimated_cycles`, which tpu_compiler.py adds up, is what the compiler expected of an
operation before it wrote its instructions. Here each operation takes the longest of

  its instruction words, times the turns of their loop: one a cycle, nothing ever waits;
  its matrix instructions, times the cycles for which each occupies a matrix unit;
  the bytes that it reads from and writes to the chip's memory, at the data sheet's speed.

What a step really takes is more: operations begin and end, and fetching does not always
hide behind computing.

libtpu writes the instructions as text into a folder if it is started with `dump_flags`.
"""

import collections
import glob
import os
import re

from albert_tf.errors import InputError
from benchmarks import tpu_compiler
from benchmarks.tpu_compiler import Operation

_WORD = re.compile(r"\s*(?:0x[0-9a-f]+|0)\s+([A-Z ]*): *(>*)", re.ASCII)  # > a loop
_TURNS = re.compile(r", (\d+) /\* loop exit test")
# Any work on vectors; loops without only order transfers, which count by their bytes.
_VECTORS = re.compile(r"(?<!%)\bv(?!mem\b|nop|delay|sync|trace)[a-z]{2,}")
_PRODUCT = re.compile(r"\bvmatmul\.([a-z0-9.]*)\.(mxu\d)\b")
_ARRAY = re.compile(r"\w+\[[\d,]*\](?:\{[^}]*\})?")
_OF_A_PART = ("dynamic-slice", "slice", "gather")


def dump_flags(folder: str) -> str:
    """Returns libtpu's arguments that write the instructions to a folder."""
    return (f"--xla_jf_dump_to={folder} --xla_jf_dump_hlo_text=false "
            "--xla_jf_dump_llo_text=true "
            "--xla_jf_dump_llo_pass_label_regex=final_bundles|deduplication")


def least_seconds(text: str, folder: str, chip: tpu_compiler.Chip) -> float:
    """Returns the seconds that a compiled program takes at least on a chip, from its
    text and the folder of its instructions. Raises InputError if the folder has none."""
    instructions = _instructions(folder)
    if not instructions:
        raise InputError(f"libtpu has written no instructions to {folder}; install the "
                         "version of benchmarks/requirements-tpu.txt.")
    memory = _Memory(text)
    cycles: dict[str, int] = {}
    total = 0.0
    for times, operation in tpu_compiler.executed(text):
        path = instructions.get(operation.name)
        if path is None or operation.kind in ("while", "call", "conditional"):
            continue
        if path not in cycles:
            with open(path, encoding="utf-8") as lines:
                cycles[path] = least_cycles(lines.read(), chip.product_cycles)
        total += times * max(cycles[path] / chip.clock,
                             memory.moved(operation) / chip.bandwidth)
    return total


def least_cycles(words: str, product_cycles: int) -> int:
    """Returns the cycles of the instruction words of an operation, where a product of
    bfloat16 rows occupies a matrix unit for `product_cycles`."""
    loops = [_Loop()]  # The operation, and the loops around a word.
    for word in words.splitlines():
        mark = _WORD.match(word)
        if not mark:
            continue
        depth = len(mark[2])
        begins = "LB" in mark[1]
        del loops[depth + 1 - begins:]
        if begins:
            loops.append(_Loop())
            loops[-2].inner.append(loops[-1])
        loops[-1].add(word, product_cycles)
        turns = _TURNS.search(word)
        if turns:
            # An outer loop's first turn only fetches, and its last one only stores.
            loops[-1].turns = max(1, int(turns[1]) - 2 * (depth == 1))
    return loops[0].cycles


class _Loop:
    """Words that run equally often, and loops among them. A loop that does not say how
    often it turns, or that only orders transfers, which other words may skip, counts
    as once."""

    def __init__(self):
        self.turns = 1
        self.inner: list["_Loop"] = []
        self._words = 0
        self._has_vectors = False
        self._products: dict[str, int] = collections.Counter()

    def add(self, word: str, product_cycles: int) -> None:
        self._words += 1
        self._has_vectors = self._has_vectors or bool(_VECTORS.search(word))
        for form, unit in _PRODUCT.findall(word):
            # A product of eight rows of float32 takes eight cycles.
            self._products[unit] += product_cycles if "bf16" in form else 8

    @property
    def cycles(self) -> int:
        turns = self.turns if self._has_vectors else 1
        return turns * (max(self._words, *self._products.values(), 0)
                        + sum(loop.cycles for loop in self.inner))


def _instructions(folder: str) -> dict[str, str]:
    """Returns operation → file of its instructions. Equal operations share a file."""
    files = {}
    for path in glob.glob(os.path.join(glob.escape(folder), "*-final_bundles.txt")):
        name = re.fullmatch(r"\d+-(.*)-\d+-final_bundles\.txt", os.path.basename(path))
        if name:
            files[name[1]] = path
    found, shared = {}, ""
    for path in glob.glob(os.path.join(glob.escape(folder), "*-deduplication-map.txt")):
        with open(path, encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("key:"):
                    shared = line[len("key:"):].strip()
                elif line.startswith("  ") and shared in files:
                    found[line.strip()] = files[shared]
    return found


class _Memory:
    """Bytes that operations of a program move from and to the chip's memory."""

    def __init__(self, text: str):
        self._computations, _ = tpu_compiler.computations_of(text)
        self._shapes = {operation.name: operation.shape
                        for operations in self._computations.values()
                        for operation in operations}

    def moved(self, operation: Operation) -> int:
        """Returns the bytes of an operation's operands and result. What lies in a core's
        own memory (S(1) in a layout) is not moved; of an operand from which slices are
        taken only these are, and one in which a slice is replaced counts as nothing."""
        read = sum(self._read(operation, number)
                   for number, name in enumerate(operation.operands)
                   if _outside(self._shapes.get(name, "S(")))
        replaced = {_plain(inner.shape) for inner in self._inner(operation)
                    if inner.kind == "dynamic-update-slice"}
        written = sum(tpu_compiler.bytes_of(part) for part in _ARRAY.findall(
            operation.shape) if _outside(part) and _plain(part) not in replaced)
        return read + written

    def _inner(self, operation: Operation) -> list[Operation]:
        return self._computations.get(operation.called, [operation])

    def _read(self, operation: Operation, number: int) -> int:
        """Returns the bytes that an operation reads of an operand."""
        parameter = operation.operands[number]
        if operation.called:
            parameter = next(inner.name for inner in self._inner(operation)
                             if f" parameter({number})" in inner.line)
        whole = tpu_compiler.bytes_of(self._shapes[parameter])
        total = 0
        for user in self._inner(operation):
            if parameter not in user.operands:
                continue
            if user.kind == "fusion":
                total += self._read(user, user.operands.index(parameter))
            elif user.kind in _OF_A_PART and user.operands[0] == parameter:
                total += tpu_compiler.bytes_of(user.shape)
            elif user.kind != "dynamic-update-slice" or user.operands[0] != parameter:
                total += whole
        return min(total, whole)


def _outside(shape: str) -> bool:
    return "S(" not in shape


def _plain(shape: str) -> str:
    return shape.split("{")[0]
