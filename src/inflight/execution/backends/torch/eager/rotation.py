"""Queries and keys are normed and rotated by their positions, and keys and values written into the KV cache.

Knows heads, blocks and the formats that keys and values are held in; not who attends to them. The rotation is RoPE by
halves (Su et al., "RoFormer", arXiv 2104.09864).
"""

from __future__ import annotations

import torch
from torch import Tensor

from inflight.execution.backends.channel_mixing import mixing_factor, run_length
from inflight.execution.backends.torch.eager.products import quantize_fp8, quantize_int8
from inflight.execution.backends.torch.eager.rows import parts_normed
from inflight.execution.backends.torch.tensors import LayerKV, PassTensors, RopeTensors


def rope_and_write_kv(
    qkv: Tensor,
    cached: LayerKV,
    rope: RopeTensors | None,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    v_norm: Tensor | None,
    eps: float,
    norms_last: bool,
    pass_: PassTensors,
    q_out: Tensor,
) -> None:
    """qkv float32[T, (H + 2G)·D], (H + G)·D or H·D → the cache, and q_out act[T, H·D]."""
    kv_heads, width = cached.keys.shape[2:]
    heads = qkv.view(len(qkv), qkv.shape[1] // width, width)
    queries = q_out.shape[1] // width
    q, k, v = heads.tensor_split((queries, queries + kv_heads), dim=1)
    v = v if v.shape[1] else k
    if not norms_last:
        q, k = parts_normed(q, q_norm, eps), parts_normed(k, k_norm, eps)
    if rope is not None:
        q, k = rotated(q, rope, pass_.positions, scale=rope.q_scale), rotated(k, rope, pass_.positions)
    if norms_last:
        q, k = parts_normed(q, q_norm, eps), parts_normed(k, k_norm, eps)
    if cached.keys.dtype == torch.int8:
        q, k = mixed_channels(q, is_query=True), mixed_channels(k, is_query=False)
    q_out.copy_(q.flatten(1))
    if k.shape[1]:
        assert cached.values is not None
        _write(cached.keys, cached.key_scales, cached.group, pass_, k.to(q_out.dtype))
        _write(cached.values, cached.value_scales, cached.group, pass_, parts_normed(v, v_norm, eps).to(q_out.dtype))


def rope_and_write_latent(
    q: Tensor,
    kv: Tensor,
    cached: LayerKV,
    rope: RopeTensors,
    kv_norm: Tensor,
    eps: float,
    pass_: PassTensors,
    nope_out: Tensor,
    q_out: Tensor,
) -> None:
    """q float32[T, H·(N + R)], kv float32[T, C + R] → the cache, nope_out act[T, H·N], and of each head of q_out
    act[T, H·(C + R)] the last R."""
    rank, width = len(kv_norm), cached.keys.shape[3]
    compressed, key = kv[:, None, :rank], kv[:, None, rank:]
    kept = torch.cat([parts_normed(compressed, kv_norm, eps), rotated(key, rope, pass_.positions)], dim=2)
    _write(cached.keys, cached.key_scales, cached.group, pass_, kept.to(q_out.dtype))
    heads = q_out.shape[1] // width
    split = nope_out.shape[1] // heads
    of_heads, into = q.view(len(q), heads, q.shape[1] // heads), q_out.view(len(q), heads, width)
    nope_out.copy_(of_heads[:, :, :split].flatten(1))
    into[:, :, rank:] = rotated(of_heads[:, :, split:], rope, pass_.positions).to(q_out.dtype)


def rotated(heads: Tensor, rope: RopeTensors, positions: Tensor, scale: Tensor | None = None) -> Tensor:
    """float32[T, heads, D] → the first R numbers of each head rotated by its token's position; what is behind stays.
    scale float32[positions]: what all D are multiplied by before."""
    if scale is not None:
        heads = heads * scale[positions][:, None, None]
    cos, sin = rope.cos[positions][:, None], rope.sin[positions][:, None]
    half = cos.shape[2]
    low, high, rest = heads[..., :half], heads[..., half : 2 * half], heads[..., 2 * half :]
    return torch.cat([low * cos - high * sin, high * cos + low * sin, rest], dim=2)


def mixed_channels(heads: Tensor, is_query: bool) -> Tensor:
    """float32[T, heads, D] → each transformed, by the rule of `channel_mixing`."""
    width, distance, mixed = heads.shape[2], 1, heads
    while distance < run_length(width):
        first, second = mixed.reshape(*heads.shape[:2], width // (2 * distance), 2, distance).unbind(3)
        mixed, distance = torch.stack([first + second, first - second], dim=3).flatten(2), 2 * distance
    return mixed * mixing_factor(width, is_query)


def _write(held: Tensor, scales: Tensor | None, group: int, pass_: PassTensors, x: Tensor) -> None:
    """x act[T, G, D], keys or values of the pass's tokens → their places in the blocks of a KV group."""
    row = pass_.rows[pass_.chunk_of]
    block = pass_.block_tables[group, row, pass_.positions // pass_.block_size]
    at = (block.long(), (pass_.positions % pass_.block_size).long())
    if scales is None:
        held[at] = x
    else:
        codes, of_heads = (quantize_int8 if held.dtype == torch.int8 else quantize_fp8)(x.flatten(0, 1))
        held[at], scales[at] = codes.view(x.shape), of_heads.view(x.shape[:2])
