"""Queries and keys normed and rotated, keys and values written into the KV cache, as kernels.

A program has some heads of one token: of the queries, or of the keys, or of the values. Where one norm is of all heads,
it has all of them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from inflight.execution.backends.channel_mixing import mixing_factor, run_length
from inflight.execution.backends.torch.device_pass import DevicePass
from inflight.execution.backends.torch.kernels.functions import e4m3_bits, mixed_channels, nearest, quantized
from inflight.execution.backends.torch.tensors import PassTensors, RopeTensors

NUMBERS = 1024  # of one program, unless all heads have one norm


def rope_and_write_kv(
    on: DevicePass,
    qkv: Tensor,
    layer: int,
    rope: RopeTensors | None,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    eps: float,
    q_out: Tensor,
    norms_last: bool = False,
    v_norm: Tensor | None = None,
) -> None:
    pass_, cached = on.tensors, on.cached(layer)
    kv_heads, width = cached.keys.shape[2:]
    queries = q_out.shape[1] // width
    written = qkv.shape[1] // width - queries  # heads of keys, and of values where these are separate
    of_all_q, of_all_k = (norm is not None and len(norm) != width for norm in (q_norm, k_norm))
    block, most = triton.next_power_of_2(width), triton.next_power_of_2(max(queries, kv_heads))
    heads = most if of_all_q or of_all_k else min(most, max(1, NUMBERS // block))
    q_tiles, kv_tiles = triton.cdiv(queries, heads), triton.cdiv(kv_heads, heads) if written else 0
    _rope_and_write_kv[pass_.num_tokens, q_tiles + 2 * kv_tiles](
        qkv,
        *((None, None, None) if rope is None else rope),
        q_norm,
        k_norm,
        v_norm,
        q_out,
        *_of_cached(cached.keys, cached.key_scales),
        *_of_cached(cached.values, cached.value_scales),
        *_of_pass(pass_, cached.group),
        eps,
        ROW=qkv.shape[1],
        QUERIES=queries,
        KV_HEADS=kv_heads,
        WIDTH=width,
        HALF=0 if rope is None else rope.cos.shape[1],
        OF_ALL_Q=of_all_q,
        OF_ALL_K=of_all_k,
        NORMS_LAST=norms_last,
        FIRST_VALUE=queries + written - kv_heads,
        STAGES=run_length(width).bit_length() - 1 if cached.keys.dtype == torch.int8 else 0,
        Q_FACTOR=mixing_factor(width, is_query=True),
        K_FACTOR=mixing_factor(width, is_query=False),
        BLOCK_SIZE=pass_.block_size,
        HEADS=heads,
        BLOCK=block,
        num_warps=_warps(heads * block),
        enable_fp_fusion=False,
    )


def rope_and_write_latent(
    on: DevicePass,
    q: Tensor,
    kv: Tensor,
    layer: int,
    rope: RopeTensors,
    kv_norm: Tensor,
    eps: float,
    nope_out: Tensor,
    q_out: Tensor,
) -> None:
    pass_, cached = on.tensors, on.cached(layer)
    rank, width = len(kv_norm), cached.keys.shape[3]
    queries = q_out.shape[1] // width
    nope = nope_out.shape[1] // queries
    block = triton.next_power_of_2(nope + width - rank)
    heads = min(triton.next_power_of_2(queries), max(1, NUMBERS // block))
    _rope_and_write_latent[pass_.num_tokens, triton.cdiv(queries, heads) + 1](
        q,
        kv,
        rope.cos,
        rope.sin,
        kv_norm,
        nope_out,
        q_out,
        *_of_cached(cached.keys, cached.key_scales),
        *_of_pass(pass_, cached.group),
        eps,
        QUERIES=queries,
        NOPE=nope,
        RANK=rank,
        HALF=rope.cos.shape[1],
        BLOCK_SIZE=pass_.block_size,
        HEADS=heads,
        BLOCK=block,
        BLOCK_KEY=triton.next_power_of_2(width),
        num_warps=_warps(heads * block),
        enable_fp_fusion=False,
    )


def _warps(numbers: int) -> int:
    return max(1, min(numbers // 256, 16))


def _of_cached(numbers: Tensor | None, scales: Tensor | None) -> tuple[Tensor | int | None, ...]:
    """Keys or values, their scales, and how far it is from block to block of either. Numbers in fp8 are written as
    their bits (`e4m3_bits`)."""
    if numbers is None:
        return None, None, 0, 0
    bits = numbers.view(torch.uint8) if numbers.dtype == torch.float8_e4m3fn else numbers
    return bits, scales, numbers.stride(0), 0 if scales is None else scales.stride(0)


def _of_pass(pass_: PassTensors, group: int) -> tuple[Tensor | int, ...]:
    tables = pass_.block_tables[group]
    return pass_.positions, pass_.chunk_of, pass_.rows, tables, tables.stride(0)


@triton.jit
def _rope_and_write_kv(
    qkv, cos, sin, q_scale, q_norm, k_norm, v_norm, q_out,
    keys, key_scales, key_stride, key_scale_stride, values, value_scales, value_stride, value_scale_stride,
    positions, chunk_of, rows, tables, table_stride, eps,
    ROW: tl.constexpr, QUERIES: tl.constexpr, KV_HEADS: tl.constexpr, FIRST_VALUE: tl.constexpr,
    WIDTH: tl.constexpr, HALF: tl.constexpr, OF_ALL_Q: tl.constexpr, OF_ALL_K: tl.constexpr,
    NORMS_LAST: tl.constexpr, STAGES: tl.constexpr, Q_FACTOR: tl.constexpr, K_FACTOR: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, HEADS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Run a grid over tokens, and tiles of HEADS heads: those of the queries, then of the keys, then of the values.
    STAGES: of the mixing of channels; 0: none."""
    token, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    q_tiles: tl.constexpr = (QUERIES + HEADS - 1) // HEADS
    kv_tiles: tl.constexpr = (KV_HEADS + HEADS - 1) // HEADS
    position, row = tl.load(positions + token), qkv + token * ROW
    if tile < q_tiles:
        heads = tile * HEADS + tl.arange(0, HEADS)
        found = heads_of(
            row, q_norm, cos, sin, q_scale, position, heads, eps,
            QUERIES, WIDTH, WIDTH, 0, HALF, OF_ALL_Q, NORMS_LAST, BLOCK,
        )  # fmt: skip
        if STAGES > 0:
            found = mixed_channels(found, STAGES, Q_FACTOR)
        at, inside = places(heads, QUERIES, 0, WIDTH, WIDTH, BLOCK)
        tl.store(q_out + token * QUERIES * WIDTH + at, found.to(q_out.dtype.element_ty), mask=inside)
    elif tile < q_tiles + kv_tiles:
        heads = (tile - q_tiles) * HEADS + tl.arange(0, HEADS)
        found = heads_of(
            row + QUERIES * WIDTH, k_norm, cos, sin, None, position, heads, eps,
            KV_HEADS, WIDTH, WIDTH, 0, HALF, OF_ALL_K, NORMS_LAST, BLOCK,
        )  # fmt: skip
        if STAGES > 0:
            found = mixed_channels(found, STAGES, K_FACTOR)
        block = block_of(token, position, chunk_of, rows, tables, table_stride, BLOCK_SIZE)
        write(
            found.to(q_out.dtype.element_ty), heads, keys, key_scales, key_stride, key_scale_stride,
            block, position % BLOCK_SIZE, KV_HEADS, WIDTH, BLOCK,
        )  # fmt: skip
    else:
        heads = (tile - q_tiles - kv_tiles) * HEADS + tl.arange(0, HEADS)
        found = heads_of(
            row + FIRST_VALUE * WIDTH, v_norm, None, None, None, position, heads, eps,
            KV_HEADS, WIDTH, WIDTH, 0, 0, False, False, BLOCK,
        )  # fmt: skip
        block = block_of(token, position, chunk_of, rows, tables, table_stride, BLOCK_SIZE)
        write(
            found.to(q_out.dtype.element_ty), heads, values, value_scales, value_stride, value_scale_stride,
            block, position % BLOCK_SIZE, KV_HEADS, WIDTH, BLOCK,
        )  # fmt: skip


@triton.jit
def _rope_and_write_latent(
    q, kv, cos, sin, kv_norm, nope_out, q_out,
    keys, key_scales, key_stride, key_scale_stride,
    positions, chunk_of, rows, tables, table_stride, eps,
    QUERIES: tl.constexpr, NOPE: tl.constexpr, RANK: tl.constexpr, HALF: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, HEADS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_KEY: tl.constexpr,
):  # fmt: skip
    """Run a grid over tokens, and tiles of HEADS heads of queries, and one more for the key."""
    token, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    q_tiles: tl.constexpr = (QUERIES + HEADS - 1) // HEADS
    width: tl.constexpr = NOPE + 2 * HALF
    of_key: tl.constexpr = RANK + 2 * HALF
    position = tl.load(positions + token)
    if tile < q_tiles:
        heads = tile * HEADS + tl.arange(0, HEADS)
        found = heads_of(
            q + token * QUERIES * width, None, cos, sin, None, position, heads, eps,
            QUERIES, width, 0, NOPE, HALF, False, False, BLOCK,
        ).to(q_out.dtype.element_ty)  # fmt: skip
        at, inside = places(heads, QUERIES, 0, NOPE, NOPE, BLOCK)
        tl.store(nope_out + token * QUERIES * NOPE + at, found, mask=inside)
        at, inside = places(heads, QUERIES, NOPE, width, of_key, BLOCK)
        tl.store(q_out + token * QUERIES * of_key + (RANK - NOPE) + at, found, mask=inside)
    else:
        head = tl.arange(0, 1)
        key = heads_of(
            kv + token * of_key, kv_norm, cos, sin, None, position, head, eps,
            1, of_key, RANK, RANK, HALF, False, False, BLOCK_KEY,
        )  # fmt: skip
        block = block_of(token, position, chunk_of, rows, tables, table_stride, BLOCK_SIZE)
        write(
            key.to(q_out.dtype.element_ty), head, keys, key_scales, key_stride, key_scale_stride,
            block, position % BLOCK_SIZE, 1, of_key, BLOCK_KEY,
        )  # fmt: skip


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
