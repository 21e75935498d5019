"""Seconds of a step's attention: query-key pairs that are computed, and keys and values that are read and written.

Prompts' attention reads keys and values once per tile of queries; decodes read those of their own sequence alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import structs

from inflight.core.types.features import Features
from inflight.models.mixers.attention import Attention
from inflight.models.spec import ModelSpec
from inflight.simulate.costs import Cost, slower
from inflight.simulate.efficiency import Efficiencies
from inflight.simulate.engine_costs import EngineCosts
from inflight.simulate.hardware import ITEM_BYTES, Gpu, Precision
from inflight.simulate.shards import (
    CacheShard,
    Expansion,
    cache_shards,
    cached_context,
    latent_expansion,
    prompt_chunks,
)

QUERY_TILE = 128  # queries that share one reading of keys and values
NARROW = 64  # elements of a head, at which exponentials bound attention
_NO_PROMPTS = Cost("prefill attention", 0.0, "bandwidth")


@dataclass(frozen=True, slots=True)
class AttentionCosts:
    """The attention of all layers on one GPU.

    expansion: of latent vectors. item, token_bytes: bytes of a cached element, and of all of a token. sinks: factor on
    the rate of layers with sinks. prompt_rate, decode_rate, matrix_rate: operations per second of attention, and of
    linear layers in large steps. bandwidth, linear_bandwidth: bytes per second of keys and values, and of linear
    layers.
    """

    caches: tuple[CacheShard, ...]
    expansion: Expansion
    shares: Efficiencies
    item: float
    token_bytes: float
    sinks: float
    prompt_rate: float
    decode_rate: float
    matrix_rate: float
    bandwidth: float
    linear_bandwidth: float

    def of_prompts(self, features: Features) -> Cost:
        """Return the time of a step's prompts."""
        if not features.has_prompts:
            return _NO_PROMPTS
        # Tiles are computed whole, and filled and emptied, so that each query costs as if it saw some positions more.
        chunks = prompt_chunks(features)
        queries = max(1, features.tokens - features.rows + chunks)
        more = self.shares.prefill_tile * queries
        pairs = [(one, one.seen(features.prefill_context, queries, chunks) + more) for one in self.caches]
        flops = sum(one.prompt_flops * seen for one, seen in pairs)
        read = sum(one.read * seen for one, seen in pairs) * self.item / QUERY_TILE
        attention = slower("prefill attention", flops / self.prompt_rate, read / self.bandwidth)
        expanded = self.expanding(cached_context(features)) if self.expansion.flops else 0.0
        return structs.replace(attention, seconds=attention.seconds + expanded)

    def expanding(self, tokens: float) -> float:
        """Return the seconds in which keys and values are made of so many cached tokens' latent vectors. Those of the
        prompt itself are among the products of linear layers."""
        one, item = self.expansion, ITEM_BYTES["bf16"]
        product = max(one.flops / self.matrix_rate, one.product * item / self.linear_bandwidth)
        return tokens * (product + one.copied * item / self.linear_bandwidth)

    def of_decodes(self, features: Features) -> Cost:
        """Return the time of a step's decodes. In a step without prompts, a row's drafts compute on what it reads
        once."""
        more = self.shares.decode_tile * features.rows if features.decode_context else 0.0
        pairs, drafts, has_prompts = features.prefill_context, features.tokens - features.rows, features.has_prompts
        if has_prompts:  # among whose pairs those of drafts are
            pairs = drafts = 0
        flops = read = 0.0
        for one in self.caches:
            seen = one.seen(features.decode_context, features.rows, features.rows) + more
            flops += one.decode_flops * (seen + one.seen(pairs, drafts, features.rows))
            read += one.read * seen
        moved = read * self.item + self.token_bytes * features.tokens
        mixed = self.shares.mixed_decode if has_prompts else 1.0
        return slower("decode attention", flops / self.decode_rate, moved / (self.bandwidth * self.sinks * mixed))


def attention_costs(
    spec: ModelSpec,
    gpu: Gpu,
    tensor: int,
    kv: Precision,
    shares: Efficiencies,
    engine: EngineCosts,
    matrix_rate: float,
) -> AttentionCosts:
    """Return the costs of a model's attention, whose heads are divided among so many GPUs."""
    caches = cache_shards(spec, tensor)
    in_fp8, peak = kv == "fp8" and gpu.computes("fp8"), gpu.flops_per_s("bf16")
    sinks = shares.sinks if _has_sinks(spec) else 1.0
    prompts = peak * shares.prefill_compute * sinks * (shares.prefill_narrow if _is_narrow(spec) else 1.0)
    return AttentionCosts(
        caches=caches,
        expansion=latent_expansion(spec, tensor),
        shares=shares,
        item=ITEM_BYTES[kv],
        token_bytes=sum(one.elements for one in caches) * ITEM_BYTES[kv],
        sinks=sinks,
        prompt_rate=prompts * (shares.prefill_fp8 if in_fp8 and engine.fp8_attention else 1.0),
        decode_rate=peak * shares.decode_compute * (shares.decode_fp8 if in_fp8 else 1.0),
        matrix_rate=matrix_rate,
        bandwidth=gpu.bytes_per_s * shares.decode_memory,
        linear_bandwidth=gpu.bytes_per_s * shares.linear_memory,
    )


def _has_sinks(spec: ModelSpec) -> bool:
    return any(isinstance(layer.mixer, Attention) and layer.mixer.sinks for layer, _ in spec.kinds_of_layers)


def _is_narrow(spec: ModelSpec) -> bool:
    mixers = (layer.mixer for layer, _ in spec.kinds_of_layers)
    return any(isinstance(mixer, Attention) and mixer.head_dim <= NARROW for mixer in mixers)
