"""The roofline step model: published layer and collective times come out of it, and it moves as physics does."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.core.types.features import Features
from inflight.core.types.plan import Capacity
from inflight.models.known import known_model, known_names, read_model
from inflight.models.mixers.attention import Attention
from inflight.models.registry import read_spec
from inflight.models.sequence_memory import state_bytes
from inflight.models.spec import ModelSpec
from inflight.simulate.collectives import all_reduce_seconds
from inflight.simulate.costs import KINDS
from inflight.simulate.efficiency import Case, efficiencies, spread
from inflight.simulate.engine_costs import engine_costs
from inflight.simulate.hardware import data_sheets, find_gpu
from inflight.simulate.parallelism import Parallelism, ParallelismError
from inflight.simulate.roofline import STATE_CHUNK, STATE_PASSES, Roofline
from inflight.simulate.shards import linear_shard, min_kv_heads
from inflight.simulate.simulation import Pool, SimulationSetup, in_engine_steps, simulate
from inflight.simulate.steps import kind_of
from inflight.workload.workload import Entry, Workload

# Milliseconds of one layer without attention, by tokens of the step: medians of published profiles (Vidur).
LAYERS = {
    ("a100-80", "llama-3-70b", 1): {1: 1.119, 512: 4.296, 2048: 15.64, 4096: 31.75},
    ("a100-80", "llama-3-70b", 2): {1: 0.567, 512: 2.203, 2048: 8.10, 4096: 16.15},
    ("a100-80", "llama-3-70b", 4): {1: 0.311, 512: 1.124, 2048: 4.26, 4096: 8.13},
    ("a100-80", "llama-3-70b", 8): {1: 0.179, 512: 0.651, 2048: 2.33, 4096: 4.48},
    ("a100-80", "llama-3-8b", 1): {1: 0.303, 32: 0.34, 64: 0.35, 128: 0.41, 256: 0.61, 512: 1.08, 2048: 4.43},
    ("h100", "llama-2-70b", 1): {1: 0.625, 512: 1.256, 2048: 5.29, 4096: 10.86},
    ("h100", "llama-2-70b", 2): {1: 0.319, 512: 0.709, 2048: 2.82, 4096: 5.50},
    ("h100", "llama-2-70b", 4): {1: 0.179, 512: 0.375, 2048: 1.42, 4096: 2.77},
    ("h100", "llama-2-70b", 8): {1: 0.105, 512: 0.221, 2048: 0.795, 4096: 1.54},
    ("h100", "llama-2-7b", 1): {1: 0.175, 512: 0.375, 2048: 1.27, 4096: 2.59},
}
DECODES = Features(tokens=32, rows=32, samples=32, decode_context=32 * 1000, prefill_context=0.0)
PROMPT = Features(tokens=2048, rows=1, samples=1, decode_context=0, prefill_context=2048 * 1024)


def published(name: str) -> ModelSpec:
    path = Path(__file__).parents[1] / f"models/published/{name}.json"
    return read_model(name if name in known_names() else str(path))


def model(gpu: str = "a100-80", shape: str = "llama-3-70b", degree: int = 4, **more: object) -> Roofline:
    return Roofline(known_model(shape), find_gpu(gpu), degree, **more)  # type: ignore[arg-type]


def part(held: Features, kind: str, roofline: Roofline) -> float:
    return roofline.costs(held)[KINDS.index(kind)].seconds


@pytest.mark.parametrize(("where", "figures"), LAYERS.items())
def test_published_layer_times_come_out_within_a_tenth(where: tuple[str, str, int], figures: dict[int, float]) -> None:
    gpu, shape, degree = where
    layers = len(known_model(shape).layers)
    fixed = efficiencies(gpu).layer_launch
    for tokens, milliseconds in figures.items():
        held = Features(tokens, tokens, 0, 0, 0.0)
        layer = part(held, "linear", model(gpu, shape, degree)) / layers + fixed
        assert layer * 1e3 == pytest.approx(milliseconds, rel=0.10), tokens


@pytest.mark.parametrize(
    ("gpu", "gpus", "size", "microseconds"),
    [
        ("h100", 8, 2**20, 19.4),
        ("h100", 2, 64 * 2**20, 469 / 2),
        ("h100", 2, 256 * 2**20, 1706 / 2),
        ("h200", 4, 4 * 2**20, 51.8),
        ("a100-80", 8, 32 * 2**20, 594 / 2),
        ("b200", 8, 8 * 2**20, 62.4),
        ("a100-80-pcie", 4, 45e6, 2920),
        ("a100-80", 16, 45e6, 4890),
    ],
)
def test_published_all_reduce_times_come_out(gpu: str, gpus: int, size: float, microseconds: float) -> None:
    """Large ones are NCCL's, at half of the time of vLLM's own."""
    assert all_reduce_seconds(find_gpu(gpu), gpus, size) * 1e6 == pytest.approx(microseconds, rel=0.25)


# One stream: tokens of a prompt, and what others published of it and of the answer in tokens per second; 0: of none.
# docs/planning-model.md has their sources.
ALONE = {
    ("rtx-4090", "llama-3-8b", "bf16"): (512, 9382, 54.8),
    ("rtx-3090", "llama-3-8b", "bf16"): (512, 4445, 47.4),
    ("gb10", "qwen3-30b-a3b", "int8"): (2048, 3176, 60.9),
    ("strix-halo", "llama-3.2-3b", "int8"): (512, 2162, 60.9),
    ("m3-max", "llama-3-8b", "bf16"): (512, 770, 22.0),
    ("xeon-6980p", "llama-3.2-3b", "bf16"): (1024, 5919, 58.9),
    ("xeon-6980p", "llama-3.2-3b", "int8"): (1024, 8063, 0),
}


@pytest.mark.parametrize(("where", "figures"), ALONE.items())
def test_a_published_stream_alone_comes_out_within_a_sixth(
    where: tuple[str, str, str], figures: tuple[int, float, float]
) -> None:
    gpu, model, weights = where
    prompt, reading, answering = figures
    roofline = Roofline(known_model(model), find_gpu(gpu), weights=weights)  # type: ignore[arg-type]
    assert prompt / roofline.seconds(Features(prompt, 1, 1, 0, prompt**2 / 2)) == pytest.approx(reading, rel=1 / 6)
    if answering:
        assert 1 / roofline.seconds(Features(1, 1, 1, prompt, 0.0)) == pytest.approx(answering, rel=1 / 6)


@pytest.mark.parametrize("gpu", data_sheets().gpus)
@pytest.mark.parametrize("gpus", [2, 4, 8, 16])
def test_larger_messages_never_take_less(gpu: str, gpus: int) -> None:
    times = [all_reduce_seconds(find_gpu(gpu), gpus, 2.0**power) for power in range(8, 30)]
    assert times == sorted(times)
    assert all_reduce_seconds(find_gpu(gpu), 1, 1e6) == 0


def test_classes_are_added_and_each_has_its_own_bottleneck() -> None:
    mixed = structs.replace(PROMPT, decode_context=DECODES.decode_context)
    roofline = model()
    assert roofline.seconds(mixed) == pytest.approx(sum(cost.seconds for cost in roofline.costs(mixed)))
    assert roofline.seconds(mixed) > roofline.seconds(PROMPT)
    roofline = model()
    assert roofline.costs(DECODES)[0].bound == "bandwidth"
    assert roofline.costs(PROMPT)[0].bound == "compute"


@pytest.mark.parametrize("held", [DECODES, PROMPT])
@pytest.mark.parametrize("gpu", ["a100-80", "h100", "l40s", "mi300x"])
def test_the_slow_end_is_slower_and_the_fast_end_faster(gpu: str, held: Features) -> None:
    low, typical, high = (model(gpu, case=case).seconds(held) for case in ("low", "typical", "high"))
    assert low > typical > high


@pytest.mark.parametrize(
    ("gpu", "source"),
    [
        ("h200", "published"),
        ("b300", "published"),
        ("mi300x", "published"),
        ("l40s", "published"),
        ("l4", "estimated"),
        ("h20", "estimated"),
        ("l20", "estimated"),
        ("epyc-9654", "estimated"),
    ],
)
def test_the_source_of_the_shares_is_named(gpu: str, source: str) -> None:
    assert f"data sheet and {source} efficiencies" in model(gpu, "llama-3-8b", 1).name


def test_an_overlapped_host_takes_the_longer_of_the_two() -> None:
    """A host that is slower than the GPU sets the pace alone; one that is quicker adds what passes between steps."""
    engine = replace(engine_costs("vllm"), worker_step=0.0)
    quick = replace(engine, step=1e-4, row=0.0)
    without = model(engine=replace(quick, step=0.0)).seconds(DECODES)
    assert model(engine=quick).seconds(DECODES) == pytest.approx(without + 1e-4)
    slow = replace(engine, step=0.5, row=1.01 * without / DECODES.rows)  # its rows take longer than the GPU
    assert model(engine=slow).seconds(DECODES) == pytest.approx(0.5 + 1.01 * without)


def test_graphs_of_an_engine_whose_prompts_are_none_hold_decodes_alone() -> None:
    """SGLang's: a prompt of 256 tokens takes as long to launch as one of 257."""
    prompts = [Features(tokens, 1, 1, 0, tokens**2 / 2) for tokens in (8, 256, 257)]
    launched = [part(one, "launch", model("h100", "llama-3-8b", 1, engine=engine_costs("sglang"))) for one in prompts]
    assert min(launched) > 0.01
    seconds = [model("h100", "llama-3-8b", 1, engine=engine_costs("sglang")).seconds(one) for one in prompts]
    assert seconds[0] == pytest.approx(seconds[2]) and seconds[1] == pytest.approx(seconds[2])
    decodes = model("h100", "llama-3-8b", 1, engine=engine_costs("sglang"))
    assert part(Features(8, 8, 8, 8000, 0.0), "launch", decodes) < 0.01


@pytest.mark.parametrize(
    ("gpu", "like"), [("b300", "b200"), ("gb200", "b200"), ("gb300", "b200"), ("a800-80", "a100-80")]
)
def test_gpus_with_another_one_s_kernels_have_its_collectives_over_the_same_link(gpu: str, like: str) -> None:
    same = find_gpu(gpu).link_gb_per_s == find_gpu(like).link_gb_per_s
    for gpus in (2, 4, 8):
        seconds = [all_reduce_seconds(find_gpu(one), gpus, 16384) for one in (gpu, like)]
        assert (seconds[0] == seconds[1]) == same
    slower = replace(find_gpu(like), link_gb_per_s=100)
    assert all_reduce_seconds(slower, 4, 16 * 2**20) > all_reduce_seconds(find_gpu(like), 4, 16 * 2**20)


def test_processors_reach_their_rate_with_few_tokens_and_small_layers() -> None:
    """As this engine's kernels do on two cores: 0.91 of the peak with 32 tokens, 0.94 with 512."""
    box = replace(find_gpu("epyc-9654"), bandwidth_gb_per_s=1e6)
    roofline = Roofline(known_model("qwen2.5-0.5b"), box)
    few, many = (part(Features(one, one, 0, 0, 0.0), "linear", roofline) / one for one in (32, 512))
    assert few == pytest.approx(many)
    gpu = Roofline(known_model("qwen2.5-0.5b"), replace(find_gpu("h100"), bandwidth_gb_per_s=1e6))
    few, many = (part(Features(one, one, 0, 0, 0.0), "linear", gpu) / one for one in (32, 512))
    assert few > 1.5 * many


def test_a_step_without_a_graph_is_launched_layer_by_layer_and_one_of_prompts_alone_at_its_own_pace() -> None:
    mixed, decodes = Features(257, 250, 250, 250 * 500, 7 * 250.0), Features(300, 300, 300, 300 * 500, 0.0)
    prompt = Features(257, 1, 1, 0, 257 * 129)
    engine = replace(engine_costs("sglang"), eager_layer=1e-3, prompt_layer=2e-3)
    layers = len(known_model("llama-3.1-70b").layers)
    for held, least in ((mixed, 1e-3), (decodes, 1e-3), (prompt, 2e-3)):
        roofline = model("h100", "llama-3.1-70b", weights="fp8", engine=engine)
        assert roofline.seconds(held) == pytest.approx(layers * least + engine.step)
    same = model("h100", "llama-3.1-70b", weights="fp8", engine=replace(engine, prompt_layer=None))
    assert same.seconds(prompt) == pytest.approx(layers * 1e-3 + engine.step)


def test_a_step_of_whole_prompts_takes_the_forward_passes_of_its_engine() -> None:
    """Each reads the experts again; another engine takes a single one."""
    whole, one = (Features(n * 1024, n, n, 0, n * 1024 * 512.0, prompt_chunks=n) for n in (16, 1))
    mixture = model("h100", "qwen3-30b-a3b", 1)
    cut = mixture.in_steps_of(None, 1024)
    assert cut.seconds(whole) == pytest.approx(16 * mixture.seconds(one), rel=0.01)
    assert cut.seconds(whole) > 1.3 * mixture.seconds(whole)
    assert cut.seconds(one) == mixture.seconds(one)
    assert mixture.extrapolates(whole) and not cut.extrapolates(whole)
    other = model("h100", "qwen3-30b-a3b", 1, engine=engine_costs("vllm"))
    assert other.in_steps_of(None, 1024).seconds(whole) == other.seconds(whole)


def test_texts_that_are_not_cut_share_passes_of_as_many_tokens_as_one_may_have() -> None:
    """An engine's pass has room for the longest text, or for its budget where that is more."""
    texts = Features(64 * 512, 64, 0, 0, 64 * 512 * 256.0, prompt_chunks=64)
    scheduling = SchedulingSettings(strategy="continuous")
    encoder = model("h100", "bge-m3", 1)
    for length, passes in ((8192, 4), (1024, 8)):
        settings = EngineSettings(max_num_batched_tokens=4096, max_model_len=length)
        taken = in_engine_steps(encoder, settings, scheduling).seconds(texts)
        one = encoder.seconds(Features(64 * 512 // passes, 64 // passes, 0, 0, 64 // passes * 512 * 256.0))
        assert taken == pytest.approx(passes * one, rel=0.05)


@pytest.mark.parametrize("held", [Features(257, 250, 250, 250 * 500, 7 * 250.0), Features(300, 300, 300, 150_000, 0.0)])
def test_steps_of_decodes_take_about_as_long_under_any_engine(held: Features) -> None:
    names = ("vllm", "sglang", "tensorrt-llm")
    taken = [model("h100", "llama-3.1-70b", weights="fp8", engine=engine_costs(one)).seconds(held) for one in names]
    assert max(taken) < 1.3 * min(taken)


@pytest.mark.parametrize("kind", KINDS)
def test_more_work_never_takes_less(kind: str) -> None:
    more = Features(2 * DECODES.tokens, 64, 64, 2 * DECODES.decode_context, 1e6, 8)
    assert part(more, kind, model()) >= part(DECODES, kind, model())


def test_fewer_bits_are_read_faster_and_computed_faster_only_where_there_are_units() -> None:
    for gpu, faster in (("a100-80", False), ("h100", True)):
        plain, quantized = model(gpu), model(gpu, weights="fp8")
        assert part(DECODES, "linear", quantized) < 0.6 * part(DECODES, "linear", plain)
        ratio = part(PROMPT, "linear", quantized) / part(PROMPT, "linear", plain)
        assert (ratio < 0.6) == faster
    plain, quantized = model("h100"), model("h100", weights="int4")
    assert part(DECODES, "linear", quantized) < 0.35 * part(DECODES, "linear", plain)
    assert part(PROMPT, "linear", quantized) >= part(PROMPT, "linear", plain), "weights are widened first"
    half = part(DECODES, "decode attention", model(kv="fp8")) / part(DECODES, "decode attention", model())
    assert half == pytest.approx(0.5)


def test_copied_kv_heads_and_latent_vectors_are_read_on_every_gpu() -> None:
    """Eight KV heads on sixteen GPUs: each reads one head, as each of eight GPUs does."""
    eight, sixteen = model(degree=8), model(degree=16)
    assert part(DECODES, "decode attention", sixteen) == pytest.approx(part(DECODES, "decode attention", eight))
    one, eight = (Roofline(published("deepseek-v3"), find_gpu("h200"), degree) for degree in (1, 8))
    assert part(DECODES, "decode attention", eight) > part(DECODES, "decode attention", one) / 3
    assert part(DECODES, "linear", one) == pytest.approx(8 * part(DECODES, "linear", eight), rel=0.1)
    assert part(DECODES, "linear", one) < 8 * part(DECODES, "linear", eight), "each GPU compresses for all heads"
    names = ("deepseek-v3", "jamba-v0.1", "qwen3-next-80b-a3b")
    assert [min_kv_heads(published(name)) for name in names] == [1, 8, 2]


def test_mixtures_read_the_experts_that_are_touched_and_dense_layers_whole() -> None:
    roofline = model(shape="mixtral-8x7b", degree=1)
    one = part(Features(1, 1, 1, 0, 0.0), "linear", roofline)
    many = part(Features(32, 32, 32, 0, 0.0), "linear", roofline)
    assert 2.5 < many / one < 4.2  # two of eight experts, then all of them; attention is read either way
    # Llama 4 Maverick: a token computes with 17 of 400 billion parameters, and reads little more.
    maverick = Roofline(published("llama-4-maverick"), find_gpu("h200"), 8)
    scale = (
        8
        * part(Features(1, 1, 1, 1, 0.0), "linear", maverick)
        / part(Features(1, 1, 1, 1, 0.0), "linear", model(gpu="h200", shape="llama-3-8b", degree=1))
    )
    assert 1.7 < scale < 2.8


def test_tiny_experts_and_few_tokens_an_expert_compute_slowly() -> None:
    """A layer of Qwen3-235B on one of eight H100: timed kernels take 0.20 to 1.29 ms for 32 to 8,192 tokens."""
    roofline = Roofline(published("qwen3-235b-a22b"), find_gpu("h100"), 8)
    timed = {32: 0.202, 256: 0.278, 1024: 0.340, 4096: 0.762, 8192: 1.286}
    (experts,) = roofline._matrices.experts
    for tokens, milliseconds in timed.items():
        layer = roofline._experts(tokens, experts).seconds / experts.layers
        assert layer * 1e3 == pytest.approx(milliseconds, rel=0.4), tokens


def expert_seconds(shape: str, gpu: str, degree: int, engine: str, **more: object) -> float:
    roofline = Roofline(published(shape), find_gpu(gpu), degree, engine=engine_costs(engine), **more)  # type: ignore[arg-type]
    return roofline._experts(8192, roofline._matrices.experts[0]).seconds


def test_experts_in_bf16_are_slower_where_the_engine_has_no_configuration_of_their_kernel() -> None:
    """On an A100 vLLM has one of Mixtral's experts under four GPUs, and none of GLM-4.5-Air's; TensorRT-LLM tries."""
    assert expert_seconds("glm-4.5-air", "a100-80", 4, "vllm") > 1.2 * expert_seconds(
        "glm-4.5-air", "a100-80", 4, "tensorrt-llm"
    )
    assert expert_seconds("mixtral-8x7b", "a100-80", 4, "vllm") == expert_seconds(
        "mixtral-8x7b", "a100-80", 4, "tensorrt-llm"
    )
    # Of Qwen3-235B's, 192 wide on each of eight GPUs, vLLM has one and SGLang has none.
    shares, (experts,) = efficiencies("a100-80"), linear_shard(published("qwen3-235b-a22b"), Parallelism(8)).experts
    reached = [
        Roofline(published("qwen3-235b-a22b"), find_gpu("a100-80"), 8, engine=engine_costs(name))._expert_share(
            2, experts
        )
        for name in ("vllm", "sglang")
    ]
    tuned = shares.expert_compute * 192 / (192 + shares.expert_width)
    assert reached == [pytest.approx(tuned), shares.expert_untuned] and tuned > shares.expert_untuned
    fewer_bits = [expert_seconds("glm-4.5-air", "a100-80", 4, one, weights="int4") for one in ("vllm", "tensorrt-llm")]
    assert fewer_bits[0] == fewer_bits[1], "other kernels widen weights"


def test_experts_in_bf16_on_an_h100_are_slower_under_older_versions_alone() -> None:
    """Until 0.17 vLLM's configuration for all others had small tiles; GLM-4.5's, under eight GPUs, have none."""
    older, newer, own = (expert_seconds("glm-4.5", "h200", 8, one) for one in ("vllm-sync", "vllm", "tensorrt-llm"))
    assert older > 1.05 * newer == pytest.approx(1.05 * own)
    older, newer = (expert_seconds("qwen3-235b-a22b", "h100", 8, one) for one in ("vllm-sync", "vllm"))
    assert older == newer, "vLLM has one of these"


def test_experts_in_eight_bits_need_more_width_where_their_kernels_are_faster() -> None:
    """TensorRT-LLM's for weights with one scale a tensor are faster than those for one a block, more so if wide."""
    wide, narrow = (
        expert_seconds("mixtral-8x7b", "h100", gpus, "vllm", weights="fp8")
        / expert_seconds("mixtral-8x7b", "h100", gpus, "tensorrt-llm", weights="fp8")
        for gpus in (1, 8)
    )
    assert wide > narrow > 1
    in_blocks = engine_costs("tensorrt-llm").of_model("deepseek_v3")
    assert (in_blocks.experts_fp8, in_blocks.experts_fp8_width) == (1.0, 1.0), "all engines have the same for these"


def test_a_step_of_several_gpus_has_their_workers_to_wait_for() -> None:
    costs = engine_costs("vllm-sync")
    alone, several = (
        [part(DECODES, "launch", model("h100", "llama-3.1-8b", gpus, engine=one)) for gpus in (1, 2)]
        for one in (replace(costs, worker_step=0.0), costs)
    )
    assert costs.worker_step > 0
    assert several[0] == alone[0] and several[1] == pytest.approx(alone[1] + costs.worker_step)


def test_layers_with_experts_have_a_launch_of_their_precision() -> None:
    shares = replace(efficiencies("b200"), expert_launch=1.0, expert_fp8_launch=2.0, expert_fp4_launch=3.0)
    for weights, seconds in (("bf16", 1.0), ("fp8", 2.0), ("nvfp4", 3.0), ("mxfp4", 3.0), ("int4", 1.0)):
        roofline = Roofline(published("qwen3-235b-a22b"), find_gpu("b200"), 8, weights=weights, shares=shares)  # type: ignore[arg-type]
        assert part(DECODES, "launch", roofline) == pytest.approx(94 * seconds, rel=0.01), weights


def test_experts_in_nvfp4_are_slower_in_an_engine_that_takes_the_kernels_of_cutlass() -> None:
    """Where a GPU of a data centre has faster ones, and in nvfp4 alone."""
    engines = [replace(engine_costs("sglang"), experts_cutlass=taken) for taken in (False, True)]
    factor = efficiencies("b200").expert_cutlass
    for gpu, weights, expected in (("b200", "nvfp4", factor), ("b200", "fp8", 1.0), ("rtx-pro-6000", "nvfp4", 1.0)):
        own, cutlass = (
            Roofline(published("qwen3-30b-a3b"), find_gpu(gpu), weights=weights, engine=engine)  # type: ignore[arg-type]
            for engine in engines
        )
        item = own._expert_item
        assert cutlass._expert_factor(item) == own._expert_factor(item) * expected, gpu
        assert (part(PROMPT, "linear", cutlass) > part(PROMPT, "linear", own)) == (expected < 1), gpu


def test_attention_computes_in_fp8_where_cache_and_units_are_and_the_engine_does() -> None:
    """Decodes of latent attention, which wait for arithmetic; prompts in TensorRT-LLM alone."""
    latent, heads = published("deepseek-v3"), known_model("llama-3-70b")
    decodes = Features(256, 256, 256, 256 * 4000, 0.0)

    def seconds(spec: ModelSpec, gpu: str, held: Features, kind: str, kv: str, engine: str) -> float:
        return part(held, kind, Roofline(spec, find_gpu(gpu), kv=kv, engine=engine_costs(engine)))  # type: ignore[arg-type]

    quick, slow = (seconds(latent, "b200", decodes, "decode attention", kv, "vllm") for kv in ("fp8", "bf16"))
    assert slow / quick == pytest.approx(efficiencies("b200").decode_fp8, rel=0.01)
    for engine, factor in (("tensorrt-llm", efficiencies("h100").prefill_fp8), ("vllm", 1.0)):
        quick, slow = (seconds(heads, "h100", PROMPT, "prefill attention", kv, engine) for kv in ("fp8", "bf16"))
        assert slow / quick == pytest.approx(factor), engine
    quick, slow = (seconds(heads, "a100-80", PROMPT, "prefill attention", kv, "tensorrt-llm") for kv in ("fp8", "bf16"))
    assert slow == quick


def test_other_engines_have_checkpoints_of_four_bits_with_fewer_bytes() -> None:
    """AWQ's and GPTQ's groups of 128 take 0.52 bytes a weight, this engine's of 32 0.625 and values a byte."""
    own, others = (engine_costs(name).packing("int4") for name in ("inflight", "vllm"))
    assert own.matrix == 0.625 and own.values == 1.0625
    assert others.matrix == 0.52 and others.values is None
    assert engine_costs("vllm").packing("fp8") == engine_costs("inflight").packing("fp8")
    alone = structs.replace(DECODES, tokens=1, rows=1, samples=1)
    own_steps, other_steps = (
        part(alone, "linear", model(weights="int4", engine=replace(engine_costs(name), kernels=1.0)))
        for name in ("inflight", "vllm")
    )
    assert 0.8 < other_steps / own_steps < 0.9


def test_a_gpu_without_published_runs_has_the_widest_interval() -> None:
    def width(gpu: str) -> float:
        return spread(gpu, True, "low") / spread(gpu, True, "high")

    assert width("l40s") == width("rtx-5090") >= width("h200") == width("a100-80") == width("b200")


def test_layers_with_a_window_stop_growing_with_the_context() -> None:
    """gpt-oss-20b: beyond 128 tokens only half of the layers read more."""
    roofline = Roofline(published("gpt-oss-20b"), find_gpu("h100"))

    def moved(context: int) -> float:
        return part(Features(32, 32, 32, 32 * context, 0.0), "decode attention", roofline)

    assert moved(100) - moved(50) == pytest.approx(2 * (moved(250) - moved(200)))
    short, long = (part(Features(n, 1, 1, 0, n * n / 2), "prefill attention", roofline) for n in (1024, 2048))
    assert 2.2 < long / short < 3.9  # a query costs tiles, too, however little it sees


def test_drafts_compute_on_what_their_row_reads_once() -> None:
    """64 rows with three drafts each: a step of decodes with as many tokens, which computes more pairs."""
    rows, context = 64, 4000
    drafts = Features(4 * rows, rows, 4 * rows, rows * context, rows * 3 * (context + 2.0), prompt_chunks=0)
    plain = structs.replace(drafts, prefill_context=0.0)
    heads, latent = model("h100", "llama-3.1-8b", 1), Roofline(published("deepseek-v3"), find_gpu("h100"))
    assert heads.costs(drafts) == heads.costs(plain), "attention waits for keys and values"
    assert part(drafts, "prefill attention", latent) == 0
    waits = part(drafts, "decode attention", latent) / part(plain, "decode attention", latent)
    assert waits == pytest.approx(4, rel=0.03), "latent attention waits for arithmetic"
    assert kind_of(drafts) == "decode"


def test_a_processor_has_no_cuda_graphs() -> None:
    """Nine rows are no sixteen there, and long steps are not launched layer by layer."""
    launched = replace(engine_costs(), eager_layer=1.0, prompt_layer=1.0)
    for rows in (3, 5, 9, 17, 600):
        decodes = Features(rows, rows, rows, rows * 700, 0.0)
        own, plain = (
            model("epyc-9654", "llama-3.1-8b", 1, weights="int8", engine=engine)
            for engine in (launched, replace(launched, graph_step=1))
        )
        assert own.seconds(decodes) == plain.seconds(decodes) < 32
    nine, sixteen = (part(Features(n, n, n, 0, 0.0), "linear", model("h100")) for n in (9, 16))
    assert nine == sixteen


def test_states_are_read_and_written_for_every_row() -> None:
    roofline = Roofline(published("jamba-v0.1"), find_gpu("h200"))
    alone = part(Features(1, 1, 1, 1, 0.0), "decode attention", roofline)
    assert part(Features(8, 8, 8, 8, 0.0), "decode attention", roofline) == pytest.approx(8 * alone)
    assert alone > 2 * state_bytes(roofline.spec) / find_gpu("h200").bytes_per_s


def states_of(held: Features, roofline: Roofline) -> tuple[float, float]:
    """Seconds of a step's attention with states beyond those of attention, of prompts and of decodes."""
    with_states = roofline._work(held, held.tokens)[1:3]
    attention = roofline._attention.of_prompts(held), roofline._attention.of_decodes(held)
    prompts, decodes = (one.seconds - other.seconds for one, other in zip(with_states, attention, strict=True))
    return prompts, decodes


def test_convolutions_are_read_and_written_though_nothing_is_computed_on_them() -> None:
    """LFM2-1.2B: ten layers keep two vectors of 2,048 numbers each; they are launched as other layers are."""
    spec = read_spec(
        {
            "model_type": "lfm2",
            "hidden_size": 2048,
            "intermediate_size": 12288,
            "num_hidden_layers": 16,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "vocab_size": 65536,
            "full_attn_idxs": [2, 5, 8, 10, 12, 14],
            "conv_L_cache": 3,
        }
    )
    gpu = find_gpu("h100")
    roofline, bandwidth = Roofline(spec, gpu), gpu.bytes_per_s * efficiencies("h100").recurrent_memory
    assert state_bytes(spec) == 10 * 2 * 2048 * 2
    once = 2 * state_bytes(spec) / bandwidth  # read and written
    assert states_of(DECODES, roofline) == (0, pytest.approx(DECODES.rows * once))
    assert states_of(PROMPT, roofline) == (pytest.approx(STATE_PASSES * once), 0)
    assert not roofline._recurrent


def test_a_prompt_in_a_step_makes_the_states_of_all_rows_pass_the_kernels_of_chunks() -> None:
    """A row that decodes fills a chunk; one that computes a prompt does not, whether it ends with the step or not."""
    spec, gpu, shares = published("qwen3-next-80b-a3b"), find_gpu("h200"), efficiencies("h200")
    roofline = Roofline(spec, gpu, 4)
    token = roofline._matrices.state_flops / (gpu.flops_per_s("bf16") * shares.recurrent_compute)
    row = 2 * state_bytes(spec) / 4 / (gpu.bytes_per_s * shares.recurrent_memory)
    decodes = Features(100, 100, 100, 100, 0.0)
    assert states_of(decodes, roofline) == (0, pytest.approx(100 * (token + row)))
    whole = Features(512, 8, 8, 0, 8 * 64 * 32.0, prompt_chunks=8)
    assert states_of(whole, roofline) == (pytest.approx(512 * token + 8 * STATE_PASSES * row), 0)
    assert states_of(structs.replace(whole, prompt_chunks=None), roofline) == states_of(whole, roofline)
    mixed = structs.replace(whole, tokens=612, rows=108, samples=108, decode_context=100)
    expected = (512 + 100 * STATE_CHUNK) * token + 108 * STATE_PASSES * row
    assert states_of(mixed, roofline) == (pytest.approx(expected), 0)


def test_the_slower_part_of_attention_and_states_is_the_bottleneck() -> None:
    """A long prompt's products are, or, of many decodes beside a short one, the reading and writing of states."""
    roofline, kind = Roofline(published("qwen3-next-80b-a3b"), find_gpu("h200"), 4), KINDS.index("prefill attention")
    long, crowd = Features(8192, 1, 1, 0, 8192 * 4096.0), Features(1002, 1001, 1001, 1000, 2.0, prompt_chunks=1)
    assert [roofline.costs(held)[kind].bound for held in (long, crowd)] == ["compute", "bandwidth"]
    assert roofline._attention.of_prompts(crowd).bound == "compute"


def test_swapped_blocks_cost_their_copy() -> None:
    moved = structs.replace(DECODES, moved_blocks=1000)
    roofline = model()
    extra = roofline.seconds(moved) - roofline.seconds(DECODES)
    assert extra == pytest.approx(1000 * 16 * (320 * 1024 / 4) / 25e9)


def test_it_says_what_it_rests_on_and_where_it_guesses() -> None:
    assert "not calibrated on your hardware" in model().name
    assert model().extrapolates(PROMPT) is None
    assert "9,000" in (model().extrapolates(structs.replace(PROMPT, tokens=9000)) or "")
    assert "MB" in (model(shape="qwen2.5-0.5b", degree=1).extrapolates(PROMPT) or "")
    assert model("epyc-9654", "qwen2.5-0.5b", 1).extrapolates(PROMPT) is None, "its profile is of such layers"


@pytest.mark.parametrize(
    ("shape", "degree", "number"), [("qwen2.5-7b", 8, "28"), ("llama-3-70b", 3, "64"), ("qwen2.5-7b", 0, "28")]
)
def test_heads_that_cannot_be_divided_are_refused(shape: str, degree: int, number: str) -> None:
    with pytest.raises(ParallelismError, match=number):
        model(shape=shape, degree=degree)


def test_heads_that_can_neither_be_shared_nor_copied_are_refused() -> None:
    llama = known_model("llama-3-8b")
    layer = llama.layers[0]
    assert isinstance(layer.mixer, Attention)
    mixer = structs.replace(layer.mixer, heads=36, kv_heads=6)
    odd = structs.replace(llama, layers=(structs.replace(layer, mixer=mixer),))
    with pytest.raises(ParallelismError, match="6 KV heads, which 4 GPUs"):
        Roofline(odd, find_gpu("a100-80"), 4)
    with pytest.raises(ParallelismError, match="16 heads of linear attention, which 3 GPUs"):
        Roofline(published("qwen3.5-27b"), find_gpu("h200"), 3)


# Milliseconds of steps that this engine measured on an H200, Llama-3.1-8B's shape (docs/results/gpu.md).
OWN_DECODES = {1: 4.62, 8: 4.96, 32: 6.16, 128: 10.36, 256: 16.28}  # by rows at 1,024 tokens of context
OWN_PROMPTS = {2048: 51.1, 8192: 239.7}


def test_steps_that_this_engine_measured_come_out_as_measured() -> None:
    roofline = Roofline(known_model("llama-3.1-8b"), find_gpu("h200"))
    for rows, milliseconds in OWN_DECODES.items():
        step = Features(rows, rows, rows, rows * 1024, 0.0)
        assert roofline.seconds(step) * 1e3 == pytest.approx(milliseconds, rel=0.1), rows
    for tokens, milliseconds in OWN_PROMPTS.items():
        prompt = Features(tokens, 1, 1, 0, tokens * tokens / 2)
        assert roofline.seconds(prompt) * 1e3 == pytest.approx(milliseconds, rel=0.15), tokens


@pytest.mark.parametrize(
    ("shape", "gpu", "one"),
    [
        ("deepseek-v3", "h200", Parallelism(8)),
        ("llama-4-scout", "h200", Parallelism(8)),
        ("llama-3.1-70b", "h100", Parallelism(4, pipeline=2)),
        ("qwen3-30b-a3b", "epyc-9654", Parallelism()),
    ],
)
def test_steps_that_are_skipped_take_as_long_as_one_by_one(shape: str, gpu: str, one: Parallelism) -> None:
    """Chunks behind cached tokens, windows that restart, stages and processors included."""
    roofline = Roofline(known_model(shape), find_gpu(gpu), one, weights="int8")
    lengths = itertools.product((500, 3000, 9000), (5, 100, 300))
    entries = tuple(Entry(0.7 * number, *length) for number, length in enumerate(lengths))
    settings = EngineSettings(device="cuda", max_num_seqs=16, max_model_len=16384, max_num_batched_tokens=1024)
    pool = Pool(Capacity(20_000, 16, 16, 16384, 1000), settings, SchedulingSettings(), lambda number: roofline)
    runs = [simulate(Workload(entries, "mixed"), SimulationSetup(pool, fast_forward=fast)) for fast in (True, False)]
    assert runs[0].steps == runs[1].steps
    assert [each.ended for each in runs[0].observations] == [each.ended for each in runs[1].observations]


# vLLM on an H100, Qwen3-8B in bf16, 128 tokens in and 1,024 out: streams → tokens per second.
SERVED = {1: 146, 32: 3_910, 256: 13_567}


@pytest.mark.parametrize(("streams", "tokens_per_s"), SERVED.items())
def test_a_published_run_comes_out_within_a_fifth_and_between_the_ends(streams: int, tokens_per_s: float) -> None:
    found = {case: served("qwen3-8b", "h100", streams, case) for case in ("low", "typical", "high")}
    assert found["typical"] == pytest.approx(tokens_per_s, rel=0.2)
    assert found["low"] < tokens_per_s < found["high"]


def served(shape: str, gpu: str, streams: int, case: Case) -> float:
    """Tokens per second of so many requests that come at once, as the engine's own scheduler runs them."""
    capacity = Capacity(streams * 80, 16, streams, 2048, 1000)
    settings = EngineSettings(device="cuda", max_num_seqs=streams, max_model_len=2048)
    model = Roofline(known_model(shape), find_gpu(gpu), case=case)
    pool = Pool(capacity, settings, SchedulingSettings().ending_early(0), lambda number: model)
    run = simulate(Workload((Entry(0.0, 128, 1024),) * streams, "at once"), SimulationSetup(pool))
    return streams * 1024 / max(one.ended for one in run.observations)
