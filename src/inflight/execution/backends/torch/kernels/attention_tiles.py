"""A tile of queries meets cached keys and values, one tile of positions after the other: what both kernels of attention
are made of.

Knows how keys and values lie in blocks, and the softmax that goes along (Milakov and Gimelshein, arXiv 1805.02867; Dao
et al., arXiv 2205.14135); not which queries and positions a program has. Tiles of positions begin at multiples of their
size, and one in which a query sees nothing changes no bit of what is kept for it. So what comes of a query depends on
its own positions alone, whoever else is in its tile.

A key has two parts, each filled up to a power of two by itself: 576 numbers are 512 and 64. Where no values are kept,
the first part is the value. Exponents are of 2.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
NOTHING = tl.constexpr(-1.0e30)  # below every score, and finite: its difference to itself is 0


@triton.constexpr_function
def padded(width: int) -> int:
    """To what a tile is filled up: tensor cores take 16 numbers at least."""
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
def load_queries(
    q, index, begin, head, real, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, FIRST: tl.constexpr, REST: tl.constexpr
):
    """Both parts of queries of the chunk whose tokens begin at row `begin` of q act[T, G · GROUP · (FIRST + REST)].

    index int32[ROWS]: token · GROUP + query head among those of KV head `head`."""
    row = (begin + index // GROUP) * (KV_HEADS * GROUP) + head * GROUP + index % GROUP
    rows = q + row.to(tl.int64) * (FIRST + REST)
    first = load_part(rows, real, FIRST, False)
    rest = first
    if REST:
        rest = load_part(rows + FIRST, real, REST, False)
    return first, rest


@triton.jit
def load_blocks(table, first, seen_from, seen_to, BLOCK: tl.constexpr, POSITIONS: tl.constexpr):
    """int32[POSITIONS], those of positions from `first` on; 0 where none is seen."""
    position = first + tl.arange(0, POSITIONS)
    return tl.load(table + position // BLOCK, mask=(position >= seen_from) & (position < seen_to), other=0)


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
def attend(
    q,
    q_rest,
    own,
    top,
    total,
    sums,
    start,
    edge,
    stop,
    seen_from,
    seen_to,
    table,
    head,
    keys,
    values,
    key_scales,
    value_scales,
    block_stride,
    scale_stride,
    factor,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    KV_HEADS: tl.constexpr,
    FIRST: tl.constexpr,
    REST: tl.constexpr,
    VALUE: tl.constexpr,
    BLOCK: tl.constexpr,
    POSITIONS: tl.constexpr,
):
    """Positions start to stop - 1 → what is kept of the queries, gone on.

    q, q_rest: `load_queries`, whose positions are `own` int32[ROWS]. top, total float32[ROWS]: the largest exponent,
    and the sum of the weights relative to it; sums float32[ROWS, padded VALUE], of weighted values. start and edge are
    multiples of POSITIONS; all queries see all that lies before the edge, where there is one: those positions are taken
    in a loop of their own, in a fifth less of instructions. seen_from, seen_to: no query sees positions outside of
    them, and the table need not lead anywhere there."""
    for part in tl.static_range(1 if edge is None else 0, 2):
        begin = edge if part == 1 and edge is not None else start
        following = load_blocks(table, begin, seen_from, seen_to, BLOCK, POSITIONS)
        for first in range(begin, edge if part == 0 else stop, POSITIONS):
            position = first + tl.arange(0, POSITIONS)
            real = (position >= seen_from) & (position < seen_to)
            block = following.to(tl.int64)
            # A tile ahead: loads of keys that wait for one of the table would not be as many tiles ahead as asked for.
            following = load_blocks(table, first + POSITIONS, seen_from, seen_to, BLOCK, POSITIONS)
            place = (position % BLOCK) * KV_HEADS + head
            key_at = block * block_stride + place * (FIRST + REST)
            key = load_part(keys + key_at, real, FIRST, part == 0).to(q.dtype)
            product = tl.dot(q, tl.trans(key), input_precision="ieee")
            if REST:
                rest = load_part(keys + key_at + FIRST, real, REST, part == 0).to(q.dtype)
                product = tl.dot(q_rest, tl.trans(rest), product, input_precision="ieee")
            if key_scales is not None:
                scale = tl.load(key_scales + block * scale_stride + place, mask=real, other=0.0)
                product *= scale[None, :]
            numbers, unit = exponents(product, factor, SOFT_CAP)
            if part == 1:
                visible = position[None, :] <= own[:, None]
                if WINDOW:
                    visible &= position[None, :] > own[:, None] - WINDOW
                numbers = tl.where(visible, numbers, float("-inf"))

            higher = tl.maximum(top, tl.max(numbers, 1) * unit)
            weights = tl.exp2(numbers * unit - higher[:, None])
            fade = tl.exp2(top - higher)
            total = total * fade + tl.sum(weights, 1)
            sums *= fade[:, None]
            top = higher
            value = key
            if values is not None:
                value_at = block * block_stride + place * VALUE
                value = load_part(values + value_at, real, VALUE, part == 0).to(q.dtype)
                if key_scales is not None:
                    scale = tl.load(value_scales + block * scale_stride + place, mask=real, other=0.0)
            if key_scales is not None:
                weights *= scale[None, :]
            sums = tl.dot(weights.to(q.dtype), value, sums, input_precision="ieee")
    return top, total, sums
