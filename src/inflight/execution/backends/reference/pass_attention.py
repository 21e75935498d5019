"""Operations of a pass on the KV cache (`protocol.AttentionOperations`): keys and values written, then attended to.

Knows which heads and blocks are whose; the formulas are in `rotation`, `norms` and `attention`.
"""

from __future__ import annotations

import numpy as np

from inflight.execution.backends.channel_mixing import mixed_channels
from inflight.execution.backends.protocol import Array, AttentionMetadata, RopeTable
from inflight.execution.backends.reference.act import Act
from inflight.execution.backends.reference.activation import ReferenceActivation
from inflight.execution.backends.reference.attention import attend, bias_at, seen_from
from inflight.execution.backends.reference.kv_cache import HeldVectors, ReferenceKVCache, slots_of
from inflight.execution.backends.reference.norms import parts_normed, rms_normed
from inflight.execution.backends.reference.rotation import rotated, scaled_queries


class AttentionOperations:
    def __init__(self, act: Act, metadata: AttentionMetadata, kv_cache: ReferenceKVCache):
        self._act, self._metadata, self._kv_cache = act, metadata, kv_cache

    def rope_and_write_kv(
        self,
        qkv: ReferenceActivation,
        layer: int,
        rope: RopeTable | None,
        q_norm: Array | None,
        k_norm: Array | None,
        eps: float,
        q_out: ReferenceActivation,
        norms_last: bool = False,
        v_norm: Array | None = None,
    ) -> None:
        kept, positions = self._kv_cache.shape.of(layer), self._metadata.positions
        heads = qkv.written.reshape(qkv.rows, -1, kept.key_dim)
        queries = q_out.width // kept.key_dim
        q, k, v = np.split(heads, [queries, queries + kept.kv_heads], axis=1)
        v = v if v.size else k
        if v_norm is not None:
            v = rms_normed(v, v_norm, eps)
        if not norms_last:
            q, k = parts_normed(q, q_norm, eps), parts_normed(k, k_norm, eps)
        if rope is not None:
            q, k = rotated(scaled_queries(q, rope, positions), rope, positions), rotated(k, rope, positions)
        if norms_last:
            q, k = parts_normed(q, q_norm, eps), parts_normed(k, k_norm, eps)
        if self._kv_cache.shape.quantized:
            q, k = mixed_channels(q, is_query=True), mixed_channels(k, is_query=False)
        q_out.write(self._act.hold(q).reshape(qkv.rows, -1))
        if k.size:
            self._write(self._kv_cache.keys[layer], layer, self._act.hold(k))
            self._write(self._kv_cache.values[layer], layer, self._act.hold(v))

    def rope_and_write_latent(
        self,
        q: ReferenceActivation,
        kv: ReferenceActivation,
        layer: int,
        rope: RopeTable,
        kv_norm: Array,
        eps: float,
        nope_out: ReferenceActivation,
        q_out: ReferenceActivation,
    ) -> None:
        positions, rank, width = self._metadata.positions, len(kv_norm), 2 * rope.cos.shape[1]
        compressed, key = np.split(kv.written[:, None], [rank], axis=2)
        kept = np.concatenate([rms_normed(compressed, kv_norm, eps), rotated(key, rope, positions)], axis=2)
        self._write(self._kv_cache.keys[layer], layer, self._act.hold(kept))
        heads = q_out.width // (rank + width)
        nope, rest = np.split(q.written.reshape(q.rows, heads, -1), [nope_out.width // heads], axis=2)
        nope_out.write(self._act.hold(nope).reshape(q.rows, -1))
        q_out.rows = q.rows
        q_out.written.reshape(q.rows, heads, -1)[:, :, rank:] = self._act.hold(rotated(rest, rope, positions))

    def attention(
        self,
        q: ReferenceActivation,
        layer: int,
        scale: float,
        window: int,
        out: ReferenceActivation,
        soft_cap: float = 0.0,
        sinks: Array | None = None,
        causal: bool = True,
        position_bias: Array | None = None,
    ) -> None:
        kept, starts = self._kv_cache.shape.of(layer), self._metadata.query_start
        out.rows = q.rows
        queries = self._act.read(q.written).reshape(q.rows, kept.kv_heads, -1, kept.key_dim)  # [T, G, H / G, D]
        into = out.written.reshape(q.rows, kept.kv_heads, queries.shape[2], -1)  # [T, G, H / G, M]
        of_heads = [None] * kept.kv_heads if sinks is None else sinks.reshape(kept.kv_heads, -1)
        biases = None if position_bias is None else position_bias.reshape(kept.kv_heads, queries.shape[2], -1)
        rounded = np.asarray if self._kv_cache.shape.quantized else self._act.rounded
        for chunk in np.flatnonzero(np.diff(starts)).tolist():
            keys, values = self._cached(chunk, layer, into.shape[-1])
            end = None if causal else keys.shape[1]
            for t in range(starts[chunk], starts[chunk + 1]):
                position = int(self._metadata.positions[t])
                seen = seen_from(position, window, end)
                for head, of_head in enumerate(of_heads):
                    bias = None if biases is None else biases[head][:, bias_at(biases.shape[2], position, seen)]
                    found = attend(
                        queries[t, head], keys[head, seen], values[head, seen], scale, soft_cap, of_head, rounded, bias
                    )
                    into[t, head] = self._act.hold(found)

    def _cached(self, chunk: int, layer: int, width: int) -> tuple[Array, Array]:
        """Keys and values float32[G, P, …] of all positions up to the chunk's last; width: of a value. Where none are
        kept, they are the keys' first numbers."""
        cache, starts = self._kv_cache, self._metadata.query_start
        kept = cache.shape.of(layer)
        end = self._metadata.context_len[chunk] + starts[chunk + 1] - starts[chunk]
        at = slots_of(np.arange(end), self._metadata.block_tables[kept.group, chunk], cache.shape.block_size)
        keys = cache.keys[layer].read(at)
        return keys, cache.values[layer].read(at) if kept.value_dim else keys[:, :, :width]

    def _write(self, held: HeldVectors, layer: int, x: Array) -> None:
        """act[T, G, D], keys or values of the pass's tokens → their blocks."""
        starts, shape = self._metadata.query_start, self._kv_cache.shape
        for chunk, table in enumerate(self._metadata.block_tables[shape.of(layer).group]):
            tokens = slice(starts[chunk], starts[chunk + 1])
            held.write(slots_of(self._metadata.positions[tokens], table, shape.block_size), x[tokens])
