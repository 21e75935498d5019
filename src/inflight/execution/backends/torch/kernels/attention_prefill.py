"""Attention of chunks of many tokens: tiles of a chunk's queries, each of them by one program over all that it sees.

Rows of a tile are query heads of a key/value head, token by token, so that keys and values are loaded once for all of
them. Which chunk a tile is of is found on the device: the grid follows from the number of tokens and chunks alone.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from inflight.execution.backends.torch.kernels.attention_call import AttentionCall
from inflight.execution.backends.torch.kernels.attention_tiles import LOG2_E, NOTHING, attend, load_queries, padded

_CHUNKS = tl.constexpr(128)  # whose beginnings are looked at together


class Tile(NamedTuple):
    """Queries of all heads, positions that are loaded at once, warps, and how many tiles of positions ahead."""

    rows: int
    positions: int
    warps: int
    stages: int


# By the bytes of a key as it is multiplied, up to; numbers in 8 bits are widened on the way, which takes registers; and
# float32 has no tensor cores.
TILES = {
    128: Tile(128, 64, 8, 3),
    256: Tile(128, 64, 8, 3),
    384: Tile(128, 64, 8, 2),
    512: Tile(128, 32, 8, 3),
    1280: Tile(32, 32, 8, 3),
}
TILES_OF_8_BITS = {
    256: Tile(128, 32, 8, 3),
    512: Tile(64, 32, 8, 2),
    1280: Tile(32, 32, 8, 3),
}
TILE_OF_FLOAT32 = Tile(16, 16, 4, 2)


def attend_long(call: AttentionCall, longer_than: int) -> None:
    """Chunks of more than so many tokens; others are left alone."""
    tile = _tile(call)
    tiles = len(call.q) * call.group // tile.rows + call.chunks
    prefill_kernel[call.kv_heads, tiles](
        call.q,
        *call.memory(),
        *call.chunk_tensors(),
        call.chunks,
        call.scale,
        call.sinks,
        call.out,
        LONGER_THAN=longer_than,
        ROWS=tile.rows,
        POSITIONS=tile.positions,
        **call.constants(),
        num_warps=tile.warps,
        num_stages=tile.stages,
        enable_fp_fusion=True,
    )


def _tile(call: AttentionCall) -> Tile:
    if call.q.dtype == torch.float32:
        return TILE_OF_FLOAT32
    return call.by_key_bytes(TILES if call.cached.key_scales is None else TILES_OF_8_BITS)


@triton.jit
def tile_of(number, query_start, chunks, GROUP: tl.constexpr, ROWS: tl.constexpr):
    """The chunk and the number in it of a tile. Chunk c's begin at query_start[c] · GROUP // ROWS + c: as many rows may
    be in one as would fill each tile up, and one more is left over for each chunk."""
    before, begin = 0, 0
    for first in range(0, chunks, _CHUNKS):
        chunk = first + tl.arange(0, _CHUNKS)
        start = tl.load(query_start + chunk, mask=chunk < chunks, other=0)
        tile = start * GROUP // ROWS + chunk
        begun = (chunk < chunks) & (tile <= number)
        before += tl.sum(begun.to(tl.int32), 0)
        begin = tl.maximum(begin, tl.max(tl.where(begun, tile, 0), 0))
    return before - 1, number - begin


@triton.jit(do_not_specialize=["chunks"])  # which differ from step to step, and compiling it takes seconds
def prefill_kernel(
    q,
    keys,
    values,
    key_scales,
    value_scales,
    block_stride,
    scale_stride,
    query_start,
    context_len,
    slots,
    tables,
    table_stride,
    chunks,
    factor,
    sinks,
    out,
    LONGER_THAN: tl.constexpr,
    ROWS: tl.constexpr,
    POSITIONS: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    FIRST: tl.constexpr,
    REST: tl.constexpr,
    VALUE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program (g, tile), the last tiles first: at the end of a prompt they see most."""
    chunk, tile = tile_of(tl.num_programs(1) - 1 - tl.program_id(1), query_start, chunks, GROUP, ROWS)
    begin = tl.load(query_start + chunk)
    count = tl.load(query_start + chunk + 1) - begin
    if (count <= LONGER_THAN) | (tile * ROWS >= count * GROUP):
        return
    head = tl.program_id(0)
    context = tl.load(context_len + chunk)
    table = tables + tl.load(slots + chunk).to(tl.int64) * table_stride
    index = tile * ROWS + tl.arange(0, ROWS)
    real = index < count * GROUP
    own = tl.where(real, context + index // GROUP, -1)
    first, rest = load_queries(q, index, begin, head, real, KV_HEADS, GROUP, FIRST, REST)

    lowest = context + tile * ROWS // GROUP
    stop = context + tl.minimum((tile * ROWS + ROWS - 1) // GROUP + 1, count)
    oldest = 0
    if WINDOW:
        oldest = tl.maximum(lowest - WINDOW + 1, 0)
    start = oldest // POSITIONS * POSITIONS
    edge = None if WINDOW else (lowest + 1) // POSITIONS * POSITIONS
    top, total = tl.full([ROWS], NOTHING, tl.float32), tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, padded(VALUE)], tl.float32)
    top, total, sums = attend(
        first,
        rest,
        own,
        top,
        total,
        sums,
        start,
        edge,
        stop,
        oldest,
        stop,
        table,
        head,
        keys,
        values,
        key_scales,
        value_scales,
        block_stride,
        scale_stride,
        factor,
        WINDOW,
        SOFT_CAP,
        KV_HEADS,
        FIRST,
        REST,
        VALUE,
        BLOCK,
        POSITIONS,
    )
    if sinks is not None:
        sink = tl.load(sinks + head * GROUP + index % GROUP) * LOG2_E
        higher = tl.maximum(top, sink)
        fade = tl.exp2(top - higher)
        total = total * fade + tl.exp2(sink - higher)
        sums *= fade[:, None]
    found = sums / tl.where(real, total, 1.0)[:, None]
    row = (begin + index // GROUP) * (KV_HEADS * GROUP) + head * GROUP + index % GROUP
    column = tl.arange(0, padded(VALUE))
    into = out + row.to(tl.int64)[:, None] * VALUE + column[None, :]
    tl.store(into, found.to(out.dtype.element_ty), mask=real[:, None] & (column < VALUE)[None, :])
