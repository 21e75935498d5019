"""Published runs: enough of them, halved by chance, none faster than its GPU, and predicted by the own scheduler."""

from __future__ import annotations

import math
import random
import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.published.comparison import details, errors_of, groups, summary
from benchmarks.published.defaults import default_limits
from benchmarks.published.fit import interval, model_of, stepped, written
from benchmarks.published.lengths import lengths_of
from benchmarks.published.measurements import Figures, Measurement, read_measurements
from benchmarks.published.prediction import (
    Prediction,
    marlin_padding,
    predict,
    simulated,
    step_model,
    with_interval,
)
from benchmarks.published.rival import Rival, _config, _quantization, read_rival
from benchmarks.published.verdict import verdict
from inflight.core.types.features import Features
from inflight.models.arithmetic import active_parameters
from inflight.simulate.efficiency import latency_spread, spread
from inflight.simulate.hardware import find_gpu
from inflight.simulate.steps import StepModel

ALL = read_measurements()
NO_RIVAL = Rival("", "", {}, {})
BELIEVED = [one for one in ALL if not one.doubt]


def run(text: str) -> Measurement:
    return next(one for one in ALL if text in one.name)


def test_there_are_enough_and_each_has_a_source_and_a_day() -> None:
    assert len(BELIEVED) >= 30
    assert all(one.url and one.date[:2] == "20" for one in ALL)
    assert len({one.name for one in ALL}) == len(ALL)
    assert sum(one.figures.ttft_ms is not None for one in BELIEVED) > 30
    assert sum(one.figures.tpot_ms is not None for one in BELIEVED) > 30


def test_about_half_is_held_out_and_always_a_whole_source() -> None:
    held_out = sum(one.held_out for one in BELIEVED)
    assert 0.35 < held_out / len(BELIEVED) < 0.65
    first = ALL[0]
    assert replace(first, prompt=1, figures=Figures()).held_out == first.held_out, "figures and settings say nothing"


@pytest.mark.parametrize("measurement", BELIEVED, ids=lambda one: one.name)
def test_no_run_computes_faster_than_its_gpus(measurement: Measurement) -> None:
    speed = measurement.figures.output_tokens_per_s
    if speed is None:
        return
    tokens = speed * (1 + measurement.prompt / measurement.output)
    model = step_model(measurement)
    peak = measurement.gpu.flops_per_s(model.weights) * measurement.parallelism.gpus
    assert 2 * active_parameters(measurement.spec) * tokens < peak


def test_lengths_of_a_dataset_have_the_published_means_and_its_spread() -> None:
    pairs = lengths_of("sharegpt", 217, 202, 1000)
    prompts, outputs = zip(*pairs, strict=True)
    assert statistics.fmean(prompts) == pytest.approx(217, rel=0.02)
    assert statistics.fmean(outputs) == pytest.approx(202, rel=0.02)
    assert statistics.median(prompts) < 150 and min(outputs) >= 1
    assert lengths_of("sharegpt", 217, 202, 1000) == pairs
    assert lengths_of("", 5, 3, 2) == [(5, 3), (5, 3)]
    pairs = lengths_of("uniform", 900, 90, 1000)
    assert statistics.fmean(prompt for prompt, _ in pairs) == pytest.approx(900, rel=0.01)
    assert {min(pairs)[0], max(pairs)[0]} <= set(range(799, 1002)) and min(output for _, output in pairs) * 10 > 799
    pairs = lengths_of("random", 500, 50, 1000)
    assert statistics.fmean(prompt for prompt, _ in pairs) == pytest.approx(500, rel=0.05)
    assert min(pairs)[0] < 20 and 980 < max(pairs)[0] <= 1000, "evenly from one to twice the mean"
    with pytest.raises(ValueError, match="'alpaca' is not known"):
        lengths_of("alpaca", 1, 1, 1)


def test_a_held_out_run_comes_out_within_a_fifth() -> None:
    found = predict(run("qwen3-8b bf16, h100, vllm 0.11.0 async, 128/1024, 32 at once"))
    assert found.figures.output_tokens_per_s == pytest.approx(3910, rel=0.2)
    assert found.low.output_tokens_per_s < 3910 < found.high.output_tokens_per_s  # type: ignore[operator]


def test_each_figure_has_the_ends_of_its_own_spread() -> None:
    one = run("qwen3-8b bf16, h100, vllm 0.11.0 async, 128/1024, 32 at once")
    found = with_interval(one, Figures(1000.0, 100.0, 10.0))
    slow, fast = found.low, found.high
    assert slow.output_tokens_per_s == 1000 / spread("h100", False, "low")
    assert slow.ttft_ms == 100 * latency_spread("ttft", "low") and fast.ttft_ms == 100 * latency_spread("ttft", "high")
    assert slow.tpot_ms == 10 * latency_spread("tpot", "low") and fast.tpot_ms == 10 * latency_spread("tpot", "high")
    assert fast.output_tokens_per_s > 1000 > slow.output_tokens_per_s  # type: ignore[operator]


def test_steps_of_sglang_have_prompts_or_decodes_but_never_both() -> None:
    """All first tokens come before any second one, where memory has room for all."""
    sglang = run("glm-4.5 fp8, 4 × h200, sglang 0.5.3, 128/4, 1000")
    steps: list[Features] = []

    def seen(model: StepModel) -> StepModel:
        return Seen(model, steps)

    simulated(replace(sglang, requests=200), seen)
    first = next(index for index, one in enumerate(steps) if one.tokens == 8192)  # before it, costs are asked for
    prompts = sum(one.prefill_context > 0 for one in steps[first:])
    assert [one.rows for one in steps[first : first + prompts]] == [64, 64, 64, 8]
    assert not any(one.decode_context for one in steps[first : first + prompts])
    assert [one.rows for one in steps[first + prompts :]] == [200, 200, 200], "decodes wait for all prompts"


class Seen:
    """A step model that keeps the features of its steps."""

    def __init__(self, model: StepModel, steps: list[Features]):
        self.name, self.extrapolates, self._model, self._steps = model.name, model.extrapolates, model, steps

    def seconds(self, features: Features) -> float:
        self._steps.append(features)
        return self._model.seconds(features)


def test_limits_where_a_source_names_none_are_the_engine_s_own() -> None:
    """Follow the GPU's memory in vLLM and SGLang, and the data set in trtllm-bench: 70B in fp8 on an H200 leaves
    67 GB, 0.95 of which holds the 1,000 + 1,000 tokens of 193 sequences, in whole steps of 32."""
    assert default_limits("vllm", find_gpu("a100-80")) == (256, 2048) == default_limits("vllm", find_gpu("l40s"))
    assert default_limits("vllm", find_gpu("h100")) == (1024, 8192)
    assert (
        default_limits("sglang", find_gpu("h200"))[1] == 8192
        and default_limits("sglang", find_gpu("mi300x"))[1] == 16384
    )
    bench = run("llama-3.1-70b fp8 kv fp8, h200, tensorrt-llm 1.0, 1000/1000")
    assert bench.max_num_seqs % 32 == 0 and 160 <= bench.max_num_seqs <= 256
    assert bench.max_num_batched_tokens == 2048, "never fewer"
    prompts = run("llama-3.1-70b fp8 kv fp8, h200, tensorrt-llm 1.0, 2048/128")
    assert prompts.max_num_batched_tokens > 3 * 1024, "of which most sequences are inside their prompts"
    windows = run("gpt-oss-120b mxfp4, h200, tensorrt-llm 1.2, 1024/8192")
    assert windows.max_num_seqs == 128, "as if no layer had a window"


def test_marlin_fills_up_experts_whose_width_is_no_multiple_of_its_tiles() -> None:
    """gpt-oss-120b's 61 GiB are 66 on an A100, and as published on GPUs with other kernels."""
    assert 4.8 < marlin_padding(run("gpt-oss-120b mxfp4, a100-80, vllm 0.11.0, 32000")) / 2**30 < 5.4
    assert not marlin_padding(run("gpt-oss-120b mxfp4, h100, vllm 0.10.2, 32000"))
    assert not marlin_padding(run("qwen3-32b bf16, a100-80, vllm 0.11.0, 32000"))


def test_a_model_that_does_not_fit_has_no_figures() -> None:
    assert simulated(replace(run("qwen3-32b bf16, a100-80, vllm 0.11.0, 32000"), memory_share=0.8)) == Figures()


def test_streams_of_a_steady_loop_fall_out_of_step() -> None:
    """Five streams of equal requests that begin together wait for each other's prompts; later they hardly do."""
    steady = run("tensorrt-llm nim-1.8.0, 5000/500, 5 streams")
    together = replace(steady, steady=False)
    assert steady.warm_up_requests == 5 and not together.warm_up_requests
    assert len(steady.workload.entries) == steady.requests + 5
    assert simulated(steady).ttft_ms < 0.6 * simulated(together).ttft_ms  # type: ignore[operator]


def test_groups_have_the_errors_of_each_engine_gpu_and_kind_of_model() -> None:
    one = run("qwen3-8b bf16, h100, vllm 0.11.0 async, 128/1024, 32 at")
    predicted = Prediction(Figures(1.2 * 3910), Figures(1.0), Figures(1e6))
    table = groups([one], {one.name: predicted})
    for name in ("engine vllm async", "GPU h100", "model dense, bf16"):
        assert f"| {name} | held out | 1 | 20% | 20% |  |  | 100% |" in table


@pytest.mark.parametrize("measurement", ALL, ids=lambda one: one.name)
def test_the_fit_evaluates_the_model_that_predicts(measurement: Measurement) -> None:
    fitted, predicting = model_of(measurement, written()), step_model(measurement)
    assert fitted.__getstate__() == predicting.__getstate__()


def test_a_step_of_the_fit_goes_no_further_than_a_parameter_can() -> None:
    """Experts with widened weights are at most as fast as dense matrices with such weights, and shares at most 1; the
    others step as is best beside that."""
    start = written()
    keys = list(start)
    slopes = np.zeros((1, len(keys)))
    for key in (("a100", "expert-widened"), ("else", "fp8-compute"), ("a100", "sinks")):
        slopes[0, keys.index(key)] = -1.0
    found = start
    for _ in range(12):
        found = stepped(found, np.array([0.5]), slopes)
    dense = found["a100", "linear-compute"] * found["else", "widened-compute"]
    assert found["a100", "expert-compute"] * found["a100", "expert-widened"] == pytest.approx(dense)
    assert found["else", "fp8-compute"] == pytest.approx(1)
    assert found["a100", "sinks"] > start["a100", "sinks"]


def test_an_interval_leaves_out_tails_in_which_each_source_counts_alike() -> None:
    many = [("large", math.exp(number / 100)) for number in range(100)]
    few = [("small", math.exp(-1.0)), ("small", math.exp(2.0))]
    assert interval(many, 0.25) == pytest.approx((1.0, math.exp(0.99)), rel=0.01), "of one source half is unknown"
    assert interval(many + few, 0.25) == pytest.approx((math.exp(-1.0), math.exp(2.0)), rel=0.05)
    assert interval(many + few, 0.4)[1] < math.exp(0.99), "two runs of a source weigh as much as a hundred of another"


def test_an_interval_holds_as_many_runs_of_other_sources_as_it_is_meant_to() -> None:
    """The sources are thirteen with a run each, in the mean over many draws; their own quantiles would hold fewer."""
    draws, held = random.Random(0), 0
    for _ in range(4000):
        low, high = interval([(str(number), math.exp(draws.gauss(0, 1))) for number in range(13)])
        held += low < math.exp(draws.gauss(0, 1)) < high
    assert held / 4000 == pytest.approx(0.8, abs=0.02)


def test_errors_are_of_runs_that_have_the_figure() -> None:
    two = [run("qwen3-8b bf16, h100, vllm 0.11.0 async, 128/1024, 1 at"), run("128/1024, 32 at once")]
    predicted = {one.name: Figures(1.1 * one.figures.output_tokens_per_s) for one in two}  # type: ignore[operator]
    found = errors_of(two, predicted, "output_tokens_per_s")
    assert found.runs == 2 and found.median == pytest.approx(0.1) and found.p90 == pytest.approx(0.1)
    assert errors_of(two, predicted, "ttft_ms").runs == 0
    ours = {one.name: Prediction(predicted[one.name], Figures(1.0), Figures(1e6)) for one in two}
    assert "| held out | output tokens/s | 2 | 10% | 10% | 100% |" in summary(two, ours, {})


def test_a_run_that_is_predicted_not_to_fit_is_as_far_off_as_can_be_and_is_counted() -> None:
    one = run("qwen3-8b bf16, h100, vllm 0.11.0 async, 128/1024, 1 at")
    speed = one.figures.output_tokens_per_s
    assert speed is not None
    found = errors_of([one], {one.name: Figures()}, "output_tokens_per_s", {one.name: with_interval(one, Figures())})
    assert (found.runs, found.median, found.within) == (1, 1.0, 0.0)
    ours = {one.name: with_interval(one, Figures())}
    assert "1 run that was measured does not fit into memory as predicted" in verdict([one], ours, NO_RIVAL)
    assert "does not fit" in details([one], ours, NO_RIVAL)


def test_the_verdict_names_missed_aims_groups_and_what_is_left_out() -> None:
    one = run("qwen3-8b bf16, h100, vllm 0.11.0 async, 128/1024, 1 at")
    speed = one.figures.output_tokens_per_s
    assert speed is not None
    off = Figures(1.5 * speed)
    rival = replace(NO_RIVAL, version="1", date="2026-01-01", figures={one.name: Figures(1.01 * speed)})
    many = [replace(one, requests=number, doubt="" if number else "as if") for number in range(11)]
    ours = {each.name: with_interval(each, off) for each in many}
    rival.figures.update({each.name: Figures(speed) for each in many})
    said = verdict(many, ours, rival)
    assert "output tokens/s's median error is 50.0% in place of 10%" in said
    assert "engine vllm async 0%" in said and "1 of 11 runs are not believed" in said
    assert "AISimulate is nearer in the median of output tokens/s (0.0%, ours 50.0%)" in said
    near = verdict(many, {each.name: with_interval(each, one.figures) for each in many}, NO_RIVAL)
    assert "all are met" in near and "AISimulate" not in near


def test_the_rival_is_asked_for_the_formats_that_its_own_checkpoints_have() -> None:
    def asked(text: str) -> dict[str, str]:
        measurement = run(text)
        return _quantization(measurement, any(layer.mlp.experts for layer in measurement.spec.layers))

    assert asked("gpt-oss-20b mxfp4 kv fp8, b200, tensorrt-llm")["moe_quant_mode"] == "w4a8_mxfp4_mxfp8"
    assert "moe_quant_mode" not in asked("gpt-oss-120b mxfp4, h200, tensorrt-llm")
    assert asked("deepseek-v3 fp8, 8 × h200, vllm")["gemm_quant_mode"] == "fp8_block"
    assert asked("llama-3.1-70b fp8 kv fp8, h200, tensorrt-llm")["gemm_quant_mode"] == "fp8_static"
    assert asked("qwen3-8b fp8, h100, sglang")["gemm_quant_mode"] == "fp8_block"
    groups_of_four = run("deepseek-v3 nvfp4 kv fp8, 4 × b200 (DP4 EP4), tensorrt-llm 1.2, 1024/1024")
    limits = _config(groups_of_four, Path())["engine"]["workers"]["aggregated"]["scheduler"]
    assert limits["max_batched_tokens"] == groups_of_four.max_num_batched_tokens / 4, "of each group"


def test_what_the_rival_said_is_of_runs_that_are_there() -> None:
    rival = read_rival()
    names = {one.name for one in ALL}
    assert set(rival.figures) | set(rival.refused) <= names
