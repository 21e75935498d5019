"""Rotation of queries and keys (Su et al., "RoFormer", arXiv 2104.09864); keys and values are written into the KV
cache."""

from __future__ import annotations

import numpy as np

from inflight.execution.backends.channel_mixing import mixed_channels
from inflight.execution.backends.protocol import Array, RopeTable
from inflight.execution.backends.protocol.handles import Activation, Rope, Vector
from inflight.execution.ops.formulas import parts_normed, rms_normed
from inflight.execution.ops.numpy_pass import CachedLayer, CachedVectors, NumpyPass
from inflight.execution.program import operation


@operation()
def rope_and_write_kv(
    on: NumpyPass,
    qkv: Activation,
    layer: int,
    rope: Rope | None,
    q_norm: Vector | None,
    k_norm: Vector | None,
    eps: float,
    q_out: Activation,
    norms_last: bool = False,
    v_norm: Vector | None = None,
) -> None:
    """qkv float32[T, (H + 2G)·D], heads in the order q, k, v. Applies the optional RMS norms, of each
    head (float32[D]) or of all at once (float32[H·D], float32[G·D]; of values of each head), rotates q and k unless
    `rope` is None (norms_last: first that, then their norms, which are of each head), writes k and v of every token
    into the KV cache, and q into q_out act[T, H·D]. All keys and values of the pass are written before any is read:
    chunks may read each other's blocks. qkv float32[T, (H + G)·D]: keys as they come are the values, too. qkv
    float32[T, H·D]: nothing is written; the queries will read what an earlier layer, `layer`, wrote. Over keys in
    int8 q and k are transformed last, before they are rounded, by the rule of `channel_mixing`."""
    cached, positions = on.kv_cache.layer(layer), on.metadata.positions
    kv_heads, dim = cached.keys.numbers.shape[2:]
    queries = q_out.width // dim
    q, k, v = np.split(qkv.written.reshape(qkv.rows, qkv.width // dim, dim), [queries, queries + kv_heads], axis=1)
    v = v if v.size else k
    if v_norm is not None:
        v = rms_normed(v, v_norm, eps)
    if not norms_last:
        q, k = parts_normed(q, q_norm, eps), parts_normed(k, k_norm, eps)
    if rope is not None:
        if rope.q_scale is not None:  # a factor that some models have for queries of each position
            q = q * rope.q_scale[positions][:, None, None]
        q, k = _rotated(q, rope, positions), _rotated(k, rope, positions)
    if norms_last:
        q, k = parts_normed(q, q_norm, eps), parts_normed(k, k_norm, eps)
    if cached.keys.numbers.dtype == np.int8:
        q, k = mixed_channels(q, is_query=True), mixed_channels(k, is_query=False)
    on.store(q.reshape(qkv.rows, q_out.width), q_out)
    if k.size:
        _write(on, cached, cached.keys, k)
        _write(on, cached, cached.values, v)


@operation()
def rope_and_write_latent(
    on: NumpyPass,
    q: Activation,
    kv: Activation,
    layer: int,
    rope: Rope,
    kv_norm: Vector,
    eps: float,
    nope_out: Activation,
    q_out: Activation,
) -> None:
    """Latent attention, whose cache holds of a token one key and no values (`KVLayer`): C compressed numbers, then
    R rotated ones. q float32[T, H·(N + R)], kv float32[T, C + R]: the RMS norm of the first C of kv and the rotated
    rest go into the cache; of each head of q the first N into nope_out act[T, H·N], and the rotated rest into the
    last R of the head in q_out act[T, H·(C + R)], whose first C stay as they are (`by_head` writes them)."""
    positions, rank, width = on.metadata.positions, len(kv_norm), 2 * rope.cos.shape[1]
    compressed, key = np.split(kv.written[:, None], [rank], axis=2)
    kept = np.concatenate([rms_normed(compressed, kv_norm, eps), _rotated(key, rope, positions)], axis=2)
    cached = on.kv_cache.layer(layer)
    _write(on, cached, cached.keys, kept)
    heads = q_out.width // (rank + width)
    of_heads = q.written.reshape(q.rows, heads, q.width // heads)
    nope, rest = np.split(of_heads, [nope_out.width // heads], axis=2)
    on.store(nope.reshape(q.rows, nope_out.width), nope_out)
    q_out.rows = q.rows
    q_out.written.reshape(q.rows, heads, rank + width)[:, :, rank:] = on.act.store(_rotated(rest, rope, positions))


def _rotated(heads: Array, rope: RopeTable, positions: Array) -> Array:
    """float32[T, H, D] → each head rotated by the position of its token, positions int32[T].

    With R the numbers that are rotated and i < R / 2, by halves:

        y[i]         = x[i] · cos[p, i] - x[i + R / 2] · sin[p, i]
        y[i + R / 2] = x[i + R / 2] · cos[p, i] + x[i] · sin[p, i]

    The numbers behind R stay as they are.
    """
    cos, sin = rope.cos[positions][:, None], rope.sin[positions][:, None]
    half = cos.shape[-1]
    low, high, rest = heads[..., :half], heads[..., half : 2 * half], heads[..., 2 * half :]
    return np.concatenate([low * cos - high * sin, high * cos + low * sin, rest], axis=-1)


def _write(on: NumpyPass, cached: CachedLayer, vectors: CachedVectors, x: Array) -> None:
    """float32[T, G, D], keys or values of the pass's tokens → their blocks."""
    starts, stored = on.metadata.query_start, on.act.store(x)
    for chunk, table in enumerate(on.metadata.block_tables[cached.group]):
        tokens = slice(starts[chunk], starts[chunk + 1])
        vectors.write(cached.slots(on.metadata.positions[tokens], table), stored[tokens])
