"""Attention of chunks of many tokens: tiles of a chunk's queries, each of them by one program over all that it sees.

Rows of a tile are query heads of a key/value head, token by token, so that keys and values are loaded once for all of
them. Which chunk a tile is of is found on the device: the grid follows from the number of tokens and chunks alone.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from inflight.execution.backends.position_bias import reach_of
from inflight.execution.backends.torch.kernels.attention_call import AttentionCall
from inflight.execution.backends.torch.kernels.attention_tiles import (
    LOG2_E,
    CachedHead,
    ChunkAt,
    Form,
    Span,
    attend,
    load_queries,
    nothing_seen,
    padded,
    row_of,
)

_CHUNKS = tl.constexpr(128)  # whose beginnings are looked at together


class Tile(NamedTuple):
    """Queries of all heads, positions that are loaded at once, warps, and how many tiles of positions ahead."""

    rows: int
    positions: int
    warps: int
    stages: int


# By the bytes of a key as it is multiplied, up to; numbers in 8 bits are widened on the way, which takes registers; and
# float32 has no tensor cores. One warp group a program is worth more than two that share keys: on an H200, with
# heads of 128, by a fifth.
TILES = {
    128: Tile(64, 64, 4, 3),
    256: Tile(64, 64, 4, 3),
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
    bias, bias_width = call.position_bias, 0
    if bias is not None:
        bias_width = len(bias) // (call.kv_heads * call.group)
        bias = bias[reach_of(bias_width) - 1 :]  # from the first head's number for distance 0 on
    prefill_kernel[call.kv_heads, tiles](
        call.q,
        *call.memory(),
        *call.chunk_tensors(),
        call.chunks,
        call.scale,
        call.sinks,
        bias,
        bias_width,
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
    """Return a tile's chunk and its number in it. Chunk c's tiles begin at query_start[c] · GROUP // ROWS + c: as many
    rows may be in one as would fill each tile up, and one more is left over for each chunk."""
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
    keys, values, key_scales, value_scales, block_stride, scale_stride,
    query_start, context_len, slots, tables, table_stride,
    chunks, factor, sinks, position_bias, bias_width, out,
    LONGER_THAN: tl.constexpr, ROWS: tl.constexpr, POSITIONS: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, SOFT_CAP: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr,
    FIRST: tl.constexpr, REST: tl.constexpr, VALUE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Program (g, tile), the last tiles first: at the end of a prompt they see most."""
    chunk, tile = tile_of(tl.num_programs(1) - 1 - tl.program_id(1), query_start, chunks, GROUP, ROWS)
    begin = tl.load(query_start + chunk)
    count = tl.load(query_start + chunk + 1) - begin
    if (count <= LONGER_THAN) | (tile * ROWS >= count * GROUP):
        return
    table = tables + tl.load(slots + chunk).to(tl.int64) * table_stride
    attend_tile(
        q,
        factor,
        sinks,
        position_bias,
        bias_width,
        out,
        tile * ROWS,
        ChunkAt(begin, count, tl.load(context_len + chunk)),
        CachedHead(keys, values, key_scales, value_scales, block_stride, scale_stride, table, tl.program_id(0)),
        Form(CAUSAL, WINDOW, SOFT_CAP, KV_HEADS, GROUP, FIRST, REST, VALUE, BLOCK, POSITIONS),
        ROWS,
    )


@triton.jit
def attend_tile(q, factor, sinks, position_bias, bias_width, out, begin, chunk, cached, form, ROWS: tl.constexpr):
    """Attend a tile of queries from `begin` on, from its first position to its last."""
    index = begin + tl.arange(0, ROWS)
    queries = load_queries(q, factor, chunk, index, cached.head, form)
    bias = None
    if position_bias is not None:
        head = cached.head * form.GROUP + index % form.GROUP
        bias = position_bias + head * bias_width - queries.own
    lowest = chunk.context + begin // form.GROUP
    stop = chunk.context + tl.minimum((begin + ROWS - 1) // form.GROUP + 1, chunk.count)
    if not form.CAUSAL:
        end = chunk.context + chunk.count
        stop = tl.minimum(stop + form.WINDOW - 1, end) if form.WINDOW else end
    oldest = 0
    if form.WINDOW:
        oldest = tl.maximum(lowest - form.WINDOW + 1, 0)
    by_all = lowest + 1 if form.CAUSAL else stop
    edge = None if form.WINDOW else by_all // form.POSITIONS * form.POSITIONS
    span = Span(oldest // form.POSITIONS * form.POSITIONS, edge, stop, oldest, stop, bias)
    state = attend(queries, nothing_seen(queries, form), span, cached, form)
    found = weighted_mean(state, sinks, index, queries.real, cached.head, form)
    column = tl.arange(0, padded(form.VALUE))
    into = out + row_of(chunk, index, cached.head, form).to(tl.int64)[:, None] * form.VALUE + column[None, :]
    tl.store(into, found.to(out.dtype.element_ty), mask=queries.real[:, None] & (column < form.VALUE)[None, :])


@triton.jit
def weighted_mean(state, sinks, index, real, head, form):
    """float32[ROWS, padded VALUE]: sums over the sum of weights, a sink among these; 0 where no row is real."""
    total, sums = state.total, state.sums
    if sinks is not None:
        sink = tl.load(sinks + head * form.GROUP + index % form.GROUP) * LOG2_E
        higher = tl.maximum(state.top, sink)
        fade = tl.exp2(state.top - higher)
        total = total * fade + tl.exp2(sink - higher)
        sums *= fade[:, None]
    return sums / tl.where(real, total, 1.0)[:, None]
