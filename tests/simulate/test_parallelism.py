"""Ways to divide a model: sizes that they divide, the part of a GPU, and published times of experts' exchanges."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from msgspec import structs

from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.core.types.features import Features
from inflight.core.types.plan import Capacity
from inflight.models.known import known_model
from inflight.models.mixers.mla import LatentAttention
from inflight.models.spec import ModelSpec
from inflight.planning.memory import max_concurrent_sequences
from inflight.planning.steady import prompt_seconds
from inflight.simulate.collectives import all_reduce_seconds, expert_exchange_seconds
from inflight.simulate.costs import KINDS
from inflight.simulate.efficiency import efficiencies
from inflight.simulate.engine_costs import engine_costs
from inflight.simulate.hardware import find_gpu
from inflight.simulate.parallelism import Parallelism, ParallelismError, check_parallelism, largest_stage
from inflight.simulate.roofline import Roofline
from inflight.simulate.shards import busiest_batch, linear_shard, prompt_chunks
from inflight.simulate.simulation import Pool, SimulationSetup, simulate
from inflight.workload.workload import Entry, Workload

TENSOR, GROUPS = Parallelism(8), Parallelism(1, expert=8, data_attention=8)
STAGES = Parallelism(8, pipeline=2)
DECODES = Features(tokens=512, rows=512, samples=512, decode_context=512 * 4000, prefill_context=0.0)


def seconds(one: Parallelism, features: Features, kind: str | None = None, gpu: str = "h200") -> float:
    costs = Roofline(known_model("deepseek-v3"), find_gpu(gpu), one, weights="fp8").costs(features)
    return sum(cost.seconds for cost in costs) if kind is None else costs[KINDS.index(kind)].seconds


@pytest.mark.parametrize(
    ("shape", "one", "sentence"),
    [
        ("qwen2.5-7b", Parallelism(8), "28 query heads, which 8 GPUs cannot share evenly"),
        ("llama-3-8b", Parallelism(2, expert=2), "no experts to divide; leave --expert-parallel out"),
        ("llama-3-8b", Parallelism(data_attention=2), "--data-parallel 2 would be 2 engines"),
        (
            "llama-3-8b",
            Parallelism(pipeline=64),
            "32 layers, fewer than 64 pipeline stages",
        ),
        ("mixtral-8x7b", Parallelism(16, expert=16), "8 experts, which 16 GPUs cannot share evenly"),
        ("mixtral-8x7b", Parallelism(4, expert=8), "8 GPUs, which do not divide the 4 of a stage"),
    ],
)
def test_sizes_that_cannot_be_divided_are_named(shape: str, one: Parallelism, sentence: str) -> None:
    with pytest.raises(ParallelismError, match=sentence):
        check_parallelism(known_model(shape), one)


def test_a_parallelism_names_itself_and_vllms_options() -> None:
    assert [str(one) for one in (Parallelism(), TENSOR, GROUPS, STAGES)] == ["TP1", "TP8", "DP8 EP8", "TP8 PP2"]
    assert [one.gpus for one in (TENSOR, GROUPS, STAGES)] == [8, 8, 16]
    assert GROUPS.vllm_options == "--data-parallel-size 8 --enable-expert-parallel"
    assert STAGES.vllm_options == "--tensor-parallel-size 8 --pipeline-parallel-size 2"
    assert [one.is_tensor_alone for one in (Parallelism(), TENSOR, GROUPS, STAGES)] == [True, True, False, False]


def test_data_parallel_attention_divides_latent_vectors_that_tensor_parallelism_copies() -> None:
    """DeepSeek-V3 on eight H200: attention's weights stand on every GPU, and five times as many sequences fit."""
    tensor, groups = (
        max_concurrent_sequences("deepseek-v3", "h200", 4000, tensor_parallel=one, weights="fp8")
        for one in (TENSOR, GROUPS)
    )
    assert groups.weight_bytes > tensor.weight_bytes
    assert groups.sequences > 4 * tensor.sequences
    assert groups.kv_bytes_per_token == tensor.kv_bytes_per_token
    assert groups.blocks == 8 * groups.group_blocks


@pytest.mark.parametrize("shape", ["deepseek-v3", "llama-3.1-405b", "qwen3-30b-a3b"])
def test_stages_divide_weights_and_caches(shape: str) -> None:
    one, two = (
        max_concurrent_sequences(shape, "b200", 1000, tensor_parallel=Parallelism(4, pipeline=n)) for n in (1, 2)
    )
    spec = known_model(shape)
    share = largest_stage(spec, Parallelism(pipeline=2))
    assert 0.5 <= share < 0.52
    assert share * one.weight_bytes * 0.95 < two.weight_bytes < one.weight_bytes * (share + 0.05)
    assert two.kv_bytes_per_token == pytest.approx(share * one.kv_bytes_per_token)


def test_all_gpus_together_have_every_matrix_once_but_for_copies() -> None:
    spec = known_model("deepseek-v3")
    whole, tensor, groups, slices = (
        linear_shard(spec, one) for one in (Parallelism(), TENSOR, GROUPS, Parallelism(8, expert=8))
    )
    mixer = spec.layers[0].mixer
    assert isinstance(mixer, LatentAttention)
    compressed = len(spec.layers) * spec.hidden_size * (mixer.q_lora_rank + mixer.cached_width)
    assert 8 * tensor.matrices == pytest.approx(whole.matrices + 7 * compressed), "each GPU compresses for all heads"
    assert groups.matrices == whole.matrices, "each group computes attention of its own sequences"
    for one in (tensor, groups, slices):
        assert 8 * one.experts[0].elements == pytest.approx(whole.experts[0].elements)
    assert tensor.experts[0].width == 256 and groups.experts[0].width == slices.experts[0].width == 2048


def test_a_step_of_decodes_is_divided_evenly_and_a_lone_prompt_is_on_one_group() -> None:
    assert busiest_batch(DECODES, TENSOR, 4096) == DECODES
    one = busiest_batch(DECODES, GROUPS, 4096)
    assert (one.tokens, one.rows, one.samples, one.decode_context) == (64, 64, 64, 64 * 4000)
    prompt = Features(1024, 1, 1, 0, 1024 * 512.0)
    assert busiest_batch(prompt, GROUPS, 4096).tokens == 1024
    many = structs.replace(prompt, tokens=8 * 1024, rows=8, samples=0, prefill_context=8 * 1024 * 512.0)
    assert busiest_batch(many, GROUPS, 4096).tokens == pytest.approx(1024, abs=8)
    assert busiest_batch(many, STAGES, 4096).tokens == pytest.approx(4096, abs=8)


def test_a_lone_prompt_is_in_one_batch_of_a_pipeline_as_far_as_that_may_be_long() -> None:
    """All stages pass it whole; a longer one is divided, and several are in as many batches."""
    lone, many = (Features(1024, rows, rows, 0, 1024 * 512.0 / rows, prompt_chunks=rows) for rows in (1, 8))
    tokens = [busiest_batch(lone, STAGES, 4096, most).tokens for most in (None, 256, 768, 2048)]
    assert tokens == [512, 512, 768, 1024]
    assert busiest_batch(many, STAGES, 4096, 2048).tokens == 512
    beside = structs.replace(lone, tokens=1024 + 200, rows=201, samples=201, decode_context=200 * 1000)
    assert busiest_batch(beside, STAGES, 4096, 768).tokens == 768, "decodes are in each batch"
    groups = Parallelism(4, data_attention=2, pipeline=2)
    assert [busiest_batch(one, groups, 4096, 2048).tokens for one in (lone, many)] == [1024, 256]


@pytest.mark.parametrize("stages", [2, 4])
def test_stages_make_no_lone_prompt_faster(stages: int) -> None:
    """A full step of many prompts is as before; both hold for closed form and simulation."""
    model, gpu, prompt = known_model("llama-3.1-70b"), find_gpu("h100"), Features(2048, 1, 1, 0, 2048 * 1024.0, 0, 1)
    one, several = (Roofline(model, gpu, Parallelism(2, pipeline=n)) for n in (1, stages))
    bounded, budget = several.in_steps_of(2048 * stages), 2048 * stages
    assert one.in_steps_of(2048).seconds(prompt) == one.seconds(prompt)
    assert bounded.seconds(prompt) >= one.seconds(prompt)
    assert prompt_seconds(several, 2048, budget) == prompt_seconds(several, 2048, None) == bounded.seconds(prompt)
    full = Features(budget, 100 + 4, 100, 100 * 1000, (budget - 100) * 1024.0, 0, 4)
    assert bounded.seconds(full) == several.seconds(full)
    assert all(two.seconds(DECODES) == several.seconds(DECODES) for two in (bounded, several.in_steps_of(512)))
    for batch in (512, 1024):
        chunks = [Features(batch, 1, 0, 0, batch * (start + batch / 2), 0, 1) for start in range(0, 2048, batch)]
        stage = sum(map(one.seconds, chunks)) / len(chunks) / stages  # of a batch
        passes = prompt_seconds(several, 2048, batch * stages) / stage
        assert passes == pytest.approx(len(chunks) + stages - 1, rel=0.03)
    settings = EngineSettings(device="cuda", max_num_seqs=8, max_model_len=4096, max_num_batched_tokens=budget)
    pool = Pool(Capacity(1000, 16, 8, 4096, 1000), settings, SchedulingSettings(), lambda number: several)
    run = simulate(Workload((Entry(0.0, 2048, 2),), "alone"), SimulationSetup(pool))
    assert run.observations[0].ttft == pytest.approx(bounded.seconds(prompt))


def test_prompts_that_end_with_a_step_are_no_decodes() -> None:
    """Each gets a token, as a decode does; they are known by their pairs of queries and keys."""
    eight = Features(8 * 1024, 8, 8, 0, 8 * 1024 * 512.0)
    assert prompt_chunks(eight) == 8
    assert busiest_batch(eight, GROUPS, 4096).tokens == 1024
    beside = Features(8 * 1024 + 200, 208, 208, 200 * 1000, 8 * 1024 * 512.0)
    assert prompt_chunks(beside) == pytest.approx(8, abs=1)
    assert busiest_batch(beside, GROUPS, 4096).tokens == pytest.approx(1024 + 25, rel=0.05)
    later = Features(1024, 1, 0, 0, 1024 * 9000.0)
    assert prompt_chunks(later) == 1 and prompt_chunks(DECODES) == 0


def test_counted_prompts_are_divided_among_groups_however_much_of_them_is_cached() -> None:
    """Eight of 512 tokens behind 8,000 cached ones have the pairs of one prompt, and are one for each group."""
    cached = Features(8 * 512, 8, 8, 0, 8 * 512 * 8256.0)
    assert prompt_chunks(cached) == 1 and busiest_batch(cached, GROUPS, 4096).tokens > 4000
    cached = structs.replace(cached, prompt_chunks=8)
    one = busiest_batch(cached, GROUPS, 4096)
    assert (one.tokens, one.rows, one.prefill_context, one.prompt_chunks) == (512, 1, 512 * 8256.0, 1)
    beside = structs.replace(cached, tokens=8 * 512 + 80, rows=88, samples=88, decode_context=80 * 1000)
    one = busiest_batch(beside, GROUPS, 4096)
    assert (one.tokens, one.rows, one.prompt_chunks) == (512 + 10, 11, 1)


def test_drafts_are_no_prompts_and_are_divided_as_decodes() -> None:
    drafts = Features(512 * 4, 512, 512 * 4, 0, 512 * 3 * 1000.0, prompt_chunks=0)
    one = busiest_batch(drafts, GROUPS, 4096)
    assert (one.tokens, one.rows, one.prefill_context, one.prompt_chunks) == (64 * 4, 64, 64 * 3 * 1000.0, 0)


def test_the_busiest_gpu_of_whole_experts_has_more_than_the_mean_and_less_so_with_more_tokens() -> None:
    (experts,) = linear_shard(known_model("deepseek-v3"), GROUPS).experts
    factors = [experts.busiest(tokens) for tokens in (1, 16, 256, 4096)]
    assert factors == sorted(factors, reverse=True) and factors[-1] > 1
    assert experts.busiest(1) <= 8 and experts.max_read(1) <= 8
    (slices,) = linear_shard(known_model("deepseek-v3"), TENSOR).experts
    assert slices.busiest(16) == slices.max_read(16) == 1
    assert experts.busiest(1e9, skew=0.5) == pytest.approx(1 + 0.5 * math.sqrt(2 * math.log(8)), rel=1e-3)
    assert slices.busiest(16, skew=0.5) == 1, "each GPU has a slice of every expert"


# DeepEP's README (2025-05): 128 tokens of a GPU of 7,168 numbers to 8 of 256 experts on H800, dispatch and combine in
# microseconds, by GPUs.
LOW_LATENCY = {8: 77 + 114, 16: 118 + 195, 32: 155 + 273, 64: 173 + 314, 128: 192 + 369}


@pytest.mark.parametrize(("gpus", "microseconds"), LOW_LATENCY.items())
def test_published_times_of_tokens_on_their_way_to_experts_come_out(gpus: int, microseconds: float) -> None:
    h800 = replace(find_gpu("h100"), link_gb_per_s=200)
    assert expert_exchange_seconds(h800, gpus, 128, 8, 7168) * 1e6 == pytest.approx(microseconds, rel=0.1)


def test_a_domain_of_72_needs_no_network() -> None:
    node = find_gpu("h200")
    rack = replace(node, domain_gpus=72)
    assert expert_exchange_seconds(rack, 64, 128, 8, 7168) < expert_exchange_seconds(node, 64, 128, 8, 7168) / 3


def published_step(gpus: int, features: Features) -> float:
    """Seconds of a step of DeepSeek-V3 in SGLang on H100s with whole experts and data-parallel attention."""
    one = Parallelism(expert=gpus, data_attention=gpus)
    gpu, costs = find_gpu("h100"), engine_costs("sglang")
    return Roofline(known_model("deepseek-v3"), gpu, one, weights="fp8", engine=costs).seconds(features)


# SGLang on twelve nodes of H100 (lmsys.org/blog/2025-05-05-large-scale-ep): tokens per second of a node. Prompts by
# length on 32 GPUs, 16,384 tokens of each in a step; decodes of 256 rows of each of 72 GPUs, after prompts of 2,000.
PREFILL, DECODE = {1024: 57_674, 2048: 54_543, 4096: 50_302}, 22_282


@pytest.mark.parametrize(("length", "per_node"), PREFILL.items())
def test_published_prompts_over_nodes_come_out_within_a_tenth(length: int, per_node: int) -> None:
    tokens, rows = 32 * 16_384, 32 * 16_384 // length
    step = Features(tokens, rows, rows, 0, tokens * length / 2)
    assert 8 * 16_384 / published_step(32, step) == pytest.approx(per_node, rel=0.1)


def test_published_decodes_over_nodes_come_out_within_a_quarter() -> None:
    """On 64 GPUs, since 72 do not share 256 experts evenly: SGLang has copies of the busiest 32."""
    rows = 64 * 256
    step = Features(rows, rows, rows, rows * 2050, 0.0)
    assert 8 * 256 / published_step(64, step) == pytest.approx(DECODE, rel=0.25)


def test_over_nodes_one_half_of_a_batch_computes_while_the_other_travels() -> None:
    """The exchange of a large batch is hidden behind arithmetic; within a node it is not, and few tokens stay whole. A
    half of 256 rows of each GPU is sent once to each node that it chooses, one of 128 once for each choice."""
    over = Parallelism(expert=32, data_attention=32)
    model, within = (
        Roofline(known_model("deepseek-v3"), find_gpu("h200"), one, weights="fp8") for one in (over, GROUPS)
    )
    large, some, few = (Features(rows, rows, rows, rows * 2050, 0.0) for rows in (32 * 512, 32 * 256, 32))
    assert seconds(over, large, "all-reduce") == 0 < seconds(over, some, "all-reduce")
    assert model._expert_exchange(32 * 128) > model._expert_exchange(32 * 256)
    assert seconds(over, few, "all-reduce") == pytest.approx(model._expert_exchange(32))
    assert seconds(GROUPS, DECODES, "all-reduce") == pytest.approx(within._expert_exchange(512))


def test_all_reduces_of_attention_are_not_hidden() -> None:
    """Only tokens on their way to experts travel beside the other half: attention's next product needs its sum."""
    reduced, alone = Parallelism(8, expert=16, data_attention=2), Parallelism(expert=16, data_attention=16)
    crowd = Features(8192, 8192, 8192, 8192 * 2000, 0.0)
    each = all_reduce_seconds(find_gpu("h200"), 8, 2048 * 7168 * 2)
    assert seconds(reduced, crowd, "all-reduce") > 61 * 2 * each * 0.7 > seconds(alone, crowd, "all-reduce")


def test_each_stage_copies_the_blocks_of_its_own_layers() -> None:
    model = known_model("llama-3.1-405b")
    moved = structs.replace(DECODES, moved_blocks=1000)
    one, two = (Roofline(model, find_gpu("h100"), Parallelism(8, pipeline=n), weights="fp8") for n in (1, 2))
    copies = [each.seconds(moved) - each.seconds(DECODES) for each in (one, two)]
    assert copies[1] == pytest.approx(copies[0] / 2)


def test_with_many_sequences_data_parallel_attention_is_faster_and_with_few_tensor_parallelism() -> None:
    """Under tensor parallelism each GPU reads the latent vectors of all rows; a group computes all heads of its own."""
    gpu, shares, mixer = find_gpu("h200"), efficiencies("h200"), known_model("deepseek-v3").layers[0].mixer
    assert isinstance(mixer, LatentAttention)
    read = 8 * mixer.cached_width * 2 / (gpu.bytes_per_s * shares.decode_memory)
    computed = mixer.pair_flops(compressed=True) / (gpu.flops_per_s("bf16") * shares.decode_compute)
    ratio = seconds(TENSOR, DECODES, "decode attention") / seconds(GROUPS, DECODES, "decode attention")
    assert ratio == pytest.approx(read / max(computed, read / 8), rel=0.01)
    assert seconds(GROUPS, DECODES) < 0.8 * seconds(TENSOR, DECODES)
    alone = Features(1, 1, 1, 4000, 0.0)
    assert seconds(TENSOR, alone) < seconds(GROUPS, alone)


def test_stages_serve_more_sequences_and_make_no_single_one_faster() -> None:
    model = known_model("llama-3.1-405b")
    one, two = (Roofline(model, find_gpu("h100"), Parallelism(8, pipeline=n), weights="fp8") for n in (1, 2))
    alone, crowd = Features(1, 1, 1, 1000, 0.0), Features(512, 512, 512, 512 * 1000, 0.0)
    assert two.seconds(alone) >= one.seconds(alone)
    assert two.seconds(crowd) < 0.75 * one.seconds(crowd)


def test_the_last_stage_computes_logits_of_each_batch_and_one_host_serves_all() -> None:
    """Each of four batches reads the whole head, and the front end has the tokens of all."""
    spec, gpu, engine = known_model("llama-3.1-70b"), find_gpu("h100"), replace(engine_costs("vllm"), token=1e-2)
    one, four = (Roofline(spec, gpu, Parallelism(2, pipeline=n), engine=engine) for n in (1, 4))
    crowd, alone = Features(256, 256, 256, 256 * 500, 0.0), Features(1, 1, 1, 500, 0.0)
    quarter, logits = Features(64, 64, 64, 64 * 500, 0.0), KINDS.index("logits head")
    assert four.costs(crowd)[logits].seconds == pytest.approx(4 * one.costs(quarter)[logits].seconds)
    assert four.costs(alone)[logits] == one.costs(alone)[logits]
    assert four.seconds(crowd) == pytest.approx(2.56) == one.seconds(crowd)


# Llama-3.1-405B in fp8 on eight H200 under TensorRT-LLM (NVIDIA's blog of 2024-10-11): output tokens per second of one
# stream and at best, by tensor parallelism and by stages. Lengths are not named: 2,048 and 128 as in its later tables.
BY_TENSOR, BY_STAGES = (56, 506), (10, 764)


def test_published_stages_are_slow_for_one_stream_and_serve_more_than_tensor_parallelism() -> None:
    costs = engine_costs("tensorrt-llm")
    for one, (alone, best) in ((TENSOR, BY_TENSOR), (Parallelism(pipeline=8), BY_STAGES)):
        model = Roofline(known_model("llama-3.1-405b"), find_gpu("h200"), one, weights="fp8", kv="fp8", engine=costs)
        rows, prompts = 512, 512 * 16
        full = Features(rows + prompts, rows + 4, rows, rows * 2100, prompts * 1024.0)
        assert 1 / model.seconds(Features(1, 1, 1, 2100, 0.0)) == pytest.approx(alone, rel=0.25)
        assert rows / model.seconds(full) == pytest.approx(best, rel=0.25)


def test_layers_that_stages_cannot_share_evenly_make_the_others_wait() -> None:
    llama = known_model("llama-3-8b")
    odd: ModelSpec = structs.replace(llama, layers=llama.layers[:31])
    even, uneven = (Roofline(one, find_gpu("h100"), Parallelism(pipeline=2)) for one in (llama, odd))
    assert uneven.seconds(DECODES) == pytest.approx(even.seconds(DECODES), rel=0.03)
