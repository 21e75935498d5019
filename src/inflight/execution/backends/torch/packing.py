"""Packing: a checkpoint's matrix → tensors on a device, that a product multiplies by.

Knows the kinds of matrices (`matrices.py`) and how a device holds each; not which matrix is whose. Numbers go to the
device as the checkpoint has them, which may be a file mapped into memory, and are converted there.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from inflight.execution.backends import matrices
from inflight.execution.backends.matrices import Matrix, ReorderedMatrix, taken_apart
from inflight.execution.backends.protocol import Array, Hold
from inflight.execution.backends.torch import int4
from inflight.execution.backends.torch.eager.products import quantize_fp8
from inflight.execution.backends.torch.staging import Staging
from inflight.execution.backends.torch.weights import Fp8Matrix, HeldMatrix, Int4Matrix, Int8Matrix, PlainMatrix

MOST_INT8_COLUMNS = 133_144  # whose sums of products pass 32 bits in no case
_E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # MXFP4's meanings
_STAGED = 1 << 20  # bytes from which numbers are read by several threads
_ROWS = 4096  # quantized at a time, so that what a rule needs beside stays small

Join = Callable[[list[Tensor]], Tensor]


@dataclass(frozen=True, slots=True)
class Packer:
    """act: how plain numbers are held. staging: by which large ones go to the device; None: it is the host's memory."""

    act: torch.dtype
    device: torch.device
    staging: Staging | None = None

    def tensor(self, values: Array, dtype: torch.dtype | None = None) -> Tensor:
        """A copy on the device. uint16 are the upper halves of float32, which is bf16."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of memory that may not be written, which nobody does
            given = torch.from_numpy(values)
        given = given.view(torch.bfloat16) if values.dtype == np.uint16 else given
        if self.staging is not None and values.nbytes >= _STAGED and values.flags.c_contiguous:
            held = torch.empty(given.shape, dtype=given.dtype, device=self.device)
            self.staging.send(values, held)
            return held.to(dtype or given.dtype)
        return torch.empty(given.shape, dtype=dtype or given.dtype, device=self.device).copy_(given)

    def plain(self, values: Array, act: bool = True) -> Tensor:
        """[N, K] in `act`, or in float32. Raises ValueError for numbers of another type."""
        if values.dtype not in (np.float32, np.float16, np.uint16):
            raise ValueError(f"weights must be float32, float16 or uint16 (bf16), not {values.dtype}")
        return self.tensor(values).to(self.act if act else torch.float32)

    def held(self, matrix: Matrix, hold: Hold = "act", group: int = 32) -> HeldMatrix:
        """What comes quantized stays as it is, plain numbers are held as `hold` says. group: inputs to a scale, in
        int4."""
        matrix = taken_apart(matrix)
        if isinstance(matrix, ReorderedMatrix):
            return replace(self._int4(matrix.matrix), permutation=self.tensor(matrix.order, torch.int32))
        if isinstance(matrix, matrices.Int4Matrix):
            return self._int4(matrix)
        if isinstance(matrix, matrices.Int8Matrix):
            _check_columns(matrix.shape[1])
            if matrix.scales.shape[1] > 1 or matrix.offsets is not None:
                return PlainMatrix(self.plain(matrix.dequantized()))
            return Int8Matrix(self.tensor(matrix.values), self.tensor(matrix.scales[:, 0], torch.float32))
        if isinstance(matrix, matrices.Fp8Matrix):
            codes = self.tensor(matrix.codes).view(torch.float8_e4m3fn)
            return Fp8Matrix(codes, self.tensor(matrix.scales, torch.float32))
        if hold == "act":
            return PlainMatrix(self.plain(matrix))
        if hold == "int8":
            return PlainMatrix(self.plain(matrices.in_int8(matrix).dequantized()))
        if hold == "fp8":
            return Fp8Matrix(*self._in_pieces(matrix, quantize_fp8))
        codes, scales = self._in_pieces(matrix, lambda rows: int4.quantize(rows, group))
        return Int4Matrix(int4.two_to_a_byte(codes, group), scales, None, group)

    def _int4(self, matrix: matrices.Int4Matrix) -> Int4Matrix:
        missing = -matrix.shape[1] % matrix.group
        codes = torch.nn.functional.pad(self.tensor(matrix.codes), (0, missing))
        scales = self.tensor(matrix.scales, torch.float32)
        offsets = None if matrix.offsets is None else self.tensor(matrix.offsets, torch.float32)
        meant, meanings = matrix.meanings.astype(np.int32), None
        if not np.array_equal(meant, meant[0] + np.arange(16)):
            meanings = self.tensor(meant.astype(np.float32), self.act)
        elif offsets is not None or meant[0] != -8:  # on a line: code · scale + offset
            offsets = int(meant[0]) * scales + (0 if offsets is None else offsets)
        codes, is_e2m1 = int4.two_to_a_byte(codes, matrix.group), np.array_equal(meant, _E2M1)
        return Int4Matrix(codes, scales, offsets, matrix.group, None, meanings, is_e2m1)

    def _in_pieces(self, values: Array, rule: Callable[[Tensor], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """A rule for rows of float32, some rows at a time."""
        pieces = [rule(self.plain(values[at : at + _ROWS], act=False)) for at in range(0, len(values), _ROWS)]
        first, second = zip(*pieces, strict=True)
        return torch.cat(first), torch.cat(second)


def stacked(parts: Sequence[HeldMatrix]) -> tuple[HeldMatrix, ...]:
    """Matrices [N, K] along N; one where all are held alike."""
    if len(parts) > 1 and all(_are_alike(parts[0], one) and _same_order(parts[0], one) for one in parts[1:]):
        joined = _joined(parts, torch.cat)
        if isinstance(joined, Int4Matrix) and isinstance(parts[0], Int4Matrix):
            joined = replace(joined, permutation=parts[0].permutation)
        return (joined,)
    return tuple(parts)


def side_by_side(parts: Sequence[HeldMatrix]) -> HeldMatrix:
    """Matrices of one shape, of experts or heads, with their place before other dimensions: [X, N, K]. Of int4 some may
    have offsets, or an order of their inputs, and others none. Raises ValueError for matrices that differ in more."""
    codes_of = [one for one in parts if isinstance(one, Int4Matrix)]
    if any(one.offsets is not None for one in codes_of):
        parts = [_with_offsets(one) if isinstance(one, Int4Matrix) else one for one in parts]
    if orders := [one.permutation for one in codes_of if one.permutation is not None]:
        parts = [_with_order(one, len(orders[0])) if isinstance(one, Int4Matrix) else one for one in parts]
    for place, one in enumerate(parts):
        if not _are_alike(parts[0], one) or _shape(one) != _shape(parts[0]):
            raise ValueError(
                f"number {place} is held as {type(one).__name__} {list(_shape(one))}, the first as "
                f"{type(parts[0]).__name__} {list(_shape(parts[0]))}, or what their codes mean differs"
            )
    return _joined(parts, torch.stack)


def nbytes(matrix: HeldMatrix) -> int:
    return sum(int(one.nbytes) for one in _tensors(matrix))


def _tensors(matrix: HeldMatrix) -> list[Tensor]:
    if isinstance(matrix, PlainMatrix):
        return [matrix.values]
    if not isinstance(matrix, Int4Matrix):
        return [matrix.codes, matrix.scales]
    every = (matrix.codes, matrix.scales, matrix.offsets, matrix.permutation, matrix.meanings)
    return [one for one in every if one is not None]


def _shape(matrix: HeldMatrix) -> tuple[int, ...]:
    return tuple(_tensors(matrix)[0].shape)


def _are_alike(first: HeldMatrix, other: HeldMatrix) -> bool:
    """Whether their codes stand for the same, by as many columns."""
    if type(first) is not type(other) or _shape(first)[1:] != _shape(other)[1:]:
        return False
    if not isinstance(first, Int4Matrix) or not isinstance(other, Int4Matrix):
        return True
    return (
        first.group == other.group
        and (first.offsets is None) == (other.offsets is None)
        and _equal(first.meanings, other.meanings)
    )


def _same_order(first: HeldMatrix, other: HeldMatrix) -> bool:
    if isinstance(first, Int4Matrix) and isinstance(other, Int4Matrix):
        return _equal(first.permutation, other.permutation)
    return True


def _equal(first: Tensor | None, other: Tensor | None) -> bool:
    if first is None or other is None:
        return first is other
    return torch.equal(first, other)


def _joined(parts: Sequence[HeldMatrix], join: Join) -> HeldMatrix:
    """Of matrices that are held alike."""
    first = parts[0]
    if isinstance(first, PlainMatrix):
        return PlainMatrix(join([one.values for one in parts if isinstance(one, PlainMatrix)]))
    if isinstance(first, Int8Matrix):
        eights = [one for one in parts if isinstance(one, Int8Matrix)]
        return Int8Matrix(join([one.codes for one in eights]), join([one.scales for one in eights]))
    if isinstance(first, Fp8Matrix):
        floats = [one for one in parts if isinstance(one, Fp8Matrix)]
        return Fp8Matrix(join([one.codes for one in floats]), join([one.scales for one in floats]))
    fours = [one for one in parts if isinstance(one, Int4Matrix)]
    offsets = [one.offsets for one in fours if one.offsets is not None]
    orders = [one.permutation for one in fours if one.permutation is not None]
    return Int4Matrix(
        join([one.codes for one in fours]),
        join([one.scales for one in fours]),
        join(offsets) if offsets else None,
        first.group,
        join(orders) if orders else None,
        first.meanings,
        first.is_e2m1,
    )


def _with_offsets(matrix: Int4Matrix) -> Int4Matrix:
    if matrix.offsets is not None:
        return matrix
    return replace(
        matrix, offsets=torch.zeros_like(matrix.scales) if matrix.meanings is not None else -8 * matrix.scales
    )


def _with_order(matrix: Int4Matrix, columns: int) -> Int4Matrix:
    if matrix.permutation is not None:
        return matrix
    return replace(matrix, permutation=torch.arange(columns, dtype=torch.int32, device=matrix.codes.device))


def _check_columns(columns: int) -> None:
    if columns > MOST_INT8_COLUMNS:
        raise ValueError(
            f"a matrix of {columns:,} columns in int8 has sums that pass 32 bits; {MOST_INT8_COLUMNS:,} is the most, "
            "hold it in another type"
        )
