"""Tokens are looked up in an embedding table, as kernels: rows in `act`, in 8 bits with scales, in codes of groups."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from inflight.execution.backends.torch.device_pass import DevicePass
from inflight.execution.backends.torch.kernels.codes import coding_of, halves_of
from inflight.execution.backends.torch.weights import DeviceTable, GroupedMatrix, PlainMatrix

COLUMNS = 512  # of a row in one program


def embed(on: DevicePass, table: DeviceTable, out: Tensor) -> None:
    token_ids, matrix, (rows, width) = on.tensors.token_ids, table.matrix, out.shape
    grid = (rows, triton.cdiv(width, COLUMNS))
    if isinstance(matrix, PlainMatrix):
        _embed[grid](matrix.values, None, token_ids, out, width, width, 1, COLUMNS)
    elif isinstance(matrix, GroupedMatrix):
        assert matrix.permutation is None, "a table's columns are brought into order before it is packed"
        _embed_groups[grid](
            matrix.codes,
            matrix.scales,
            matrix.offsets,
            matrix.meanings,
            token_ids,
            out,
            width,
            matrix.scales.shape[1],
            matrix.group,
            coding_of(matrix),
            COLUMNS,
            enable_fp_fusion=False,
        )
    else:
        scales = matrix.scales if table.share_scales is None else table.share_scales
        shares = scales.numel() // len(scales)
        _embed[grid](matrix.codes, scales, token_ids, out, width, width // shares, shares, COLUMNS)


def add_positions(on: DevicePass, table: DeviceTable, first: int, out: Tensor) -> None:
    _add_rows(table, on.tensors.positions + first, out)


def add_token_types(on: DevicePass, table: DeviceTable, out: Tensor) -> None:
    _add_rows(table, on.send(on.token_types()), out)


def _add_rows(table: DeviceTable, rows: Tensor, out: Tensor) -> None:
    assert isinstance(table.matrix, PlainMatrix), "packed as rows"
    out += table.matrix.values[rows.long()]


@triton.jit
def _embed(values, scales, token_ids, out, width, share, shares, BLOCK: tl.constexpr):
    """values act, int8 or float8_e4m3fn [V, width]; scales float32[V, shares], of `share` columns each."""
    row, columns = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside, token = columns < width, tl.load(token_ids + row).to(tl.int64)
    found = tl.load(values + token * width + columns, mask=inside, other=0.0).to(tl.float32)
    if scales is not None:
        found *= tl.load(scales + token * shares + columns // share, mask=inside, other=0.0)
    tl.store(out + row * width + columns, found, mask=inside)


@triton.jit
def _embed_groups(
    codes,  # int8[V, groups · GROUP]; or uint8[V, groups · GROUP / 2], the two of a byte half a group from each other
    scales,  # float32[V, groups]
    offsets,  # the same, or None
    meanings,  # act[16] or None
    token_ids,
    out,
    width,
    groups,
    GROUP: tl.constexpr,
    CODING: tl.constexpr,
    BLOCK: tl.constexpr,
):
    BYTES: tl.constexpr = GROUP // halves_of(CODING)
    row, columns = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside, token = columns < width, tl.load(token_ids + row).to(tl.int64)
    group, within = token * groups + columns // GROUP, columns % GROUP
    byte = tl.load(codes + group * BYTES + within % BYTES, mask=inside, other=0).to(tl.int32)
    code = tl.where(within < BYTES, byte & 15, byte >> 4)
    if CODING == "whole":
        meant = byte.to(tl.float32)
    elif meanings is not None:
        meant = tl.load(meanings + code).to(tl.float32)
    elif offsets is not None:
        meant = code.to(tl.float32)
    else:
        meant = code.to(tl.float32) - 8.0
    found = meant * tl.load(scales + group, mask=inside, other=0.0)
    if offsets is not None:
        found += tl.load(offsets + group, mask=inside, other=0.0)
    tl.store(out + row * width + columns, found, mask=inside)
