"""Some heads of a token, for kernels: read, normed and rotated by its position, and written into a block."""

from __future__ import annotations

import triton
import triton.language as tl

from inflight.execution.backends.torch.kernels.functions import e4m3_bits, nearest, quantized


@triton.jit
def places(
    heads, COUNT: tl.constexpr, FIRST: tl.constexpr, END: tl.constexpr, STRIDE: tl.constexpr, BLOCK: tl.constexpr
):
    """Return offsets [heads, BLOCK] of columns FIRST to END - 1 of COUNT heads at a distance STRIDE, and which
    exist."""
    columns = tl.arange(0, BLOCK)
    inside = (heads < COUNT)[:, None] & (columns >= FIRST)[None, :] & (columns < END)[None, :]
    return heads[:, None] * STRIDE + columns[None, :], inside


@triton.jit
def heads_of(
    source,
    norm,
    cos,
    sin,
    scales,
    position,
    heads,
    eps,
    COUNT: tl.constexpr,
    WIDTH: tl.constexpr,
    NORMED: tl.constexpr,
    FIRST: tl.constexpr,
    HALF: tl.constexpr,
    OF_ALL: tl.constexpr,
    NORMS_LAST: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Load some of COUNT heads of WIDTH numbers that lie side by side → float32[heads, BLOCK], 0 outside: the first
    NORMED numbers normed where there is a weight, the 2 · HALF from FIRST on rotated where there are angles. Each
    number meets the one that it is rotated with, so both are read, normed and scaled."""
    columns = tl.arange(0, BLOCK)
    at, inside = places(heads, COUNT, 0, WIDTH, WIDTH, BLOCK)
    x, root = tl.load(source + at, mask=inside, other=0.0), 1.0
    if norm is not None and not NORMS_LAST:
        root = _inverse_root(x, eps, COUNT, NORMED, OF_ALL, BLOCK)
        x = _normed(x, root, norm, heads, columns, COUNT, NORMED, OF_ALL)
    if cos is not None:
        pair = columns - FIRST
        is_low, is_rotated = pair < HALF, (pair >= 0) & (pair < 2 * HALF)
        partner = tl.where(is_rotated, tl.where(is_low, columns + HALF, columns - HALF), columns)
        y = tl.load(source + heads[:, None] * WIDTH + partner[None, :], mask=inside, other=0.0)
        if norm is not None and not NORMS_LAST:
            y = _normed(y, root, norm, heads, partner, COUNT, NORMED, OF_ALL)
        if scales is not None:
            factor = tl.load(scales + position)
            x, y = x * factor, y * factor
        angle = position.to(tl.int64) * HALF + tl.where(is_low, pair, pair - HALF)
        c = tl.load(cos + angle, mask=is_rotated, other=1.0)
        s = tl.load(sin + angle, mask=is_rotated, other=0.0)
        x = x * c[None, :] + y * tl.where(is_low, -s, s)[None, :]
    if norm is not None and NORMS_LAST:
        root = _inverse_root(x, eps, COUNT, NORMED, OF_ALL, BLOCK)
        x = _normed(x, root, norm, heads, columns, COUNT, NORMED, OF_ALL)
    return x


@triton.jit
def _inverse_root(x, eps, COUNT: tl.constexpr, NORMED: tl.constexpr, OF_ALL: tl.constexpr, BLOCK: tl.constexpr):
    """float32[heads, 1]: 1 / √(mean(x²) + ε) of the first NORMED numbers of each head, or of all COUNT together."""
    sums = tl.sum(tl.where((tl.arange(0, BLOCK) < NORMED)[None, :], x * x, 0.0), axis=1, keep_dims=True)
    if OF_ALL:
        mean = tl.div_rn(tl.sum(sums, axis=0, keep_dims=True), NORMED * COUNT * 1.0)
    else:
        mean = tl.div_rn(sums, NORMED * 1.0)
    return tl.div_rn(1.0, tl.sqrt_rn(mean + eps))


@triton.jit
def _normed(x, root, norm, heads, columns, COUNT: tl.constexpr, NORMED: tl.constexpr, OF_ALL: tl.constexpr):
    """float32[heads, BLOCK], the numbers at `columns`; norm float32[NORMED] of a head, or float32[COUNT · NORMED]."""
    is_normed = (columns < NORMED)[None, :]
    at = (heads[:, None] * NORMED if OF_ALL else heads[:, None] * 0) + columns[None, :]
    weight = tl.load(norm + at, mask=is_normed & (heads < COUNT)[:, None], other=0.0)
    return tl.where(is_normed, x * root * weight, x)


@triton.jit
def block_of(token, position, chunk_of, rows, tables, table_stride, BLOCK_SIZE: tl.constexpr):
    """In which a position of a token's slot lives."""
    row = tl.load(rows + tl.load(chunk_of + token)).to(tl.int64)
    return tl.load(tables + row * table_stride + position // BLOCK_SIZE).to(tl.int64)


@triton.jit
def write(
    x,
    heads,
    numbers,
    scales,
    stride,
    scale_stride,
    block,
    place,
    COUNT: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """x act[heads, BLOCK], of COUNT heads of WIDTH numbers → their place in a block, in its format."""
    at, inside = places(heads, COUNT, 0, WIDTH, WIDTH, BLOCK)
    at += block * stride + place * COUNT * WIDTH
    if scales is None:
        tl.store(numbers + at, x, mask=inside)
    else:
        is_int8: tl.constexpr = numbers.dtype.element_ty == tl.int8
        codes, of_heads = quantized(x.to(tl.float32), 127.0 if is_int8 else 448.0)
        tl.store(numbers + at, nearest(codes).to(tl.int8) if is_int8 else e4m3_bits(codes), mask=inside)
        tl.store(scales + block * scale_stride + place * COUNT + heads, of_heads, mask=heads < COUNT)
