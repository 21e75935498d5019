"""Memory: keys and values by KV heads, what is left for them, and what never shrinks when it must not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight.models.arithmetic import parameters, weight_bytes
from inflight.models.errors import ModelError
from inflight.models.known import known_model, known_names, read_model
from inflight.models.sequence_memory import kv_bytes_per_token, state_bytes
from inflight.models.spec import ModelSpec
from inflight.planning import estimate_kv_cache, max_concurrent_sequences
from inflight.planning.machine import Hardware
from inflight.simulate.hardware import HardwareError, data_sheets, find_gpu, packing
from inflight.simulate.parallelism import Parallelism, ParallelismError

PUBLISHED = Path(__file__).parents[1] / "models/published"
MODELS = st.sampled_from(["llama-3-8b", "llama-3-70b", "llama-2-7b", "qwen3-0.6b", "mixtral-8x7b"])


def published(name: str) -> ModelSpec:
    return read_model(name if name in known_names() else str(PUBLISHED / f"{name}.json"))


def test_checkpoints_of_mixtures_in_four_bits_keep_all_but_experts_in_bf16() -> None:
    """nvidia/DeepSeek-R1-NVFP4 takes about 400 GB; of a dense model all matrices are quantized."""
    model = known_model("deepseek-v3")
    assert 380e9 < weight_bytes(model, packing("nvfp4", mixture=True)) < 410e9
    assert weight_bytes(model, packing("nvfp4", mixture=True)) > weight_bytes(model, packing("nvfp4")) + 10e9
    budget = max_concurrent_sequences("deepseek-v3", "b200", 1000, tensor_parallel=8, weights="nvfp4")
    copied = 61 * 7168 * (1536 + 576) * 2 * 7 / 8  # compressing matrices, in bf16
    assert budget.weight_bytes == pytest.approx(weight_bytes(model, packing("nvfp4", mixture=True)) / 8 + copied)


def test_kv_heads_count_and_not_query_heads() -> None:
    estimate = estimate_kv_cache("llama-3-70b", 1)
    assert estimate.bytes_per_token == 2 * 80 * 8 * 128 * 2 == 320 * 1024
    assert estimate_kv_cache("llama-3-70b", 1, precision="fp8").bytes_per_token == 160 * 1024


def test_sequences_take_whole_blocks() -> None:
    one = estimate_kv_cache("llama-3-8b", 17)
    assert (one.blocks, one.bytes) == (2, 32 * 128 * 1024)
    assert estimate_kv_cache("llama-3-8b", 17, 10).blocks == 20


def test_beyond_the_kv_heads_every_gpu_holds_a_copy() -> None:
    eight, sixteen = (estimate_kv_cache("llama-3-70b", 160, tensor_parallel=degree) for degree in (8, 16))
    assert eight.bytes_per_token == sixteen.bytes_per_token == 40 * 1024
    assert sixteen.bytes_in_all == 2 * eight.bytes_in_all == 2 * 160 * 320 * 1024


@given(model=MODELS, tokens=st.integers(1, 5000), more=st.integers(0, 500), sequences=st.integers(1, 50))
def test_longer_context_never_takes_less(model: str, tokens: int, more: int, sequences: int) -> None:
    assert estimate_kv_cache(model, tokens + more, sequences).bytes >= estimate_kv_cache(model, tokens, sequences).bytes


@given(model=MODELS, gpu=st.sampled_from(sorted(data_sheets().gpus)), degree=st.sampled_from([1, 2, 4, 8]))
def test_more_gpus_never_hold_fewer_tokens(model: str, gpu: str, degree: int) -> None:
    fewer = max_concurrent_sequences(model, gpu, 1000, tensor_parallel=degree)
    more = max_concurrent_sequences(model, gpu, 1000, tensor_parallel=2 * degree)
    assert more.tokens >= fewer.tokens and more.sequences >= fewer.sequences


@given(tokens=st.floats(1, 1e5), factor=st.floats(1, 10))
def test_longer_sequences_are_never_more(tokens: float, factor: float) -> None:
    short, long = (max_concurrent_sequences("llama-3-8b", "h100", size) for size in (tokens, tokens * factor))
    assert long.sequences <= short.sequences


def test_the_parts_of_the_memory_add_up() -> None:
    budget = max_concurrent_sequences("llama-3-70b", "a100-80", 1320, tensor_parallel=4)
    parts = budget.weight_bytes + budget.activation_bytes + budget.reserve_bytes + budget.kv_bytes
    assert parts == pytest.approx(85e9)
    assert budget.weight_bytes == pytest.approx(141.1e9 / 4, rel=0.01)
    # an engine that takes 0.9 of an 80 GiB GPU leaves about this to its cache
    assert budget.kv_bytes == pytest.approx(0.9 * 85e9 - 141.1e9 / 4, rel=0.03)
    assert budget.sequences == budget.blocks // 83  # blocks of 16 tokens for each


def test_published_figures() -> None:
    """Llama-3-70B has 70.6 billion parameters, 141 GB in bf16, and 327,680 bytes of keys and values per token; an
    8-billion one 16.1 GB and 131,072."""
    large, small = known_model("llama-3-70b"), known_model("llama-3-8b")
    assert parameters(large) == pytest.approx(70.55e9, rel=1e-3)
    assert weight_bytes(large, packing("bf16")) == pytest.approx(141.1e9, rel=1e-3)
    assert (kv_bytes_per_token(large), kv_bytes_per_token(small)) == (327_680, 131_072)
    assert weight_bytes(small, packing("bf16")) == pytest.approx(16.06e9, rel=1e-3)


@given(model=MODELS, tokens=st.integers(1, 5000), degree=st.sampled_from([1, 2, 4, 8]))
def test_what_fits_is_what_the_estimate_says(model: str, tokens: int, degree: int) -> None:
    """So many sequences of this length fit in whole blocks, and one more does not."""
    budget = max_concurrent_sequences(model, "h200", tokens, tensor_parallel=degree)
    for sequences, fits in ((budget.sequences, True), (budget.sequences + 1, False)):
        if sequences:
            estimate = estimate_kv_cache(model, tokens, sequences, tensor_parallel=degree)
            assert (estimate.blocks <= budget.blocks) is fits
            assert fits is False or estimate.bytes <= budget.kv_bytes


def test_only_several_gpus_have_buffers_of_collectives() -> None:
    one, two = (max_concurrent_sequences("llama-3-8b", "l4", 1000, tensor_parallel=degree) for degree in (1, 2))
    assert two.reserve_bytes - one.reserve_bytes == pytest.approx(0.39e9)


def test_a_model_that_does_not_fit_has_room_for_no_sequence() -> None:
    budget = max_concurrent_sequences("llama-3-70b", "a100-80", 1000)
    assert (budget.kv_bytes, budget.tokens, budget.sequences) == (0, 0, 0)
    assert max_concurrent_sequences("llama-3-70b", "a100-80", 1000, weights="int8", tensor_parallel=2).sequences > 0


def test_wider_steps_leave_less() -> None:
    small, large = (
        max_concurrent_sequences("llama-3-8b", "l4", 1000, max_num_batched_tokens=tokens) for tokens in (512, 8192)
    )
    assert large.activation_bytes > small.activation_bytes and large.tokens < small.tokens


def test_layers_with_a_window_leave_room() -> None:
    """Half of gpt-oss-20b's layers keep 128 tokens: a long sequence takes little more than half of what all would."""
    model = published("gpt-oss-20b")
    layer = 2 * 8 * 64 * 2
    estimate = estimate_kv_cache(model, 1600, 3)
    assert estimate.bytes_per_token == 12 * layer
    assert estimate.bytes == 3 * 12 * layer * (1600 + 128)
    short, long = (max_concurrent_sequences(model, "h100", tokens) for tokens in (64, 1600))
    assert (short.kv_bytes_per_token, long.kv_bytes_per_token) == (24 * layer, 12 * layer * 1728 / 1600)
    assert long.sequences == int(long.kv_bytes // (estimate.bytes / 3 / 100)) // 100


def test_recurrent_states_are_set_aside_for_every_row() -> None:
    model = published("jamba-v0.1")
    gpu = replace(find_gpu("h200"), memory_gb=141)
    few, many = (max_concurrent_sequences(model, gpu, 1000, max_num_seqs=rows) for rows in (16, 128))
    assert (few.state_snapshots, many.state_snapshots) == (32, 256)
    assert many.state_bytes == 3 * 128 * state_bytes(model) == 8 * few.state_bytes
    logits = 112 * 4 * model.vocab_size
    assert few.kv_bytes - many.kv_bytes == pytest.approx(3 * 112 * state_bytes(model) + logits)
    assert estimate_kv_cache(model, 16).bytes == 16 * 16 * 1024 + state_bytes(model)


def test_a_machine_of_fewer_rows_has_more_blocks_beside_their_states() -> None:
    hardware = Hardware(model=published("qwen3.5-27b"), gpu=find_gpu("l40s"))
    few, many = (hardware.machine(2, 1000, rows=rows) for rows in (16, 256))
    assert (few.state_rows, many.state_rows) == (16, 256)
    assert few.blocks > many.blocks == 0
    assert Hardware(model=published("gpt-oss-20b"), gpu=find_gpu("l40s")).machine(2, 1000).state_rows == 0


def test_latent_vectors_are_on_every_gpu() -> None:
    one, eight = (estimate_kv_cache(published("deepseek-v3"), 16, tensor_parallel=degree) for degree in (1, 8))
    assert one.bytes_per_token == eight.bytes_per_token == 70_272
    assert eight.bytes_in_all == 8 * one.bytes_in_all


def test_every_gpu_has_the_matrices_whole_that_compress_latent_attention() -> None:
    model = known_model("deepseek-v3")
    every, compressing = weight_bytes(model, packing("fp8")), 61 * 7168 * (1536 + 512 + 64)
    budgets = {
        degree: max_concurrent_sequences(model, "h200", 1000, tensor_parallel=degree, weights="fp8")
        for degree in (1, 8, Parallelism(tensor=4, pipeline=2))
    }
    one, eight, staged = budgets.values()
    assert one.weight_bytes == every
    assert eight.weight_bytes == pytest.approx((every - compressing) / 8 + compressing)
    assert eight.weight_bytes - every / 8 == pytest.approx(0.81e9, rel=0.01)
    # 31 of 61 layers, and the larger of two tables of equal size
    tables = 2 * 129280 * 7168 * 2
    layers = (every - tables - compressing) / 4 + compressing
    assert staged.weight_bytes == pytest.approx(31 / 61 * layers + tables / 2 / 4)


def test_activations_of_a_mixture_are_those_of_the_experts_that_a_token_picks() -> None:
    budget = max_concurrent_sequences("mixtral-8x7b", "h200", 1000, max_num_batched_tokens=1000)
    token = 4 * 4096 + (32 + 2 * 8) * 128 + 3 * 2 * 14336
    assert budget.activation_bytes == 2 * 1000 * token + 4 * 256 * 32000


def test_objects_and_names_mean_the_same() -> None:
    by_name = max_concurrent_sequences("llama-3-8b", "h100", 100)
    assert by_name == max_concurrent_sequences(known_model("llama-3-8b"), find_gpu("h100"), 100)


def test_impossible_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="0 sequences of 10 tokens"):
        estimate_kv_cache("llama-3-8b", 10, 0)
    with pytest.raises(ValueError, match=r"0\.5 tokens"):
        max_concurrent_sequences("llama-3-8b", "h100", 0.5)
    with pytest.raises(ModelError):
        estimate_kv_cache("llama-9", 10)
    with pytest.raises(HardwareError):
        max_concurrent_sequences("llama-3-8b", "h9", 10)
    with pytest.raises(ParallelismError):
        estimate_kv_cache("llama-3-8b", 10, tensor_parallel=3)


def test_slots_of_adapters_take_memory_from_keys_and_values() -> None:
    """Llama-3-8B at rank 16: 2 bytes x 16 x (q, k, v, o of 4,096 and 1,024; gate, up, down of 14,336) x 32."""
    modules = [(4096, 4096), (1024, 4096), (1024, 4096), (4096, 4096), (14336, 4096), (14336, 4096), (4096, 14336)]
    of_one = 2 * 16 * 32 * sum(outputs + inputs for outputs, inputs in modules)
    without, with_slots = (
        max_concurrent_sequences("llama-3-8b", "l4", 1000, max_loras=slots, max_lora_rank=16) for slots in (0, 8)
    )
    assert with_slots.adapter_bytes == 8 * of_one and without.adapter_bytes == 0
    assert without.kv_bytes - with_slots.kv_bytes == pytest.approx(8 * of_one)
