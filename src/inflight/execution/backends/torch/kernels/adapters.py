"""Adds adapters to a product, by two kernels for all of a pass's adapters (as Punica's SGMV, arXiv 2310.18547, and
S-LoRA's, arXiv 2311.03285): x · Aᵀ to few ranks, then · Bᵀ, added to the outputs of each part.

Rows of a tile have one adapter, whose A and B are found by the tile's slot in a table of addresses: neither A nor B is
copied together with another's, and rows without an adapter are not touched.

A row's bits follow from its own adapter alone. Tiles have one size for any number of rows. The inputs are cut into
parts that follow from the matrix; their sums are stored separately, and the reader adds them up in the order of parts.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from inflight.execution.backends.torch.adapted_matrix import FIELDS, RANKS, TILE, AdaptedMatrix, AdapterRows

_RANKS = 16  # of a tile: what tensor cores multiply at a time
_OUTPUTS = 128  # of a tile
_INPUTS = {torch.float32: 32}  # of a block
_INPUTS_OF_HALVES = 128
_MIN_INPUTS, _MAX_CUTS = 512, 8  # of a part of the inputs; few rows make few programs otherwise
_FIELDS, _FILLED = tl.constexpr(FIELDS), tl.constexpr(RANKS)


def add_low_rank(x: Tensor, adapted: AdaptedMatrix, rows: AdapterRows, out: Tensor) -> None:
    """x act[T, K] → out float32[T, N] plus act(x · downᵀ) · upᵀ of each part of a row's adapter, to the part's
    outputs."""
    tiles, columns = len(rows.slots), x.shape[1]
    if not tiles:
        return
    parts, rank, outputs = adapted.extent
    rank_tiles = triton.cdiv(rank, _RANKS)
    cuts = max(1, min(columns // _MIN_INPUTS, _MAX_CUTS))
    sums = torch.empty(cuts, tiles * TILE, parts * rank_tiles * _RANKS, dtype=torch.float32, device=x.device)
    shrink_kernel[tiles, parts * rank_tiles, cuts](
        x,
        *rows,
        adapted.table,
        sums,
        columns,
        adapted.table.shape[1],
        rank_tiles,
        CUTS=cuts,
        BLOCK_M=TILE,
        BLOCK_R=_RANKS,
        BLOCK_K=_INPUTS.get(x.dtype, _INPUTS_OF_HALVES),
        num_warps=2,
        num_stages=4,
    )
    expand_kernel[tiles, parts * triton.cdiv(outputs, _OUTPUTS)](
        sums,
        x,
        *rows,
        adapted.table,
        out,
        out.stride(0),
        adapted.table.shape[1],
        rank_tiles,
        triton.cdiv(outputs, _OUTPUTS),
        CUTS=cuts,
        BLOCK_M=TILE,
        BLOCK_R=_RANKS,
        BLOCK_N=_OUTPUTS,
        num_warps=4,
    )


@triton.jit(do_not_specialize=["num_parts", "rank_tiles"])
def shrink_kernel(
    x,  # act[T, K]
    rows,  # int32[tiles · BLOCK_M], from 1; 0 is no row
    slots,  # int32[tiles], from 1; 0 is none
    table,  # int64[slots, num_parts, FIELDS]
    sums,  # float32[CUTS, tiles · BLOCK_M, parts · rank_tiles · BLOCK_R]
    K,
    num_parts,
    rank_tiles,  # of a part
    CUTS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Multiply a tile of rows by some ranks of a part, over one cut of the inputs."""
    tile, column_tile, cut = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    slot = tl.load(slots + tile) - 1
    if slot < 0:
        return
    part, first = column_tile // rank_tiles, column_tile % rank_tiles * BLOCK_R
    entry = table + (slot * num_parts + part) * _FIELDS
    rank = tl.load(entry + 2).to(tl.int32)
    if first >= rank:
        return
    places = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    numbers = tl.load(rows + places)
    is_row, row = numbers > 0, tl.maximum(numbers - 1, 0).to(tl.int64)
    ranks = first + tl.arange(0, BLOCK_R)
    is_rank = ranks < rank
    inputs = tl.arange(0, BLOCK_K)
    down = tl.multiple_of(tl.load(entry).to(x.dtype), 16)
    x_at = x + row[:, None] * K + inputs[None, :]
    down_at = down + ranks.to(tl.int64)[None, :] * K + inputs[:, None]
    found = tl.zeros([BLOCK_M, BLOCK_R], tl.float32)
    blocks = tl.cdiv(tl.cdiv(K, BLOCK_K), CUTS)
    for block in range(cut * blocks, (cut + 1) * blocks):
        at = block * BLOCK_K
        is_input = inputs < K - at
        of_x = tl.load(x_at + at, mask=is_row[:, None] & is_input[None, :], other=0.0)
        of_down = tl.load(down_at + at, mask=is_rank[None, :] & is_input[:, None], other=0.0)
        found = tl.dot(of_x, of_down, found, input_precision="ieee")
    width = (tl.num_programs(1) * BLOCK_R).to(tl.int64)
    sums_at = sums + (cut * tl.num_programs(0) * BLOCK_M + places).to(tl.int64)[:, None] * width
    tl.store(sums_at + (column_tile * BLOCK_R + tl.arange(0, BLOCK_R))[None, :], found)


@triton.jit(do_not_specialize=["num_parts", "rank_tiles", "output_tiles"])
def expand_kernel(
    sums,
    x,  # which is not read: what the sums are rounded to
    rows,
    slots,
    table,
    out,  # float32[T, N]
    out_stride,
    num_parts,
    rank_tiles,
    output_tiles,  # of a part
    CUTS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Multiply a tile of rows by some outputs of a part, over all of its ranks."""
    tile, part = tl.program_id(0), tl.program_id(1) // output_tiles
    slot = tl.load(slots + tile) - 1
    if slot < 0:
        return
    entry = table + (slot * num_parts + part) * _FIELDS
    rank, count = tl.load(entry + 2).to(tl.int32), tl.load(entry + 4).to(tl.int32)
    outputs = tl.program_id(1) % output_tiles * BLOCK_N + tl.arange(0, BLOCK_N)
    if (rank == 0) | (tl.program_id(1) % output_tiles * BLOCK_N >= count):
        return
    rank = tl.multiple_of(rank, _FILLED)
    places = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    numbers = tl.load(rows + places)
    is_row, row = numbers > 0, tl.maximum(numbers - 1, 0).to(tl.int64)
    is_output = outputs < count
    of_part, width = rank_tiles * BLOCK_R, tl.num_programs(1) // output_tiles * rank_tiles * BLOCK_R
    sums_at = sums + places.to(tl.int64)[:, None] * width + part * of_part
    of_cut = tl.num_programs(0).to(tl.int64) * BLOCK_M * width
    up = tl.multiple_of(tl.load(entry + 1).to(x.dtype), 16)
    up_at = up + outputs.to(tl.int64)[None, :] * rank
    found = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for first in range(0, rank, BLOCK_R):
        ranks = first + tl.arange(0, BLOCK_R)
        inner = tl.load(sums_at + ranks[None, :])
        for cut in tl.static_range(1, CUTS):
            inner += tl.load(sums_at + cut * of_cut + ranks[None, :])
        of_up = tl.load(up_at + ranks[:, None], mask=is_output[None, :] & (ranks < rank)[:, None], other=0.0)
        found = tl.dot(inner.to(x.dtype.element_ty), of_up, found, input_precision="ieee")
    out_at = out + row[:, None] * out_stride + tl.load(entry + 3) + outputs[None, :]
    mask = is_row[:, None] & is_output[None, :]
    tl.store(out_at, tl.load(out_at, mask=mask, other=0.0) + found, mask=mask)
