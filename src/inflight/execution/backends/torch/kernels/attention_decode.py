"""Attention of chunks of few tokens, decodes above all: the positions before a chunk are cut into splits, which many
programs attend to, and what comes of them is combined.

What counts here is that memory is read as fast as it can be, by enough programs at once, and once for all query heads
of a key/value head. The size of a split follows from a chunk's position and, roughly, from how many chunks there are:
many need few programs each, and combining costs. Splits' results are stored separately until all are combined in one
order, however many programs share them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from inflight.execution.backends.torch.kernels.attention_call import AttentionCall
from inflight.execution.backends.torch.kernels.attention_tiles import (
    LOG2_E,
    NOTHING,
    CachedHead,
    ChunkAt,
    Form,
    Span,
    attend,
    load_queries,
    nothing_seen,
    padded,
)

SPLITS = tl.constexpr(32)  # of one chunk, at most
# Positions of one, or as much times a power of two as SPLITS of them ask for: by the programs that the chunks of a pass
# make undivided, from so many on. Where those fill a GPU, combining costs more than an even end is worth.
SPLIT_SIZES = {0: 256, 256: 2048}
SLACK = tl.constexpr(16)  # no chunk here has more tokens
# That share the splits of a pass, if there are as many; two for each chunk and head at least, so that the last ones end
# together. In a graph for long sequences most find nothing to do where those are short, which costs something, too.
PROGRAMS = 1024
COLUMNS = 128  # of a value, that one program combines


class Tile(NamedTuple):
    """How many positions are loaded at once, by how many warps, how many tiles ahead, and in how many registers of a
    thread at most: 168 let three programs of four warps be on a multiprocessor."""

    positions: int
    warps: int
    stages: int
    registers: int


# By the bytes of a key as it is multiplied, up to; numbers in 8 bits are widened on the way, which takes registers; and
# float32 has no tensor cores.
TILES = {128: Tile(64, 4, 4, 128), 256: Tile(64, 4, 3, 168), 512: Tile(32, 4, 3, 255), 1280: Tile(32, 8, 4, 255)}
TILES_OF_8_BITS = {
    128: Tile(64, 4, 4, 168),
    256: Tile(32, 4, 4, 168),
    512: Tile(32, 8, 4, 255),
    1280: Tile(32, 8, 4, 255),
}
TILE_OF_FLOAT32 = Tile(16, 4, 2, 255)


def short_tokens(group: int) -> int:
    """How many tokens a chunk has at most that is attended to here: what one tile of 16 rows takes."""
    return max(1, 16 // group)


def attend_short(call: AttentionCall) -> None:
    """Chunks of up to `short_tokens` tokens; others are left alone."""
    # One, or as many as there may be: a number of which there are few takes few compilations.
    tokens = 1 if call.pass_.longest_chunk == 1 else short_tokens(call.group)
    rows = min(32, padded(short_tokens(call.group) * call.group))
    tiles = triton.cdiv(tokens * call.group, rows)
    units = call.kv_heads * tiles
    split = next(size for least, size in reversed(SPLIT_SIZES.items()) if call.chunks * units >= least)
    splits = splits_at_most(call.pass_.longest_context, call.window, split)
    programs = min(splits, max(2, triton.cdiv(PROGRAMS, call.chunks * units)))
    by_token = len(call.q) < call.chunks * tokens  # in a graph there are as many chunks as tokens, some of them empty
    kept = (len(call.q) if by_token else call.chunks * tokens) * call.kv_heads * call.group, splits
    sums = torch.empty(*kept, call.value_dim, dtype=torch.float32, device=call.q.device)
    norms = torch.empty(*kept, 2, dtype=torch.float32, device=call.q.device)  # largest score, sum of weights
    tile, constants = _tile(call), call.constants()
    split_kernel[units, programs, call.chunks](
        call.q,
        *call.memory(),
        *call.chunk_tensors(),
        call.scale,
        sums,
        norms,
        splits,
        SPLIT=split,
        TOKENS=tokens,
        BY_TOKEN=by_token,
        ROWS=rows,
        POSITIONS=tile.positions,
        **constants,
        num_warps=tile.warps,
        num_stages=tile.stages,
        **({"maxnreg": tile.registers} if torch.version.hip is None else {}),  # an option of CUDA's alone
        enable_fp_fusion=True,
    )
    columns = min(COLUMNS, triton.next_power_of_2(call.value_dim))
    combine_kernel[call.kv_heads * tokens * call.group, triton.cdiv(call.value_dim, columns), call.chunks](
        sums,
        norms,
        splits,
        call.sinks,
        *call.chunk_tensors()[:2],
        call.out,
        SPLIT=split,
        TOKENS=tokens,
        BY_TOKEN=by_token,
        COLUMNS=columns,
        **{name: constants[name] for name in ("WINDOW", "KV_HEADS", "GROUP", "VALUE")},
        num_warps=4,
        enable_fp_fusion=True,
    )


def _tile(call: AttentionCall) -> Tile:
    if call.q.dtype == torch.float32:
        return TILE_OF_FLOAT32
    return call.by_key_bytes(TILES if call.cached.key_scales is None else TILES_OF_8_BITS)


def splits_at_most(longest_context: int, window: int, split: int) -> int:
    """Return an upper bound of the splits of any chunk in a pass."""
    found: int = triton.cdiv(longest_context, split)
    if window:
        found = min(found, triton.cdiv(window + SLACK.value, split) + 1)
    most: int = SPLITS.value
    return min(found, most)


@triton.jit
def splits_of(context, count, WINDOW: tl.constexpr, SPLIT: tl.constexpr):
    """Return the size of a chunk's splits, the first that one of its tokens sees, and how many they see. A window's
    splits may begin anywhere, so that one more is needed."""
    size = SPLIT
    for _ in tl.static_range(16):
        enough = context + SLACK <= SPLITS * size
        if WINDOW:
            enough |= (SPLITS - 1) * size >= WINDOW + SLACK
        size = tl.where(enough, size, 2 * size)
    first = 0
    if WINDOW:
        first = tl.maximum(context - WINDOW + 1, 0) // size
    return size, first, (context + count - 1) // size + 1 - first


@triton.jit
def kept_at(
    chunk, begin, head, index, TOKENS: tl.constexpr, BY_TOKEN: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr
):  # fmt: skip
    """Where what comes of the splits of a row is kept, int64: index is token · GROUP + query head in the chunk, which
    has TOKENS tokens at most, the first of them `begin` of the pass."""
    if BY_TOKEN:
        return ((begin + index // GROUP).to(tl.int64) * KV_HEADS + head) * GROUP + index % GROUP
    else:
        return (chunk.to(tl.int64) * KV_HEADS + head) * (TOKENS * GROUP) + index


@triton.jit(do_not_specialize=["splits"])  # which follow from the longest sequence of a step
def split_kernel(
    q,
    keys, values, key_scales, value_scales, block_stride, scale_stride,
    query_start, context_len, slots, tables, table_stride,
    factor, sums_out, norms_out, splits,
    SPLIT: tl.constexpr, TOKENS: tl.constexpr, BY_TOKEN: tl.constexpr, ROWS: tl.constexpr, POSITIONS: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, SOFT_CAP: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr,
    FIRST: tl.constexpr, REST: tl.constexpr, VALUE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Program (g + KV_HEADS · tile of rows, p, chunk): splits p, p + programs, … of a chunk. sums_out float32[R,
    splits, M], norms_out float32[R, splits, 2], of rows as `kept_at` has them."""
    chunk = tl.program_id(2)
    begin = tl.load(query_start + chunk)
    count = tl.load(query_start + chunk + 1) - begin
    context = tl.load(context_len + chunk)
    size, first_split, seen_splits = splits_of(context, count, WINDOW, SPLIT)
    if (count > TOKENS) | (tl.program_id(1) >= seen_splits):
        return
    head, tile = tl.program_id(0) % KV_HEADS, tl.program_id(0) // KV_HEADS
    table = tables + tl.load(slots + chunk).to(tl.int64) * table_stride
    index = tile * ROWS + tl.arange(0, ROWS)
    attend_splits(
        q,
        factor,
        sums_out,
        norms_out,
        index,
        kept_at(chunk, begin, head, index, TOKENS, BY_TOKEN, KV_HEADS, GROUP) * splits,
        size,
        first_split,
        seen_splits,
        ChunkAt(begin, count, context),
        CachedHead(keys, values, key_scales, value_scales, block_stride, scale_stride, table, head),
        Form(CAUSAL, WINDOW, SOFT_CAP, KV_HEADS, GROUP, FIRST, REST, VALUE, BLOCK, POSITIONS),
    )


@triton.jit
def attend_splits(
    q, factor, sums_out, norms_out, index, at, size, first_split, seen_splits, chunk, cached, form
):  # fmt: skip
    """Attend a tile of queries to each split of this program by itself. at int64[ROWS]: where a row's splits are
    stored."""
    queries = load_queries(q, factor, chunk, index, cached.head, form)
    end, oldest = chunk.context + chunk.count, 0
    if form.WINDOW:
        oldest = tl.maximum(chunk.context - form.WINDOW + 1, 0)
    for split in range(tl.program_id(1), seen_splits, tl.num_programs(1)):
        start = tl.maximum((first_split + split) * size, oldest // form.POSITIONS * form.POSITIONS)
        stop = tl.minimum((first_split + split + 1) * size, end)
        span = Span(start, None, stop, oldest, end, None)  # so short that a loop without masks would cost what it saves
        state = attend(queries, nothing_seen(queries, form), span, cached, form)
        keep(state, at + split, queries.real, sums_out, norms_out, form.VALUE)


@triton.jit
def keep(state, at, real, sums_out, norms_out, VALUE: tl.constexpr):
    """Store the state of a split, separately from those of other splits."""
    tl.store(norms_out + 2 * at, state.top, mask=real)
    tl.store(norms_out + 2 * at + 1, state.total, mask=real)
    column = tl.arange(0, padded(VALUE))
    within = real[:, None] & (column < VALUE)[None, :]
    tl.store(sums_out + at[:, None] * VALUE + column[None, :], state.sums, mask=within)


@triton.jit(do_not_specialize=["splits"])
def combine_kernel(
    sums,
    norms,
    splits,
    sinks,
    query_start,
    context_len,
    out,
    SPLIT: tl.constexpr,
    TOKENS: tl.constexpr,
    BY_TOKEN: tl.constexpr,
    COLUMNS: tl.constexpr,
    WINDOW: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    VALUE: tl.constexpr,
):
    """Program (row of all heads, part of a value, chunk). A split has the same place in the sum whichever the chunk's
    first is: that of its number modulo SPLITS."""
    chunk = tl.program_id(2)
    begin = tl.load(query_start + chunk)
    count = tl.load(query_start + chunk + 1) - begin
    head, index = tl.program_id(0) // (TOKENS * GROUP), tl.program_id(0) % (TOKENS * GROUP)
    if (count > TOKENS) | (index >= count * GROUP):
        return
    _, first_split, seen_splits = splits_of(tl.load(context_len + chunk), count, WINDOW, SPLIT)
    split = (tl.arange(0, SPLITS) + SPLITS - first_split % SPLITS) % SPLITS
    real = split < seen_splits
    at = kept_at(chunk, begin, head, index, TOKENS, BY_TOKEN, KV_HEADS, GROUP) * splits + split
    tops = tl.load(norms + 2 * at, mask=real, other=NOTHING)
    totals = tl.load(norms + 2 * at + 1, mask=real, other=0.0)
    top = tl.max(tops, 0)
    if sinks is not None:
        sink = tl.load(sinks + head * GROUP + index % GROUP) * LOG2_E
        top = tl.maximum(top, sink)
    shares = tl.exp2(tops - top)
    total = tl.sum(totals * shares, 0)
    if sinks is not None:
        total += tl.exp2(sink - top)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    within = column < VALUE
    parts = tl.load(sums + at[:, None] * VALUE + column[None, :], mask=real[:, None] & within[None, :], other=0.0)
    found = tl.sum(parts * shares[:, None], 0) / total
    into = ((begin + index // GROUP).to(tl.int64) * KV_HEADS + head) * GROUP + index % GROUP
    tl.store(out + into * VALUE + column, found.to(out.dtype.element_ty), mask=within)
