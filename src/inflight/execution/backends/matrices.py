"""Weight matrices as a checkpoint holds them, before a backend packs them.

`execution.checkpoints` reads them. A matrix of a checkpoint is plain numbers (float32, float16, or uint16 halves of
bf16), whole numbers of 8 bits or codes of 4 bits with a scale and maybe an offset for each group of inputs, or, for a
backend that packs them, floats of 8 bits with a scale for each output. Every format becomes one of them; of codes of 4
bits the inputs may stand in another order, by which a product takes x's columns. Blocks of a GGUF file may come as they
lie, so that a backend that reads them itself need not wait for what they stand for.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from inflight.execution.backends import int8
from inflight.execution.backends.bf16 import from_bf16
from inflight.execution.backends.fp8 import E4M3

Array = np.ndarray[Any, Any]
GROUPS = (128, 64, 32, 16)  # inputs that share a scale in a quantized matrix, however many do in a checkpoint
INT8_GROUP = 32  # inputs that share a scale where plain numbers become whole numbers of 8 bits
LINEAR_CODES = np.arange(-8, 8, dtype=np.int8)  # what the 16 codes of a linear format stand for


@dataclass(frozen=True, slots=True)
class Int8Matrix:
    """W[n, k] = values[n, k] · scales[n, k // group] + offsets[n, k // group].

    offsets None: all zero, as where a format is symmetric.
    """

    values: Array  # int8[N, K]
    scales: Array  # float32[N, groups]; the last group may be shorter than the others
    offsets: Array | None  # float32[N, groups]
    group: int  # inputs that share a scale: 16, 32, 64 or 128; or K, where an output has one scale and no offset

    @property
    def shape(self) -> tuple[int, int]:
        return self.values.shape[0], self.values.shape[1]

    @property
    def nbytes(self) -> int:
        return int(self.values.nbytes + self.scales.nbytes + (0 if self.offsets is None else self.offsets.nbytes))

    def dequantized(self) -> Array:
        """float32[N, K]."""
        group_of = np.arange(self.values.shape[1]) // self.group
        found = self.values * self.scales[:, group_of]
        if self.offsets is not None:
            found = found + self.offsets[:, group_of]
        return np.asarray(found, np.float32)


def by_output(values: Array, scales: Array) -> Int8Matrix:
    """Return a matrix of int8[N, K] with one scale for each output, float32[N]."""
    return Int8Matrix(values, scales[:, None], None, max(1, values.shape[1]))


@dataclass(frozen=True, slots=True)
class Fp8Matrix:
    """W[n, k] = E4M3[codes[n, k]] · scales[n]. For backends with `packs_fp8`."""

    codes: Array  # uint8[N, K]
    scales: Array  # float32[N]

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], self.codes.shape[1]

    def dequantized(self) -> Array:
        """float32[N, K]."""
        return np.asarray(E4M3[self.codes] * self.scales[:, None], np.float32)


@dataclass(frozen=True, slots=True)
class Int4Matrix:
    """W[n, k] = meanings[codes[n, k]] · scales[n, k // group] + offsets[n, k // group].

    offsets None: all zero, as where a format is symmetric. A code of 4 bits stands for a whole number of 8 bits, so
    that linear formats and those with a table of their own (MXFP4, IQ4) are one.
    """

    codes: Array  # uint8[N, K], from 0 to 15
    scales: Array  # float32[N, groups]; the last group may be shorter than the others
    offsets: Array | None  # float32[N, groups]
    group: int  # inputs that share a scale: 16, 32, 64 or 128
    meanings: Array  # int8[16]

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], self.codes.shape[1]

    def dequantized(self) -> Array:
        """float32[N, K]."""
        group_of = np.arange(self.codes.shape[1]) // self.group
        found = self.meanings[self.codes] * self.scales[:, group_of]
        if self.offsets is not None:
            found = found + self.offsets[:, group_of]
        return np.asarray(found, np.float32)


Grouped = TypeVar("Grouped", Int4Matrix, Int8Matrix)


@dataclass(frozen=True, slots=True)
class ReorderedMatrix:
    """W[n, order[k]] = matrix[n, k], as where groups are made of inputs whose activations are of like size (act-order).

    Stored exactly as in the checkpoint: a product takes x's columns in this order. It is a type of its own, so that
    packing code cannot overlook the order.
    """

    matrix: Int4Matrix
    order: Array  # int32[K], each input once

    @property
    def shape(self) -> tuple[int, int]:
        return self.matrix.shape

    def dequantized(self) -> Array:
        """float32[N, K]."""
        found = np.empty(self.shape, np.float32)
        found[:, self.order] = self.matrix.dequantized()
        return found


@dataclass(frozen=True, slots=True)
class BlockMatrix(ABC):
    """Blocks of a GGUF type as they lie in the file. A backend that reads them itself packs what it would pack of
    `unpacked`, bit for bit."""

    kind: str  # the type's name
    rows: Array  # uint8[N, bytes of a row's blocks]
    columns: int
    block_values: int  # weights of a block
    pages: Array | None = None  # uint8, of a file's map: pages to release to the system once the rows are packed

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows.shape[0], self.columns

    @property
    @abstractmethod
    def is_int8(self) -> bool:
        """Whether it is held as an Int8Matrix, else as an Int4Matrix."""

    @property
    @abstractmethod
    def group(self) -> int:
        """Inputs that share a scale."""

    @property
    @abstractmethod
    def has_offsets(self) -> bool:
        """Whether groups have offsets."""

    @property
    @abstractmethod
    def meanings(self) -> Array:
        """Return the codebook of an Int4Matrix, int8[16]."""

    @abstractmethod
    def unpacked(self) -> Int4Matrix | Int8Matrix:
        """Return the matrix for which the blocks stand."""

    @abstractmethod
    def numbers(self) -> Array:
        """float32[N, K]: the blocks' values, rounded as the format's own decoder rounds them."""

    def dequantized(self) -> Array:
        """float32[N, K], of the matrix that is held."""
        return self.unpacked().dequantized()


Matrix = Array | Int8Matrix | Fp8Matrix | Int4Matrix | ReorderedMatrix | BlockMatrix
Rows = Array | BlockMatrix  # of a table that is held plain


def unpacked(matrix: Matrix) -> Array | Int8Matrix | Fp8Matrix | Int4Matrix | ReorderedMatrix:
    """Return a BlockMatrix as the matrix for which it stands, and other matrices as they are."""
    return matrix.unpacked() if isinstance(matrix, BlockMatrix) else matrix


def rows_of(matrix: Matrix, chosen: slice | Array) -> Matrix:
    """Return some of the outputs, in this order."""
    if isinstance(matrix, np.ndarray):
        return np.asarray(matrix[chosen])
    if isinstance(matrix, ReorderedMatrix):
        inner = rows_of(matrix.matrix, chosen)
        assert isinstance(inner, Int4Matrix)
        return replace(matrix, matrix=inner)
    if isinstance(matrix, BlockMatrix):
        return replace(matrix, rows=matrix.rows[chosen])
    if isinstance(matrix, Fp8Matrix):
        return Fp8Matrix(matrix.codes[chosen], matrix.scales[chosen])
    offsets = None if matrix.offsets is None else matrix.offsets[chosen]
    if isinstance(matrix, Int8Matrix):
        return replace(matrix, values=matrix.values[chosen], scales=matrix.scales[chosen], offsets=offsets)
    return replace(matrix, codes=matrix.codes[chosen], scales=matrix.scales[chosen], offsets=offsets)


def columns_of(matrix: Matrix, chosen: slice) -> Matrix:
    """Return some of the inputs, `chosen` by their first and last. A group that the first cuts becomes smaller groups
    with the same scale; reordered inputs are stored in int8. Raises ValueError where the first is no multiple of 16
    inputs of a group."""
    matrix = in_order(_whole_blocks(matrix, chosen))
    if isinstance(matrix, BlockMatrix):
        return _columns_of_blocks(matrix, chosen)
    if isinstance(matrix, np.ndarray):
        return np.asarray(matrix[:, chosen])
    if isinstance(matrix, Fp8Matrix):
        return Fp8Matrix(matrix.codes[:, chosen], matrix.scales)
    assert isinstance(matrix, Int4Matrix | Int8Matrix)
    if isinstance(matrix, Int8Matrix) and matrix.scales.shape[1] == 1 and matrix.offsets is None:
        return by_output(matrix.values[:, chosen], matrix.scales[:, 0])
    divides = math.gcd(chosen.start, matrix.group)
    group = next((one for one in GROUPS if not divides % one), None)
    if group is None:
        raise ValueError(
            f"it has groups of {matrix.group} inputs, and is cut at input {chosen.start:,}, which is no multiple of "
            f"{GROUPS[-1]}"
        )
    of_group = slice(chosen.start // group, -(-chosen.stop // group))
    if isinstance(matrix, Int8Matrix):
        matrix = _with_group(matrix, group)
        offsets = None if matrix.offsets is None else matrix.offsets[:, of_group]
        return Int8Matrix(matrix.values[:, chosen], matrix.scales[:, of_group], offsets, group)
    matrix = _with_group(matrix, group)
    offsets = None if matrix.offsets is None else matrix.offsets[:, of_group]
    return replace(matrix, codes=matrix.codes[:, chosen], scales=matrix.scales[:, of_group], offsets=offsets)


def _with_group(matrix: Grouped, group: int) -> Grouped:
    """Return the same numbers in smaller groups, of which each of the matrix's has a whole number."""
    if matrix.group == group:
        return matrix
    count = -(-matrix.shape[1] // group)

    def repeated(numbers: Array) -> Array:
        return np.repeat(numbers, -(-matrix.group // group), axis=1)[:, :count]

    offsets = None if matrix.offsets is None else repeated(matrix.offsets)
    return replace(matrix, scales=repeated(matrix.scales), offsets=offsets, group=group)


def _whole_blocks(matrix: Matrix, chosen: slice) -> Matrix:
    """Blocks as what they stand for, where one of them would be cut."""
    if isinstance(matrix, BlockMatrix) and (chosen.start % matrix.block_values or chosen.stop % matrix.block_values):
        return matrix.unpacked()
    return matrix


def _columns_of_blocks(matrix: BlockMatrix, chosen: slice) -> BlockMatrix:
    nbytes = matrix.rows.shape[1] * matrix.block_values // matrix.columns
    first, last = (at // matrix.block_values * nbytes for at in (chosen.start, chosen.stop))
    rows = np.ascontiguousarray(matrix.rows[:, first:last])
    return replace(matrix, rows=rows, columns=chosen.stop - chosen.start)


def in_order(matrix: Matrix) -> Matrix:
    """Return a matrix with its inputs in order; a reordered one is converted to int8, by the rule of `int8.py`. For
    tables, whose rows are looked up, and for pairs that are held alike and have two orders."""
    return in_int8(matrix) if isinstance(matrix, ReorderedMatrix) else matrix


def dequantized(matrix: Matrix) -> Array:
    """float32[N, K] of a matrix of any kind. Raises ValueError for numbers of another type."""
    if not isinstance(matrix, np.ndarray):
        return matrix.dequantized()
    if matrix.dtype == np.uint16:
        return from_bf16(matrix)
    if matrix.dtype not in (np.float16, np.float32):
        raise ValueError(f"weights must be float32, float16 or uint16 (bf16), not {matrix.dtype}")
    return matrix.astype(np.float32)


def alike(gate: Matrix, up: Matrix, hold: str) -> tuple[Matrix, Matrix]:
    """Return two matrices as one kind that a group of outputs can hold side by side, the wider where they differ: plain
    numbers (which `hold` may yet quantize) beside plain ones, else int8. Both get the smaller group, and an offset
    that one of them lacks is 0. Inputs out of order stay so where both have the same order."""
    if isinstance(gate, ReorderedMatrix) and isinstance(up, ReorderedMatrix) and np.array_equal(gate.order, up.order):
        codes = alike(gate.matrix, up.matrix, hold)
        if isinstance(codes[0], Int4Matrix) and isinstance(codes[1], Int4Matrix):
            return ReorderedMatrix(codes[0], gate.order), ReorderedMatrix(codes[1], gate.order)
    if isinstance(gate, BlockMatrix) and isinstance(up, BlockMatrix) and gate.kind == up.kind:
        return gate, up
    gate, up = in_order(unpacked(gate)), in_order(unpacked(up))
    quantized = [not isinstance(one, np.ndarray) for one in (gate, up)]
    if not any(quantized):
        return gate, up
    if isinstance(gate, Fp8Matrix) and isinstance(up, Fp8Matrix):
        return gate, up
    if isinstance(gate, Int4Matrix) and isinstance(up, Int4Matrix) and np.array_equal(gate.meanings, up.meanings):
        return _grouped_alike(gate, up)
    if hold == "act" and not all(quantized):
        return dequantized(gate), dequantized(up)
    return _grouped_alike(in_int8(gate), in_int8(up))


def _grouped_alike(gate: Grouped, up: Grouped) -> tuple[Grouped, Grouped]:
    groups = (gate.group, up.group)  # one that is all inputs, and is none of GROUPS, can have no offsets
    group = min((one for one in groups if one in GROUPS), default=min(groups))
    gate, up = _with_group(gate, group), _with_group(up, group)
    both = gate.offsets is not None or up.offsets is not None
    return (_with_offsets(gate), _with_offsets(up)) if both else (gate, up)


def _with_offsets(matrix: Grouped) -> Grouped:
    return matrix if matrix.offsets is not None else replace(matrix, offsets=np.zeros_like(matrix.scales))


def in_int8(matrix: Matrix) -> Int8Matrix:
    """Return a matrix in 8 bits: one of 4 or 8 bits with its own numbers, any other by the rule of `int8.py` in groups
    of 32 inputs."""
    if isinstance(matrix, BlockMatrix):
        matrix = matrix.unpacked()
    if isinstance(matrix, Int8Matrix):
        return matrix
    if isinstance(matrix, Int4Matrix):
        return Int8Matrix(matrix.meanings[matrix.codes], matrix.scales, matrix.offsets, matrix.group)
    values, scales = int8.quantize_groups(dequantized(matrix), INT8_GROUP)
    return Int8Matrix(values, scales, None, INT8_GROUP)
