"""Packing: a checkpoint's matrices → tensors on a device, that products multiply by.

Numbers go to the device as the checkpoint has them, which may be a file mapped into memory, and are converted there.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from inflight.execution.backends import matrices
from inflight.execution.backends.matrices import (
    INT8_GROUP,
    BlockMatrix,
    Matrix,
    ReorderedMatrix,
    Rows,
    alike,
    in_order,
    unpacked,
)
from inflight.execution.backends.packed_adapter import PackedAdapter
from inflight.execution.backends.protocol import Array, Delta, Gating, Hold, RopeTable, Routing
from inflight.execution.backends.torch.adapters import filled_up
from inflight.execution.backends.torch.quantizing import quantize_fp8, quantize_int4, quantize_int8, two_to_a_byte
from inflight.execution.backends.torch.staging import Staging
from inflight.execution.backends.torch.tensors import RopeTensors
from inflight.execution.backends.torch.weights import (
    DeviceExperts,
    DeviceGateUp,
    DeviceHeads,
    DeviceLinear,
    DeviceTable,
    Fp8Matrix,
    GroupedMatrix,
    Int8Matrix,
    PackedMatrix,
    PlainMatrix,
    RoutingTensors,
)

MAX_INT8_COLUMNS = 133_144  # whose sums of products pass 32 bits in no case
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
        """Copy to the device. uint16 are the upper halves of float32, which is bf16."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of memory that may not be written, which no code here does
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

    def held(self, matrix: Matrix, hold: Hold = "act", group: int = 32) -> PackedMatrix:
        """Keep quantized matrices as they are, and convert plain numbers as `hold` says. group: inputs to a scale, in
        int4."""
        matrix = unpacked(matrix)
        if isinstance(matrix, ReorderedMatrix):
            return replace(self._grouped(matrix.matrix), permutation=self.tensor(matrix.order, torch.int32))
        if isinstance(matrix, matrices.Int8Matrix) and matrix.scales.shape[1] == 1 and matrix.offsets is None:
            _check_columns(matrix.shape[1])
            return Int8Matrix(self.tensor(matrix.values), self.tensor(matrix.scales[:, 0], torch.float32))
        if isinstance(matrix, matrices.Int4Matrix | matrices.Int8Matrix):
            return self._grouped(matrix)
        if isinstance(matrix, matrices.Fp8Matrix):
            codes = self.tensor(matrix.codes).view(torch.float8_e4m3fn)
            return Fp8Matrix(codes, self.tensor(matrix.scales, torch.float32))
        if hold == "act":
            return PlainMatrix(self.plain(matrix))
        if hold == "int8":
            codes, scales = self._in_pieces(matrix, _int8_groups)
            return GroupedMatrix(codes, scales, None, INT8_GROUP)
        if hold == "fp8":
            return Fp8Matrix(*self._in_pieces(matrix, quantize_fp8))
        codes, scales, offsets = self._in_pieces(matrix, lambda rows: quantize_int4(rows, group))
        return GroupedMatrix(two_to_a_byte(codes, group), scales, offsets - 8 * scales, group)

    def _grouped(self, matrix: matrices.Int4Matrix | matrices.Int8Matrix) -> GroupedMatrix:
        of_codes = matrix.codes if isinstance(matrix, matrices.Int4Matrix) else matrix.values
        codes = torch.nn.functional.pad(self.tensor(of_codes), (0, -matrix.shape[1] % matrix.group))
        scales = self.tensor(matrix.scales, torch.float32)
        offsets = None if matrix.offsets is None else self.tensor(matrix.offsets, torch.float32)
        if isinstance(matrix, matrices.Int8Matrix):
            return GroupedMatrix(codes, scales, offsets, matrix.group)
        meant, meanings = matrix.meanings.astype(np.int32), None
        if not np.array_equal(meant, meant[0] + np.arange(16)):
            meanings = self.tensor(meant.astype(np.float32), self.act)
        elif offsets is not None or meant[0] != -8:  # on a line: code · scale + offset
            offsets = int(meant[0]) * scales + (0 if offsets is None else offsets)
        codes, is_e2m1 = two_to_a_byte(codes, matrix.group), np.array_equal(meant, _E2M1)
        return GroupedMatrix(codes, scales, offsets, matrix.group, None, meanings, is_e2m1)

    def _in_pieces(self, values: Array, rule: Callable[[Tensor], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Apply a rule to rows of float32, some rows at a time."""
        pieces = [rule(self.plain(values[at : at + _ROWS], act=False)) for at in range(0, len(values), _ROWS)]
        return tuple(torch.cat(every) for every in zip(*pieces, strict=True))


class WeightPacking:
    """The part of a backend that packs weights (`protocol.WeightPacking`)."""

    def __init__(self, packer: Packer) -> None:
        self._packer = packer

    def pack_vector(self, values: Array) -> Tensor:
        return self._packer.tensor(values, torch.float32)

    def pack_rope(self, table: RopeTable) -> RopeTensors:
        table = table.whole()
        scale = None if table.q_scale is None else self.pack_vector(table.q_scale)
        return RopeTensors(self.pack_vector(table.cos), self.pack_vector(table.sin), scale)

    def pack_linear(
        self, parts: Sequence[Matrix], bias: Array | None = None, hold: Hold = "act", group: int = 32
    ) -> DeviceLinear:
        held = stacked([self._packer.held(part, hold, group) for part in parts])
        rows, columns = sum(part.shape[0] for part in parts), int(parts[0].shape[1])
        vector = None if bias is None else self.pack_vector(bias)
        size = sum(nbytes(one) for one in held) + (0 if vector is None else int(vector.nbytes))
        return DeviceLinear(held, rows, columns, size, vector)

    def pack_gate_up(
        self, gate: Matrix, up: Matrix, hold: Hold = "act", group: int = 32, bias: Array | None = None
    ) -> DeviceGateUp:
        both = alike(gate, up, hold)
        return DeviceGateUp(self.pack_linear(both, None if bias is None else bias.reshape(-1), hold, group))

    def pack_experts(
        self,
        gate_up: Sequence[DeviceGateUp],
        down: Sequence[DeviceLinear],
        routing: Routing,
        gating: Gating = "silu",
    ) -> DeviceExperts:
        if not len(gate_up) == len(down) >= routing.top_k:
            raise ValueError(
                f"{len(gate_up)} and {len(down)} matrices of experts, of which a token passes {routing.top_k}"
            )
        inward = [one.both for one in gate_up]
        return DeviceExperts(
            side_by_side([_only(one) for one in inward]),
            side_by_side([_only(one) for one in down]),
            _biases(inward),
            _biases(down),
            _routing(routing, self.pack_vector),
            gating,
            len(down),
            sum(one.nbytes for one in (*inward, *down)),
        )

    def pack_heads(self, weights: Sequence[DeviceLinear]) -> DeviceHeads:
        matrix = side_by_side([_only(one) for one in weights])
        return DeviceHeads(matrix, len(weights), weights[0].rows, weights[0].columns, nbytes(matrix))

    def pack_table(self, table: Matrix, hold: Hold = "act", group: int = 32) -> DeviceTable:
        linear = self.pack_linear([in_order(table)], hold=hold, group=group)
        return DeviceTable(linear.parts[0], linear.rows, linear.columns, linear.nbytes, linear)

    def pack_rows(self, pieces: Iterable[Rows], rows: int, columns: int, share: int = 0) -> DeviceTable:
        if share and columns % share:
            raise ValueError(f"rows of {columns} columns have no equal shares of {share}")
        kind, device = torch.int8 if share else self._packer.act, self._packer.device
        values = torch.empty((rows, columns), dtype=kind, device=device)
        scales = torch.empty((rows, columns // share if share else 0), dtype=torch.float32, device=device)
        end, widths = 0, {columns}
        for piece in pieces:
            taken = self._packer.plain(piece.numbers() if isinstance(piece, BlockMatrix) else piece, act=not share)
            begin, end = end, end + len(taken)
            widths.add(taken.shape[1])
            if end > rows or len(widths) > 1:
                break
            if share:
                codes, of_shares = quantize_int8(taken.reshape(-1, share))
                values[begin:end], scales[begin:end] = codes.view(-1, columns), of_shares.view(-1, columns // share)
            else:
                values[begin:end] = taken
        if end != rows or len(widths) > 1:
            raise ValueError(
                f"the pieces of a table are {end} rows of {' and '.join(map(str, sorted(widths)))} columns, not "
                f"{[rows, columns]}"
            )
        matrix = Int8Matrix(values, scales[:, :0]) if share else PlainMatrix(values)
        size = int(values.nbytes + scales.nbytes)
        return DeviceTable(matrix, rows, columns, size, share_scales=scales if share else None)

    def pack_adapter(self, deltas: Iterable[Delta]) -> PackedAdapter[Tensor]:
        """Pack an adapter beside the steps: without the staging buffers, which are large and were given back."""
        packer = replace(self._packer, staging=None)
        return PackedAdapter(map(filled_up, deltas), packer.plain)

    def finish_packing(self) -> None:
        if self._packer.staging is not None:
            self._packer.staging.close()
        if self._packer.device.type == "cuda":
            torch.cuda.empty_cache()  # what packing needed beside is in many pieces, and the KV cache is one


def stacked(parts: Sequence[PackedMatrix]) -> tuple[PackedMatrix, ...]:
    """Matrices [N, K] along N; one where all are held alike."""
    if len(parts) > 1 and all(_are_alike(parts[0], one) and _same_order(parts[0], one) for one in parts[1:]):
        joined = _joined(parts, torch.cat)
        if isinstance(joined, GroupedMatrix) and isinstance(parts[0], GroupedMatrix):
            joined = replace(joined, permutation=parts[0].permutation)
        return (joined,)
    return tuple(parts)


def side_by_side(parts: Sequence[PackedMatrix]) -> PackedMatrix:
    """Matrices of one shape, of experts or heads, with their place before other dimensions: [X, N, K]. Of grouped ones
    some may have offsets, or an order of their inputs, and others none. Raises ValueError for matrices that differ in
    more."""
    codes_of = [one for one in parts if isinstance(one, GroupedMatrix)]
    if any(one.offsets is not None for one in codes_of):
        parts = [_with_offsets(one) if isinstance(one, GroupedMatrix) else one for one in parts]
    if orders := [one.permutation for one in codes_of if one.permutation is not None]:
        parts = [_with_order(one, len(orders[0])) if isinstance(one, GroupedMatrix) else one for one in parts]
    for place, one in enumerate(parts):
        if not _are_alike(parts[0], one) or _shape(one) != _shape(parts[0]):
            raise ValueError(
                f"number {place} is held as {type(one).__name__} {list(_shape(one))}, the first as "
                f"{type(parts[0]).__name__} {list(_shape(parts[0]))}, or what their codes mean differs"
            )
    return _joined(parts, torch.stack)


def nbytes(matrix: PackedMatrix) -> int:
    return sum(int(one.nbytes) for one in _tensors(matrix))


def _tensors(matrix: PackedMatrix) -> list[Tensor]:
    if isinstance(matrix, PlainMatrix):
        return [matrix.values]
    if not isinstance(matrix, GroupedMatrix):
        return [matrix.codes, matrix.scales]
    every = (matrix.codes, matrix.scales, matrix.offsets, matrix.permutation, matrix.meanings)
    return [one for one in every if one is not None]


def _shape(matrix: PackedMatrix) -> tuple[int, ...]:
    return tuple(_tensors(matrix)[0].shape)


def _are_alike(first: PackedMatrix, other: PackedMatrix) -> bool:
    """Whether their codes stand for the same, by as many columns."""
    if type(first) is not type(other) or _shape(first)[1:] != _shape(other)[1:]:
        return False
    if not isinstance(first, GroupedMatrix) or not isinstance(other, GroupedMatrix):
        return True
    return (
        (first.bits, first.group) == (other.bits, other.group)
        and (first.offsets is None) == (other.offsets is None)
        and _equal(first.meanings, other.meanings)
    )


def _same_order(first: PackedMatrix, other: PackedMatrix) -> bool:
    if isinstance(first, GroupedMatrix) and isinstance(other, GroupedMatrix):
        return _equal(first.permutation, other.permutation)
    return True


def _equal(first: Tensor | None, other: Tensor | None) -> bool:
    if first is None or other is None:
        return first is other
    return torch.equal(first, other)


def _joined(parts: Sequence[PackedMatrix], join: Join) -> PackedMatrix:
    """Join matrices of one kind."""
    first = parts[0]
    if isinstance(first, PlainMatrix):
        return PlainMatrix(join([one.values for one in parts if isinstance(one, PlainMatrix)]))
    if isinstance(first, Int8Matrix):
        eights = [one for one in parts if isinstance(one, Int8Matrix)]
        return Int8Matrix(join([one.codes for one in eights]), join([one.scales for one in eights]))
    if isinstance(first, Fp8Matrix):
        floats = [one for one in parts if isinstance(one, Fp8Matrix)]
        return Fp8Matrix(join([one.codes for one in floats]), join([one.scales for one in floats]))
    grouped = [one for one in parts if isinstance(one, GroupedMatrix)]
    offsets = [one.offsets for one in grouped if one.offsets is not None]
    orders = [one.permutation for one in grouped if one.permutation is not None]
    return GroupedMatrix(
        join([one.codes for one in grouped]),
        join([one.scales for one in grouped]),
        join(offsets) if offsets else None,
        first.group,
        join(orders) if orders else None,
        first.meanings,
        first.is_e2m1,
    )


def _with_offsets(matrix: GroupedMatrix) -> GroupedMatrix:
    if matrix.offsets is not None:
        return matrix
    is_shifted = matrix.bits == 4 and matrix.meanings is None  # codes then mean 8 less than where there are offsets
    return replace(matrix, offsets=-8 * matrix.scales if is_shifted else torch.zeros_like(matrix.scales))


def _with_order(matrix: GroupedMatrix, columns: int) -> GroupedMatrix:
    if matrix.permutation is not None:
        return matrix
    return replace(matrix, permutation=torch.arange(columns, dtype=torch.int32, device=matrix.codes.device))


def _int8_groups(rows: Tensor) -> tuple[Tensor, Tensor]:
    """float32[N, K] → int8[N, K filled up to whole groups] and float32[N, groups], as `matrices.in_int8` quantizes."""
    filled = torch.nn.functional.pad(rows, (0, -rows.shape[1] % INT8_GROUP))
    codes, scales = quantize_int8(filled.view(-1, INT8_GROUP))
    return codes.view(filled.shape), scales.view(len(rows), -1)


def _check_columns(columns: int) -> None:
    if columns > MAX_INT8_COLUMNS:
        raise ValueError(
            f"a matrix of {columns:,} columns in int8 has sums that pass 32 bits; {MAX_INT8_COLUMNS:,} is the most, "
            "hold it in another type"
        )


def _routing(routing: Routing, pack: Callable[[Array], Tensor]) -> RoutingTensors:
    correction, scale = (None if one is None else pack(one) for one in (routing.correction, routing.expert_scale))
    return RoutingTensors(
        routing.top_k,
        routing.scores,
        routing.renormalize,
        routing.sum_offset,
        routing.jitter,
        correction,
        routing.groups,
        routing.top_groups,
        routing.group_best,
        routing.scale,
        scale,
    )


def _only(linear: DeviceLinear) -> PackedMatrix:
    if len(linear.parts) > 1:
        raise ValueError(f"a matrix that is held in {len(linear.parts)} ways")
    return linear.parts[0]


def _biases(linears: Sequence[DeviceLinear]) -> Tensor | None:
    """float32[X, N]."""
    found = [one.bias for one in linears if one.bias is not None]
    if not found:
        return None
    if len(found) < len(linears):
        raise ValueError(f"{len(found)} of {len(linears)} matrices have a bias")
    return torch.stack(found)
