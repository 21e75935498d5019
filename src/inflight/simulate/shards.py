"""The part of a model and of a step that one GPU of an engine has: of the cache, of matrices, experts and tokens.

Layers are counted as if one GPU of each pipeline stage had those of all stages: a token passes them one after the
other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from msgspec.structs import replace

from inflight.core.types.features import Features
from inflight.models.arithmetic import Packing, layer_matrix_bytes, layer_matrix_parameters
from inflight.models.mixers.mla import LatentAttention
from inflight.models.parts import Mixer, Mlp
from inflight.models.spec import ModelSpec
from inflight.simulate.parallelism import Parallelism


@dataclass(frozen=True, slots=True)
class CacheShard:
    """The cache of one GPU over all layers with the same window (0: none), as mixers have it.

    elements: cached of a token. read: of a token, also by layers that share another one's cache. prompt_flops,
    decode_flops: of a query-key pair, among many queries of a prompt and alone.
    """

    window: int
    causal: bool
    chunked: bool
    elements: int = 0
    read: int = 0
    prompt_flops: float = 0.0
    decode_flops: float = 0.0

    def seen(self, pairs: float, queries: float, chunks: float) -> float:
        """Return how many query-key pairs are computed.

        Args:
            pairs: Of the queries with all tokens before them.
            queries: Of all chunks together.
            chunks: Each of one text.
        """
        if not self.causal:  # a text is whole, and each of its tokens sees those behind it, too
            return min(2 * pairs, queries * (2 * self.window + 1)) if self.window else 2 * pairs
        if not self.window:
            return pairs
        last = pairs + queries * (queries / max(1, chunks) - 1) / 2  # as if all queries were as late as the last
        passes = self.chunked and last > queries * self.window
        return min(pairs, queries * self.window / (2 if passes else 1))  # a window that restarts is half full

    def kept(self, tokens: int) -> int:
        """Return how many of a sequence's tokens stay cached."""
        return min(tokens, self.window) if self.window else tokens


def cache_shards(spec: ModelSpec, tensor: int) -> tuple[CacheShard, ...]:
    """Return the cache of each window, under tensor parallelism of this degree. Where there are more GPUs than KV
    heads, each GPU has a copy of one; latent attention's vectors are of all heads at once, so that each GPU has them
    all."""
    by_window: dict[tuple[int, bool, bool], CacheShard] = {}
    for layer, count in spec.kinds_of_layers:
        mixer, read = layer.mixer, layer.mixer.reads
        if read is None:
            continue
        elements = replace(read, heads=max(1, read.heads // tensor)).elements
        window = mixer.window, mixer.causal, mixer.chunked
        before = by_window.get(window, CacheShard(*window))
        by_window[window] = CacheShard(
            *window,
            before.elements + count * elements * (mixer.writes is not None),
            before.read + count * elements,
            before.prompt_flops + count * mixer.pair_flops() / tensor,
            before.decode_flops + count * mixer.pair_flops(compressed=True) / tensor,
        )
    return tuple(by_window.values())


@dataclass(frozen=True, slots=True)
class Expansion:
    """The way from the cached latent vector of a token to keys and values on one GPU, over all layers.

    vLLM's kernels of prompts read those (its `_compute_prefill_context`): vectors are gathered and multiplied, and each
    head's key is joined with the rotated one. flops: of the product. product, copied: elements that it, and copies
    around it, read or write.
    """

    flops: float = 0.0
    product: float = 0.0
    copied: float = 0.0


def latent_expansion(spec: ModelSpec, tensor: int) -> Expansion:
    """Return the expansion of a token under tensor parallelism of this degree; nothing without latent attention."""
    flops = product = copied = 0.0
    for layer, count in spec.kinds_of_layers:
        mixer = layer.mixer
        if isinstance(mixer, LatentAttention):
            heads, keys = count * mixer.heads / tensor, mixer.qk_nope_head_dim
            made = heads * (keys + mixer.v_head_dim)
            flops += 2 * made * mixer.kv_lora_rank
            product += count * mixer.kv_lora_rank + made
            copied += count * 2 * mixer.cached_width + heads * (2 * keys + mixer.qk_rope_head_dim)
    return Expansion(flops, product, copied)


def min_kv_heads(spec: ModelSpec) -> int | None:
    """Return the smallest number of KV heads of any layer; of latent attention 1. None without keys and values."""
    found = (layer.mixer.reads for layer, _ in spec.kinds_of_layers)
    return min((read.heads for read in found if read is not None), default=None)


@dataclass(frozen=True, slots=True)
class ExpertShard:
    """Layers with the same mixture on one GPU.

    elements, outputs: of one expert's matrices over all of them, divided among the stage's GPUs, whether each holds
    whole experts or a slice of every one. width: of an expert's hidden layer there. divided: GPUs among which whole
    experts are.
    """

    mlp: Mlp
    elements: float
    outputs: float
    layers: int
    width: float
    divided: int = 1

    def busiest(self, tokens: float, skew: float = 0.0) -> float:
        """Return how many times the mean the busiest GPU computes, where `tokens` tokens choose whole experts: the
        expected maximum of the GPUs' counts, whose deviation is that of independent choices and of what is chosen.

        Args:
            skew: Deviation of the GPUs' expected counts over their mean, as some experts are chosen more often.
        """
        if self.divided == 1 or tokens <= 0:
            return 1.0
        mean = max(tokens * self.mlp.top_k / self.divided, 1e-9)
        return min(float(self.divided), 1 + math.sqrt(2 * math.log(self.divided) * (1 / mean + skew * skew)))

    def max_read(self, tokens: float) -> float:
        """Return how many times the mean of touched experts the GPU reads that has the most of them."""
        touched = self.mlp.touched_experts(tokens)
        if self.divided == 1 or not touched:
            return 1.0
        untouched = 1 - touched / self.mlp.experts
        factor = 1 + math.sqrt(2 * math.log(self.divided) * untouched * self.divided / touched)
        return min(factor, self.mlp.experts / touched, float(self.divided))


@dataclass(frozen=True, slots=True)
class LinearShard:
    """The layers' matrices on one GPU. flops: of a token, without experts. state_flops: of a token, on recurrent
    states. matrices: elements that every step reads."""

    flops: float
    state_flops: float
    matrices: float
    experts: tuple[ExpertShard, ...]


def linear_shard(spec: ModelSpec, parallelism: Parallelism) -> LinearShard:
    """Return the part of the layers' matrices that one GPU computes: of attention, dense MLPs and shared experts a part
    by tensor parallelism, of experts one by all GPUs of a stage."""
    states = matrices = 0.0
    experts = []
    stage = parallelism.stage_gpus
    for layer, count in spec.kinds_of_layers:
        part = count / parallelism.tensor
        elements = layer_matrix_parameters(spec, layer, 0)
        states += part * layer.mixer.state_flops
        matrices += part * elements + (count - part) * replicated_elements(layer.mixer, spec.hidden_size)
        if layer.mlp.experts:
            expert = layer.mlp.expert_weights(spec.hidden_size)
            width = expert.elements / (3 * spec.hidden_size) * parallelism.expert / stage
            sizes = count * expert.elements / stage, count * expert.outputs / stage
            experts.append(ExpertShard(layer.mlp, *sizes, count, width, parallelism.expert))
    return LinearShard(2.0 * matrices, states, matrices, tuple(experts))


def matrix_bytes(spec: ModelSpec, parallelism: Parallelism, packing: Packing) -> float:
    """Return the bytes of the layers' matrices on one GPU, without experts."""
    read = 0.0
    for layer, count in spec.kinds_of_layers:
        part = count / parallelism.tensor
        read += part * layer_matrix_bytes(spec, layer, packing, 0)
        read += (count - part) * replicated_elements(layer.mixer, spec.hidden_size) * packing.matrix
    return read


def replicated_elements(mixer: Mixer, hidden: int) -> int:
    """Return the elements of a mixer's matrices that each GPU of tensor parallelism has whole: those that compress
    latent attention's queries, keys and values, as vLLM and SGLang have them."""
    return hidden * (mixer.q_lora_rank + mixer.cached_width) if isinstance(mixer, LatentAttention) else 0


def busiest_batch(
    features: Features, parallelism: Parallelism, widest: int, batch_tokens: int | None = None
) -> Features:
    """Return what the busiest data-parallel group computes of a step, in one of the batches that its pipeline's stages
    hold at once.

    Decodes are divided evenly. A prompt's chunk is on one group alone, so that a step of few chunks leaves groups idle;
    of a chunk beyond `widest` tokens a group would compute so many, and prompts of other groups beside them. Of a
    group's batches each has chunks of its own, too, and all stages pass a lone one whole, one after the other.

    Args:
        batch_tokens: Of a batch at most, into which longer chunks are divided; None: the step is full.
    """
    if parallelism.batches == 1:
        return features
    groups, stages, rows = parallelism.data_attention, parallelism.pipeline, features.rows
    chunks = prompt_chunks(features)
    decodes = rows - chunks
    others = features.tokens - decodes  # of prompts; padding and drafts, where no prompt is computed
    part = 1 / parallelism.batches
    local = math.ceil(decodes / parallelism.batches)
    if chunks and others > 0:
        part = max(1 / groups, min(1 / chunks, widest / others))
        room = 0 if batch_tokens is None else max(0, batch_tokens - local)
        part = max(part / stages, min(part, 1 / chunks, room / others))
    local_chunks = math.ceil(chunks * part)
    return Features(
        tokens=local + math.ceil(others * part),
        rows=local + local_chunks,
        samples=math.ceil(features.samples / parallelism.batches),
        decode_context=math.ceil(features.decode_context * local / max(1, decodes)),
        prefill_context=features.prefill_context * part,
        moved_blocks=math.ceil(features.moved_blocks / parallelism.batches),
        prompt_chunks=local_chunks,
    )


def cached_context(features: Features) -> float:
    """Return how many tokens were cached before the chunks of prompts in a step, as if all of these were as long."""
    chunks = prompt_chunks(features)
    if not chunks:
        return 0.0
    tokens = features.tokens - features.rows + chunks
    return max(0.0, chunks * features.prefill_context / tokens - tokens / 2)


def prompt_chunks(features: Features) -> int:
    """Return how many rows of a step compute prompts. Where they were not counted: those that get no token, and of the
    others as many as there are if each begins with this step, since n prompts of t tokens have n·t²/2 pairs of a query
    and a key."""
    if features.prompt_chunks is not None:
        return features.prompt_chunks
    if not features.has_prompts:
        return 0
    least = max(1, features.rows - features.samples)
    tokens = max(0, features.tokens - features.rows + least)
    return min(features.rows, max(least, round(tokens * tokens / (2 * features.prefill_context))))
