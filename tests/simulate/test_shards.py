"""A GPU's share of a step: query-key pairs within windows, keys and values of cached latent vectors."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inflight.core.types.features import Features
from inflight.models.arithmetic import other_parameters, step_weight_bytes, table_parameters
from inflight.models.known import known_model
from inflight.simulate.costs import KINDS
from inflight.simulate.efficiency import efficiencies
from inflight.simulate.hardware import find_gpu, packing
from inflight.simulate.parallelism import Parallelism
from inflight.simulate.roofline import Roofline
from inflight.simulate.shards import (
    CacheShard,
    Expansion,
    cache_shards,
    cached_context,
    latent_expansion,
    linear_shard,
    matrix_bytes,
)

PREFILL = KINDS.index("prefill attention")


def prompt(tokens: int, start: int = 0, chunks: int = 1) -> Features:
    """So many chunks of a prompt, each of so many tokens behind as many cached ones."""
    pairs = chunks * tokens * (start + tokens / 2)
    return Features(chunks * tokens, chunks, chunks, 0, pairs, prompt_chunks=chunks)


@pytest.mark.parametrize("length", [64, 100, 128, 256, 1000])
def test_a_window_that_restarts_is_half_full_on_average(length: int) -> None:
    """Llama 4's: the token at position p sees those from the last multiple of the window on."""
    window, restarting = 128, CacheShard(128, causal=True, chunked=True)
    pairs = sum(position % window + 0.5 for position in range(length))
    assert restarting.seen(length * length / 2, length, 1) == pytest.approx(pairs, rel=0.06)
    assert restarting.seen(length, 1, 1) == (length if length <= window else window / 2)
    assert CacheShard(128, causal=True, chunked=False).seen(length, 1, 1) == min(length, window)
    assert restarting.kept(length) == min(length, window), "all of the last one may be read again"


def test_chunks_within_the_first_window_see_all_before_them() -> None:
    restarting = CacheShard(128, causal=True, chunked=True)
    assert restarting.seen(32 * (96 + 16), 32, 1) == 32 * 112
    assert restarting.seen(8 * 32 * (96 + 16), 8 * 32, 8) == 8 * 32 * 112
    assert restarting.seen(32 * (128 + 16), 32, 1) == 32 * 64


def test_local_layers_of_llama_4_read_half_a_window() -> None:
    """Scout, three of four of 48 layers with windows of 8,192."""
    local = next(one for one in cache_shards(known_model("llama-4-scout"), 8) if one.window)
    assert (local.window, local.chunked) == (8192, True)
    assert local.seen(32 * 100_000, 32, 32) == 32 * 4096


def test_a_text_that_is_computed_whole_sees_all_of_itself() -> None:
    whole, window = (CacheShard(size, causal=False, chunked=False) for size in (0, 64))
    assert whole.seen(512 * 256.0, 512, 1) == 512 * 512
    assert window.seen(512 * 256.0, 512, 1) == 512 * 129
    encoder, causal = (Roofline(known_model("bge-m3"), find_gpu("l4")) for _ in range(2))
    caches = tuple(replace(one, causal=True) for one in causal._attention.caches)
    causal._attention = replace(causal._attention, caches=caches)
    both, before = (one.costs(prompt(8192))[PREFILL].seconds for one in (encoder, causal))
    tile = efficiencies("l4").prefill_tile
    assert both / before == pytest.approx((8192 + tile) / (4096 + tile))


def test_keys_and_values_of_cached_latent_vectors_are_made_again_for_each_chunk() -> None:
    """DeepSeek-V3 on eight GPUs: 61 layers, 16 heads of 128 + 128 numbers each, from vectors of 512."""
    spec = known_model("deepseek-v3")
    one = latent_expansion(spec, 8)
    assert one.flops == 61 * 2 * 16 * 256 * 512
    assert one.product == 61 * (512 + 16 * 256), "read and written"
    assert one.copied == 61 * (2 * 576 + 16 * (2 * 128 + 64)), "gathered, and joined with the rotated key"
    model = Roofline(spec, find_gpu("h200"), 8, weights="fp8")
    whole, late = prompt(8192), prompt(512, start=100_000)
    made = model._attention.expanding(100_000)
    assert 0.02 < made < 0.07
    as_cached = Roofline(spec, find_gpu("h200"), 8, weights="fp8")
    as_cached._attention = replace(as_cached._attention, expansion=Expansion())
    seconds, pairs = (one.costs(late)[PREFILL].seconds for one in (model, as_cached))
    assert seconds == pytest.approx(pairs + made * model._factor * model._engine.kernels)
    assert model.costs(whole) == as_cached.costs(whole)
    assert [cached_context(one) for one in (whole, late, prompt(512, 100, chunks=3))] == [0, 100_000, 300]
    heads = Roofline(known_model("llama-3.1-8b"), find_gpu("h200"))
    assert latent_expansion(heads.spec, 1).flops == 0


def test_decodes_read_latent_vectors_as_they_lie() -> None:
    model = Roofline(known_model("deepseek-v3"), find_gpu("h200"), 8, weights="fp8")
    drafts = Features(4, 1, 4, 100_000, 3 * 100_002.0, prompt_chunks=0)
    assert cached_context(drafts) == 0 == model.costs(drafts)[PREFILL].seconds


def test_a_step_reads_the_bytes_that_memory_holds() -> None:
    """Beside int4, projections to values have a byte a weight, and each output of a matrix a factor of four bytes."""
    spec, own = known_model("llama-2-7b"), packing("int4")
    of_layer = 4 * 4096 * 4096 + 3 * 4096 * 11008
    scales = 4 * (4 * 4096 + 2 * 11008 + 4096)
    read = 32 * (0.625 * of_layer + (1.0625 - 0.625) * 4096 * 4096 + scales)
    assert matrix_bytes(spec, Parallelism(), own) == read
    assert matrix_bytes(spec, Parallelism(4), own) == read / 4
    head, norms = 2 * 32000 * 4096, 2 * 65 * 4096
    assert step_weight_bytes(spec, own) == read + head + norms
    plain = Roofline(spec, find_gpu("h100"), weights="int4").costs(Features(1, 1, 1, 0, 0.0))[0]
    assert plain.seconds > read / find_gpu("h100").bytes_per_s
    mixture = known_model("qwen3-30b-a3b")
    (experts,) = linear_shard(mixture, Parallelism()).experts
    of_experts = 128 * (0.625 * experts.elements + 4 * experts.outputs)
    assert experts.outputs == 48 * (2 * 768 + 2048)
    others = 2 * (table_parameters(mixture) + other_parameters(mixture))
    assert matrix_bytes(mixture, Parallelism(), own) + of_experts + others == step_weight_bytes(mixture, own)
    latent = known_model("deepseek-v3")
    every, part = (linear_shard(latent, one).matrices for one in (Parallelism(), Parallelism(8)))
    of_fp8 = [matrix_bytes(latent, one, packing("fp8", mixture=True)) for one in (Parallelism(), Parallelism(8))]
    routers = 58 * 256 * 7168
    assert of_fp8 == [every + routers, part + routers / 8], "which stay in bf16"
