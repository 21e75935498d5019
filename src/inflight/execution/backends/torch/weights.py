"""Packed weights as a device holds them: tensors, and what they mean.

`packing` makes them. A matrix is [N, K], as a checkpoint has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from inflight.execution.backends.protocol import Gating


@dataclass(frozen=True, slots=True)
class PlainMatrix:
    """A matrix in the dtype of activations."""

    values: Tensor  # act[N, K]


@dataclass(frozen=True, slots=True)
class Int8Matrix:
    """Meant is codes · scales, as of checkpoints with one scale for each output. x is quantized by token, whole numbers
    are multiplied."""

    codes: Tensor  # int8[N, K]
    scales: Tensor  # float32[N]


@dataclass(frozen=True, slots=True)
class Fp8Matrix:
    """Meant is codes · scales. x is quantized by token to the same format."""

    codes: Tensor  # float8_e4m3fn[N, K]
    scales: Tensor  # float32[N]


@dataclass(frozen=True, slots=True)
class GroupedMatrix:
    """Codes of 4 or 8 bits with a scale for each group of inputs. x stays in `act`: the weights are widened where they
    are multiplied. Groups are whole: K counts the columns of x, filled up to a group, and what the codes of the missing
    are does not matter.

    8 bits: meant is code · scale, plus the offset where there is one.

    4 bits: meant is (code - 8) · scale; with offsets code · scale + offset; with meanings meanings[code] · scale, plus
    the offset where there is one. Two codes from 0 to 15 a byte: byte i of a group of G inputs has the group's input i
    in the low half and input i + G / 2 in the high one, so that halves of x stand in one piece for each.

    permutation: of the inputs, where codes of a group do not stand side by side in x (act-order): column j of the codes
    is input permutation[j].
    """

    codes: Tensor  # uint8[N, K / 2] of 4 bits, int8[N, K] of 8
    scales: Tensor  # float32[N, K / group]
    offsets: Tensor | None  # float32[N, K / group]
    group: int  # 16, 32, 64 or 128
    permutation: Tensor | None = None  # int32[columns of x]
    meanings: Tensor | None = None  # act[16], where codes are no straight line (MXFP4, IQ4)
    is_e2m1: bool = False  # meanings are MXFP4's, twice the numbers of that format, which kernels know by themselves

    @property
    def bits(self) -> int:
        return 8 if self.codes.dtype == torch.int8 else 4


PackedMatrix = PlainMatrix | Int8Matrix | Fp8Matrix | GroupedMatrix


def one_of(stack: PackedMatrix, index: int) -> PackedMatrix:
    """Return one matrix of a stack, whose tensors have matrices before their other dimensions."""
    if isinstance(stack, PlainMatrix):
        return PlainMatrix(stack.values[index])
    if isinstance(stack, Int8Matrix):
        return Int8Matrix(stack.codes[index], stack.scales[index])
    if isinstance(stack, Fp8Matrix):
        return Fp8Matrix(stack.codes[index], stack.scales[index])
    return GroupedMatrix(
        stack.codes[index],
        stack.scales[index],
        None if stack.offsets is None else stack.offsets[index],
        stack.group,
        None if stack.permutation is None else stack.permutation[index],
        stack.meanings,
        stack.is_e2m1,
    )


def outputs_of(matrix: PackedMatrix) -> int:
    """Return N of one matrix, or of each of a stack."""
    return (matrix.values if isinstance(matrix, PlainMatrix) else matrix.codes).shape[-2]


@dataclass(frozen=True, slots=True)
class DeviceLinear:
    """parts: stacked along N; one where all are held alike. is_partial: other devices have the matrix's other columns,
    and what it yields is a part of a sum (`summing`)."""

    parts: tuple[PackedMatrix, ...]
    rows: int
    columns: int
    nbytes: int
    bias: Tensor | None = None  # float32[N]
    is_partial: bool = False


@dataclass(frozen=True, slots=True)
class DeviceGateUp:
    """One product of [2 · F, E], the gates' F outputs first."""

    both: DeviceLinear

    @property
    def rows(self) -> int:
        return self.both.rows // 2

    @property
    def columns(self) -> int:
        return self.both.columns

    @property
    def nbytes(self) -> int:
        return self.both.nbytes


class RoutingTensors(NamedTuple):
    """`protocol.Routing` with its arrays on the device."""

    top_k: int
    scores: str
    renormalize: bool
    sum_offset: float
    jitter: float
    correction: Tensor | None  # float32[X]
    groups: int
    top_groups: int
    group_best: int
    scale: float
    expert_scale: Tensor | None  # float32[X]


@dataclass(frozen=True, slots=True)
class DeviceExperts:
    """Every tensor has the experts before its other dimensions: gate_up of [X, 2 · F, E], down of [X, E, F].
    is_partial: other devices have the other of each expert's F."""

    gate_up: PackedMatrix
    down: PackedMatrix
    gate_up_bias: Tensor | None  # float32[X, 2 · F]
    down_bias: Tensor | None  # float32[X, E]
    routing: RoutingTensors
    gating: Gating
    count: int
    nbytes: int
    is_partial: bool = False


@dataclass(frozen=True, slots=True)
class DeviceHeads:
    """Tensors have the heads first: [H, N, K]."""

    matrix: PackedMatrix
    count: int
    rows: int
    columns: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class DeviceTable:
    """rows: of tokens, in `act` or in int8 with a scale for each of `shares` equal parts of a row. linear: the same
    memory as an output projection, where it is one too."""

    matrix: PackedMatrix
    rows: int
    columns: int
    nbytes: int
    linear: DeviceLinear | None = None
    share_scales: Tensor | None = None  # float32[V, shares]; those of `matrix` count for nothing
