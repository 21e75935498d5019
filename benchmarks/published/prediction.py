"""Predict a published run: the engine's own scheduler serves its requests in virtual time on the GPU's step model."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from benchmarks.published.measurements import Figures, Measurement
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.core.types.plan import Capacity
from inflight.metrics.observation import Observation
from inflight.planning.machine import Hardware
from inflight.planning.memory import MemoryBudget, max_concurrent_sequences
from inflight.simulate.efficiency import Case, Efficiencies, latency_spread, spread
from inflight.simulate.engine_costs import EngineCosts, engine_costs
from inflight.simulate.hardware import Precision, packing
from inflight.simulate.roofline import Roofline
from inflight.simulate.shards import linear_shard
from inflight.simulate.simulation import Pool, SimulationSetup, simulate
from inflight.simulate.steps import StepModel

_OVERHEAD = 0.85e9  # bytes that an engine takes beside weights, activations and keys and values
# vLLM measures its memory with max_num_seqs rows that are drawn by top-k and top-p: logits in float32, sorted ones with
# their indices in int64, probabilities, their sums and the result, of the whole vocabulary on every GPU.
_SAMPLER_BYTES = 28
_SGLANG = "benchmarks.published.prefill_first:PrefillFirst"


@dataclass(frozen=True, slots=True)
class Prediction:
    """Figures of a run as predicted, and at the slow and at the fast end of each figure's spread."""

    figures: Figures
    low: Figures
    high: Figures


def predict(measurement: Measurement) -> Prediction:
    """Predict a run."""
    return with_interval(measurement, simulated(measurement))


def with_interval(measurement: Measurement, figures: Figures) -> Prediction:
    """Return the prediction of a run from its figures, of which each has its own spread."""
    return Prediction(figures, _at_end(measurement, figures, "low"), _at_end(measurement, figures, "high"))


def _at_end(measurement: Measurement, figures: Figures, case: Case) -> Figures:
    with_experts = measurement.spec.has_experts
    speed = 1 / spread(measurement.gpu.kernels, with_experts, case)
    factors = speed, latency_spread("ttft", case), latency_spread("tpot", case)
    values = figures.output_tokens_per_s, figures.ttft_ms, figures.tpot_ms
    return Figures(*(one and one * by for one, by in zip(values, factors, strict=True)))


def costs_name(measurement: Measurement) -> str:
    """Return by which name the costs of the run's engine are known."""
    engine = measurement.engine
    return "vllm-sync" if engine.name == "vllm" and not engine.asynchronous else engine.name


def costs_of(measurement: Measurement, costs: EngineCosts | None = None) -> EngineCosts:
    """Return the costs of the run's engine, for its model. costs: of the engine for any; None: as known."""
    costs = costs or engine_costs(costs_name(measurement))
    return without_larger_graphs(costs.of_model(measurement.spec.family))


def without_larger_graphs(costs: EngineCosts) -> EngineCosts:
    """Return the costs of runs with the engine's own graphs: it launches decodes beyond the largest one (SGLang's
    --cuda-graph-max-bs) as it does prompts."""
    return costs if costs.prompt_layer is None else replace(costs, eager_layer=costs.prompt_layer)


def step_model(
    measurement: Measurement, engine: EngineCosts | None = None, shares: Efficiencies | None = None
) -> Roofline:
    """Return the step model of the run's engine and GPUs, with other costs and efficiencies where they are given."""
    return Roofline(
        measurement.spec,
        measurement.gpu,
        measurement.parallelism,
        weights=precision(measurement),
        kv=measurement.kv,
        engine=engine or costs_of(measurement),
        shares=shares,
    )


def precision(measurement: Measurement) -> Precision:
    return measurement.weights  # type: ignore[return-value]


def simulated(
    measurement: Measurement,
    wrapped: Callable[[StepModel], StepModel] = lambda model: model,
    fast_forward: bool = True,
) -> Figures:
    """Return the figures of a run.

    Args:
        wrapped: returns the step model to use, of the run's own.
        fast_forward: whether foreseen steps are left out, of which the model is then asked more often than there are.
    """
    costs = costs_of(measurement)
    model = wrapped(step_model(measurement, costs))
    rows = min(measurement.max_num_seqs, measurement.requests, measurement.concurrency or measurement.requests)
    capacity = _capacity(measurement, rows)
    settings = EngineSettings(
        device="cuda",
        max_num_seqs=rows,
        max_num_batched_tokens=max(rows, measurement.max_num_batched_tokens),
        max_model_len=capacity.max_model_len,
        enable_prefix_caching=False,
    )
    pool = Pool(
        capacity,
        settings,
        _scheduling(measurement),
        lambda number: model,
        depth=2 if costs.overlapped else 1,
    )
    front_end = costs if measurement.served else None
    observations = simulate(
        measurement.workload, SimulationSetup(pool, front_end=front_end, fast_forward=fast_forward)
    ).observations
    if any(one.outcome != "completed" for one in observations):
        return Figures()  # it does not fit
    measured = observations[measurement.warm_up_requests :]
    ttft = statistics.fmean(one.ttft for one in measured if one.ttft is not None)
    tpots = [one.tpot for one in measured if one.tpot is not None and not math.isnan(one.tpot)]
    return Figures(_speed(measurement, measured), ttft * 1e3, statistics.fmean(tpots) * 1e3 if tpots else None)


def _speed(measurement: Measurement, observations: Sequence[Observation]) -> float:
    """Return output tokens per second: until the last request has ended, or of a steady loop as often as requests
    begin."""
    tokens = sum(one.output_tokens for one in observations)
    begun = [one.intended for one in observations]
    if measurement.steady and max(begun) > min(begun):
        return tokens * (1 - 1 / len(observations)) / (max(begun) - min(begun))
    return tokens / max(one.ended for one in observations)


def _scheduling(measurement: Measurement) -> SchedulingSettings:
    """TensorRT-LLM admits a request once the blocks of its longest output are free (GUARANTEED_NO_EVICT), vLLM when
    those of its prompt are. SGLang has steps of its own, and is taken to admit as TensorRT-LLM does; in fact it counts
    0.7 of what the running ones may still need at first, and then less (new_token_ratio)."""
    if measurement.engine.name == "sglang":
        return SchedulingSettings(strategy=_SGLANG, kv_allocation="reserve-request")
    reserves = measurement.engine.name == "tensorrt-llm"
    return SchedulingSettings(kv_allocation="reserve-request" if reserves else "paged").ending_early(0)


def _capacity(measurement: Measurement, rows: int) -> Capacity:
    """Return the capacity of the run's engine, whose memory is shared out by its own rule."""
    hardware = Hardware(model=measurement.spec, gpu=measurement.gpu, weights=precision(measurement), kv=measurement.kv)
    context = measurement.prompt + measurement.output / 2
    machine = hardware.machine(measurement.parallelism, context, rows=rows)
    memory = max_concurrent_sequences(
        measurement.spec,
        measurement.gpu,
        context,
        tensor_parallel=measurement.parallelism,
        weights=precision(measurement),
        kv=measurement.kv,
        max_num_batched_tokens=measurement.max_num_batched_tokens,
        max_num_seqs=rows,
    )
    blocks = int(_kv_bytes(measurement, memory) / (memory.kv_bytes_per_token * machine.block_size))
    blocks *= measurement.parallelism.data_attention
    return structs.replace(machine.capacity(rows), num_blocks=max(1, blocks))


def _kv_bytes(measurement: Measurement, memory: MemoryBudget) -> float:
    """vLLM fills a share of the GPU's memory, SGLang one by weights and KV memory alone, TensorRT-LLM a share of what
    weights and activations leave."""
    taken = memory.weight_bytes + memory.activation_bytes + memory.state_bytes + _OVERHEAD
    if measurement.engine.name == "sglang":
        taken = memory.weight_bytes + memory.state_bytes
    if measurement.engine.name == "tensorrt-llm":
        return measurement.memory_share * (memory.memory_bytes - taken)
    if measurement.engine.name == "vllm":
        rows = measurement.max_num_seqs / measurement.parallelism.data_attention
        taken += _SAMPLER_BYTES * rows * measurement.spec.vocab_size + marlin_padding(measurement)
    return measurement.memory_share * memory.memory_bytes - taken


def marlin_padding(measurement: Measurement) -> float:
    """Return the bytes by which vLLM's experts in mxfp4 are larger on GPUs for which it has Marlin's kernels alone:
    their widths are filled up to a multiple of 128, the model's to one of 256. gpt-oss-120b takes 66 GiB in place of 61
    (its issue 23278 of 2025-08)."""
    if measurement.weights != "mxfp4" or measurement.gpu.computes("fp8"):
        return 0.0
    hidden, item, more = measurement.spec.hidden_size, packing("mxfp4", mixture=True).expert, 0.0
    assert item is not None
    for one in linear_shard(measurement.spec, measurement.parallelism).experts:
        padded = 128 * math.ceil(one.width / 128) / one.width * 256 * math.ceil(hidden / 256) / hidden
        more += one.mlp.experts * one.elements * item * (padded - 1)
    return more
