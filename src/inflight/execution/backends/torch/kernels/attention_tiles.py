"""A tile of queries meets cached keys and values, one tile of positions after the other: what both kernels of attention
are made of.

The softmax goes along with the tiles (Milakov and Gimelshein, arXiv 1805.02867; Dao et al., arXiv 2205.14135). Tiles of
positions begin at multiples of their size, and one in which a query sees nothing changes no bit of what is kept for it.
So a query's result depends on its own positions alone, whatever other queries are in its tile.

A key has two parts, each filled up to a power of two by itself: 576 numbers are 512 and 64. Where no values are kept,
the first part is the value. Exponents are of 2.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
NOTHING = tl.constexpr(-1.0e30)  # below every score, and finite: its difference to itself is 0


class Form(NamedTuple):
    """Constants that a kernel is compiled for.

    CAUSAL: nothing is seen behind a position. WINDOW: how many positions are seen, the own and those before it, and as
    many behind it where that is not so; 0: all. GROUP: query heads of a key/value head. FIRST, REST, VALUE: numbers of
    a key's two parts and of a value. BLOCK: positions of a block; POSITIONS: of a tile."""

    CAUSAL: Any
    WINDOW: Any
    SOFT_CAP: Any
    KV_HEADS: Any
    GROUP: Any
    FIRST: Any
    REST: Any
    VALUE: Any
    BLOCK: Any
    POSITIONS: Any


class ChunkAt(NamedTuple):
    """A chunk: its first row in q, how many tokens it has, and how many positions come before them."""

    begin: Any
    count: Any
    context: Any


class CachedHead(NamedTuple):
    """A key/value head of a layer's cache (`LayerKV`), and the table of the sequence whose positions are read."""

    key_numbers: Any
    value_numbers: Any  # not `values`, as a tuple has in Triton itself
    key_scales: Any
    value_scales: Any
    block_stride: Any
    scale_stride: Any
    table: Any
    head: Any


class Queries(NamedTuple):
    """Rows of a tile: both parts, act[ROWS, padded FIRST or REST]; whether a row is real, bool[ROWS]; the position of
    each and the last that it sees, int32[ROWS], -1 where it is not; and by what their products are scaled."""

    first: Any
    rest: Any
    real: Any
    own: Any
    last: Any
    factor: Any


class Span(NamedTuple):
    """Positions start to stop - 1. start and edge are multiples of POSITIONS; all queries see all that lies before the
    edge, where there is one. seen_from, seen_to: no query sees positions outside of them, and the table need not lead
    anywhere there. bias: pointers [ROWS] to what is added to the score of position 0, others behind it; or None."""

    start: Any
    edge: Any
    stop: Any
    seen_from: Any
    seen_to: Any
    bias: Any


class SoftmaxState(NamedTuple):
    """top, total float32[ROWS]: the largest exponent, and the sum of the weights relative to it; sums float32[ROWS,
    padded VALUE], of weighted values."""

    top: Any
    total: Any
    sums: Any


@triton.constexpr_function
def padded(width: int) -> int:
    """Return the width to which a tile is filled up: tensor cores take 16 numbers at least."""
    found: int = max(16, triton.next_power_of_2(width))
    return found


@triton.jit
def load_part(rows, real, WIDTH: tl.constexpr, ALL_REAL: tl.constexpr):
    """Numbers [N, padded WIDTH] of rows (pointers [N]); 0 where a row is not real, and behind WIDTH."""
    column = tl.arange(0, padded(WIDTH))
    at = rows[:, None] + column[None, :]
    if not ALL_REAL:
        return tl.load(at, mask=real[:, None] & (column < WIDTH)[None, :], other=0.0)
    elif padded(WIDTH) > WIDTH:
        return tl.load(at, mask=(column < WIDTH)[None, :], other=0.0)
    else:
        return tl.load(at)


@triton.jit
def load_queries(q, factor, chunk, index, head, form):
    """Load queries of a chunk from q act[T, G · GROUP · (FIRST + REST)]. index int32[ROWS]: token · GROUP + query head
    among those of KV head `head`."""
    real = index < chunk.count * form.GROUP
    own = tl.where(real, chunk.context + index // form.GROUP, -1)
    last = own
    if not form.CAUSAL:
        end = chunk.context + chunk.count - 1
        last = tl.where(real, tl.minimum(own + form.WINDOW - 1, end) if form.WINDOW else end, -1)
    rows = q + row_of(chunk, index, head, form).to(tl.int64) * (form.FIRST + form.REST)
    first = load_part(rows, real, form.FIRST, False)
    rest = first
    if form.REST:
        rest = load_part(rows + form.FIRST, real, form.REST, False)
    return Queries(first, rest, real, own, last, factor)


@triton.jit
def row_of(chunk, index, head, form):
    """Among the heads of all tokens, int32[ROWS]."""
    return (chunk.begin + index // form.GROUP) * (form.KV_HEADS * form.GROUP) + head * form.GROUP + index % form.GROUP


@triton.jit
def load_blocks(table, first, span, form):
    """int32[POSITIONS], those of positions from `first` on; 0 where none is seen."""
    position = first + tl.arange(0, form.POSITIONS)
    real = (position >= span.seen_from) & (position < span.seen_to)
    return tl.load(table + position // form.BLOCK, mask=real, other=0)


@triton.jit
def exponents(product, factor, SOFT_CAP: tl.constexpr):
    """Products of queries and keys, scaled by `factor` → numbers, and what they are multiplied by to be exponents of 2.
    (What is multiplied and subtracted at once takes one instruction.)"""
    if SOFT_CAP > 0:
        # cap · tanh(x) of x = product · factor / cap
        power = tl.exp2(product * (factor * (2 * LOG2_E / SOFT_CAP)))
        return 1 - 2 / (power + 1), tl.full([], SOFT_CAP * LOG2_E, tl.float32)
    else:
        return product, factor * LOG2_E


@triton.jit
def nothing_seen(queries, form):
    """Return the state before the first position."""
    ROWS: tl.constexpr = queries.own.shape[0]
    top, total = tl.full([ROWS], NOTHING, tl.float32), tl.zeros([ROWS], tl.float32)
    return SoftmaxState(top, total, tl.zeros([ROWS, padded(form.VALUE)], tl.float32))


@triton.jit
def attend(queries, state, span, cached, form):
    """Fold the positions of `span` into the state. Those that all queries see have a loop of their own, with a fifth
    fewer instructions."""
    for part in tl.static_range(1 if span.edge is None else 0, 2):
        begin = span.edge if part == 1 and span.edge is not None else span.start
        following = load_blocks(cached.table, begin, span, form)
        for first in range(begin, span.edge if part == 0 else span.stop, form.POSITIONS):
            block = following.to(tl.int64)
            # A tile ahead: loads of keys that wait for one of the table would not be as many tiles ahead as asked for.
            following = load_blocks(cached.table, first + form.POSITIONS, span, form)
            state = online_softmax(queries, state, first, block, span, cached, form, part == 0)
    return state


@triton.jit
def online_softmax(queries, state, first, block, span, cached, form, ALL_SEEN: tl.constexpr):
    """Fold one tile of positions from `first` on, which lie in blocks int64[POSITIONS], into the state."""
    position = first + tl.arange(0, form.POSITIONS)
    real = (position >= span.seen_from) & (position < span.seen_to)
    place = (position % form.BLOCK) * form.KV_HEADS + cached.head
    scale_at = block * cached.scale_stride + place
    key, product = products(queries, block, place, real, cached, form, ALL_SEEN)
    if cached.key_scales is not None:
        scale = tl.load(cached.key_scales + scale_at, mask=real, other=0.0)
        product *= scale[None, :]
    numbers, unit = exponents(product, queries.factor, form.SOFT_CAP)
    if span.bias is not None:
        seen = real[None, :] & queries.real[:, None]
        numbers = numbers * unit + tl.load(span.bias[:, None] + position[None, :], mask=seen, other=0.0) * LOG2_E
        unit = tl.full([], 1.0, tl.float32)
    if not ALL_SEEN:
        visible = position[None, :] <= queries.last[:, None]
        if form.WINDOW:
            visible &= position[None, :] > queries.own[:, None] - form.WINDOW
        numbers = tl.where(visible, numbers, float("-inf"))

    top = tl.maximum(state.top, tl.max(numbers, 1) * unit)
    weights = tl.exp2(numbers * unit - top[:, None])
    fade = tl.exp2(state.top - top)
    total = state.total * fade + tl.sum(weights, 1)
    sums = state.sums * fade[:, None]
    value = key
    if cached.value_numbers is not None:
        value_at = block * cached.block_stride + place * form.VALUE
        value = load_part(cached.value_numbers + value_at, real, form.VALUE, ALL_SEEN).to(key.dtype)
        if cached.key_scales is not None:
            scale = tl.load(cached.value_scales + scale_at, mask=real, other=0.0)
    if cached.key_scales is not None:
        weights *= scale[None, :]
    sums = tl.dot(weights.to(key.dtype), value, sums, input_precision="ieee")
    return SoftmaxState(top, total, sums)


@triton.jit
def products(queries, block, place, real, cached, form, ALL_SEEN: tl.constexpr):
    """Return the first part of keys act[POSITIONS, padded FIRST], and products of queries and whole keys float32[ROWS,
    POSITIONS]."""
    at = block * cached.block_stride + place * (form.FIRST + form.REST)
    key = load_part(cached.key_numbers + at, real, form.FIRST, ALL_SEEN).to(queries.first.dtype)
    found = tl.dot(queries.first, tl.trans(key), input_precision="ieee")
    if form.REST:
        rest = load_part(cached.key_numbers + at + form.FIRST, real, form.REST, ALL_SEEN).to(queries.first.dtype)
        found = tl.dot(queries.rest, tl.trans(rest), found, input_precision="ieee")
    return key, found
