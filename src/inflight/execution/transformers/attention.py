"""Attention over the paged cache, as the attention interface of `transformers` calls it.

Knows the interface's arguments, and where a chunk's keys and values lie. A module's keys and values are written as the
module made them (rotated, normed); nothing here knows a model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from inflight.execution.backends.protocol import AttentionMetadata, KVShape
from inflight.models.errors import ModelError

NAME = "inflight_paged"  # of this implementation, in the library's registry


@dataclass(frozen=True, slots=True)
class LayerShape:
    """One layer's keys and values of a token: kv_heads keys of key_dim and values of value_dim."""

    kv_heads: int
    key_dim: int
    value_dim: int

    @property
    def elements(self) -> int:
        return self.kv_heads * (self.key_dim + self.value_dim)


class TorchKVCache:
    """Keys [blocks, B, G, D] and values of each layer."""

    def __init__(self, shape: KVShape, layers: Sequence[LayerShape], num_blocks: int, dtype: torch.dtype) -> None:
        self.shape, self.num_blocks = shape, num_blocks
        at = num_blocks, shape.block_size
        self.keys = [torch.zeros(*at, one.kv_heads, one.key_dim, dtype=dtype) for one in layers]
        self.values = [torch.zeros(*at, one.kv_heads, one.value_dim, dtype=dtype) for one in layers]

    @property
    def nbytes(self) -> int:
        return sum(one.nbytes for one in (*self.keys, *self.values))

    def copy(self, sources: Sequence[int], destinations: Sequence[int]) -> None:
        for held in (*self.keys, *self.values):
            for source, destination in zip(sources, destinations, strict=True):
                held[destination] = held[source]


class PagedAttention:
    """Where the chunks of one pass lie. Layers call `of` once each."""

    def __init__(self, cache: TorchKVCache, metadata: AttentionMetadata) -> None:
        self._cache, size = cache, cache.shape.block_size
        tables = torch.from_numpy(metadata.block_tables[0]).long()  # one KV group: every layer keeps all
        positions = torch.from_numpy(metadata.positions).long()
        lengths = torch.from_numpy(metadata.query_start).long().diff()
        chunk_of = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
        self._written = tables[chunk_of, positions // size], positions % size
        self._chunks = []
        starts = metadata.query_start.tolist()
        for chunk, context in enumerate(metadata.context_len.tolist()):
            first, last = starts[chunk], starts[chunk + 1]
            seen = torch.arange(context + last - first)
            if first < last:
                self._chunks.append(_Chunk(first, last, context, (tables[chunk, seen // size], seen % size)))

    def of(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rule: Rule) -> torch.Tensor:
        """query [1, H, T, D], key [1, G, T, D], value [1, G, T, D'] → [1, T, H, D']."""
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        keys[self._written] = key[0].transpose(0, 1).to(keys.dtype)
        values[self._written] = value[0].transpose(0, 1).to(values.dtype)
        out = query.new_empty(query.shape[2], query.shape[1], value.shape[3])
        for chunk in self._chunks:
            found = rule.attend(
                query[0, :, chunk.first : chunk.last], keys[chunk.seen], values[chunk.seen], chunk.context
            )
            out[chunk.first : chunk.last] = found.transpose(0, 1)
        return out[None]


class ShapeProbe:
    """In the place of `PagedAttention` in the first pass of all: notes what each layer would keep, and attends to the
    pass's own tokens."""

    def __init__(self) -> None:
        self.layers: dict[int, LayerShape] = {}

    def of(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rule: Rule) -> torch.Tensor:
        self.layers[layer] = LayerShape(key.shape[1], key.shape[3], value.shape[3])
        found = rule.attend(query[0], key[0].transpose(0, 1), value[0].transpose(0, 1), 0)
        return found.transpose(0, 1)[None]


@dataclass(frozen=True, slots=True)
class _Chunk:
    first: int  # rows [first, last) of the pass
    last: int
    context: int  # tokens before them
    seen: tuple[torch.Tensor, torch.Tensor] = field(repr=False)  # block and place in it of each position


@dataclass(frozen=True, slots=True)
class Rule:
    """How one layer weighs: scale, tokens that are looked back over (0: all), cap of scores, a sink for each head."""

    scale: float
    window: int
    cap: float | None
    sinks: torch.Tensor | None

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, context: int) -> torch.Tensor:
        """query [H, T, D], whose first is at position `context`; key [N, G, D], value [N, G, D'], from position 0 on
        → [H, T, D']."""
        heads, tokens = query.shape[:2]
        key, value = key.transpose(0, 1).to(query.dtype), value.transpose(0, 1).to(query.dtype)
        at = torch.arange(context, context + tokens)[:, None]
        seen = torch.arange(key.shape[1])[None]
        allowed = seen <= at
        if self.window:
            allowed &= seen > at - self.window
        if self.cap is None and self.sinks is None:
            return torch.nn.functional.scaled_dot_product_attention(
                query[None], key[None], value[None], attn_mask=allowed, scale=self.scale, enable_gqa=True
            )[0]
        key, value = (one.repeat_interleave(heads // one.shape[0], 0) for one in (key, value))
        scores = (query @ key.transpose(1, 2)).float() * self.scale
        if self.cap is not None:
            scores = torch.tanh(scores / self.cap) * self.cap
        scores = scores.masked_fill(~allowed, -math.inf)
        if self.sinks is not None:
            scores = torch.cat((scores, self.sinks.float().reshape(-1, 1, 1).expand(heads, tokens, 1)), 2)
        return torch.softmax(scores, 2)[..., : key.shape[1]].to(query.dtype) @ value


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    paged: PagedAttention | ShapeProbe | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attend over the paged cache; registered in the library. paged: an argument of the pass. Raises ModelError for a
    module that asks for what the paged cache does not have."""
    layer = getattr(module, "layer_idx", None)
    if paged is None or layer is None:
        raise ModelError(f"{type(module).__name__} does not pass on what its attention needs to find the paged cache")
    biased = attention_mask is not None or others.get("position_bias") is not None
    if biased or not getattr(module, "is_causal", True) or others.get("is_causal") is False:
        raise ModelError(f"{type(module).__name__} adds a mask of its own to its attention")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return paged.of(layer, query, key, value, Rule(scale, sliding_window or 0, softcap, s_aux)), None
