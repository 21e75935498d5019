"""Warnings on common errors of sizing, each with its number. They do not change the answer."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from inflight.metrics.confidence import min_samples
from inflight.models.mixers.mla import LatentAttention
from inflight.planning.candidate import Candidate
from inflight.planning.demand import Demand, Traced
from inflight.planning.engine_config import TOGETHER
from inflight.planning.machine import DEFAULT_ROWS, WIDEST_STEP, Machine
from inflight.planning.memory import max_concurrent_sequences
from inflight.planning.mixture import Mixed
from inflight.planning.proposal import rows_in_memory
from inflight.planning.question import Question
from inflight.planning.rendering import sentence
from inflight.planning.simulation import Trial
from inflight.planning.sizing import HEADROOM
from inflight.planning.traffic import Traffic
from inflight.simulate.engine_costs import engine_costs, front_end_costs
from inflight.simulate.hardware import Precision
from inflight.simulate.roofline import Roofline
from inflight.simulate.shards import min_kv_heads

UNIFORM = 1.1  # p99 over p50 below which lengths are all but equal
STALL = 0.2  # seconds that a reader notices
PREEMPTED = 0.02  # preemptions by request
BUSY_FRONT_END = 0.7  # of a processor


def warnings(
    question: Question, traffic: Traffic, candidate: Candidate, trial: Trial, replicas: int
) -> tuple[str, ...]:
    """Return sentences, the most serious first; empty where nothing is wrong."""
    return (
        *_on_memory(question, traffic, candidate),
        *_on_strategy(question, traffic, candidate),
        *_on_steps(question, traffic, candidate),
        *_on_traffic(question, traffic, candidate.machine.is_pooled),
        *_on_front_end(question, candidate, replicas),
        *_on_slos(question, candidate, trial, replicas),
    )


def _on_memory(question: Question, traffic: Traffic, candidate: Candidate) -> Iterator[str]:
    rows, machine = question.overrides.max_num_seqs, candidate.machine
    fits = machine.sequences(traffic.mean_context)
    if rows is not None and rows > fits:
        advised = rows_in_memory(machine, traffic)
        yield sentence("too_many_rows", rows=rows, fits=fits, context=traffic.mean_context, advised=advised)
    budget, model, memory = question.overrides.max_num_batched_tokens, machine.model, machine.memory
    widest = WIDEST_STEP * machine.parallelism.batches
    if budget is not None and budget > widest and memory is not None and isinstance(model, Roofline):
        wider = max_concurrent_sequences(
            model.spec,
            model.gpu,
            max(1.0, traffic.mean_context),
            tensor_parallel=model.parallelism,
            weights=model.weights,
            kv=model.kv,
            max_num_batched_tokens=budget,
            max_num_seqs=rows or DEFAULT_ROWS,
            block_size=machine.block_size,
            max_loras=machine.max_loras,
            max_lora_rank=machine.max_lora_rank,
            packed=model.packing,
        )
        yield sentence("wide_steps", budget=budget, usual=widest, wider=wider, memory=memory, unit=machine.unit)
    if (fewer := _with_fewer_bits(machine, traffic)) is not None:
        yield fewer
    if memory is not None and memory.adapter_bytes:
        yield sentence("adapters_without_time", memory=memory, unit=machine.unit)
    if machine.tokens < machine.max_model_len:
        yield sentence("short_memory", machine=machine, longest=traffic.longest)
    if isinstance(model, Roofline):
        degree, heads = machine.parallelism.tensor, min_kv_heads(model.spec)
        if heads is not None and degree > heads:
            latent = any(isinstance(layer.mixer, LatentAttention) for layer in model.spec.layers)
            in_groups = machine.parallelism.data_attention > 1
            yield sentence("copied_heads", degree=degree, heads=heads, latent=latent, in_groups=in_groups)


def _with_fewer_bits(machine: Machine, traffic: Traffic) -> str | None:
    """Return a sentence where half of the GPUs would hold the model in eight bits, and in bf16 they do not."""
    model, whole = machine.model, machine.parallelism
    if not isinstance(model, Roofline) or model.weights != "bf16" or max(whole.pipeline, whole.tensor) == 1:
        return None
    halved = {"pipeline": whole.pipeline // 2} if whole.pipeline > 1 else {"tensor": whole.tensor // 2}
    half = replace(whole, **halved)
    lower: Precision = "fp8" if model.gpu.computes("fp8") else "int8"

    def holds(weights: Precision) -> bool:
        return bool(
            max_concurrent_sequences(
                model.spec,
                model.gpu,
                traffic.longest,
                tensor_parallel=half,
                weights=weights,
                kv=model.kv,
                max_num_batched_tokens=WIDEST_STEP * half.batches,
                max_num_seqs=DEFAULT_ROWS,
                block_size=machine.block_size,
                max_loras=machine.max_loras,
                max_lora_rank=machine.max_lora_rank,
            ).sequences
        )

    if half.expert > 1 or holds("bf16") or not holds(lower):
        return None
    return sentence("fewer_bits", gpus=machine.gpus, half=half.gpus, lower=lower, unit=machine.unit)


def _on_strategy(question: Question, traffic: Traffic, candidate: Candidate) -> Iterator[str]:
    strategy = question.overrides.strategy
    if strategy in TOGETHER:
        yield sentence("static_batches", strategy=strategy, output=traffic.output)
    if strategy == "continuous" and any(slo.paces or slo.metric == "ttft" for slo in question.slos):
        tokens = traffic.input.p99 or 1.0
        seconds = candidate.prompt_seconds(tokens)
        if seconds > STALL / 2:
            yield sentence("no_chunks", tokens=tokens, seconds=seconds)


def _on_steps(question: Question, traffic: Traffic, candidate: Candidate) -> Iterator[str]:
    budget = question.overrides.max_num_batched_tokens
    if budget is None:
        return
    alone = candidate.prompt_seconds(min(budget, traffic.input.p99 or 1.0))
    if budget > traffic.input_mean and alone > STALL and any(slo.bounds_gaps for slo in question.slos):
        yield sentence("long_steps", budget=budget, seconds=alone)
    model = candidate.machine.model
    if isinstance(model, Roofline) and budget < model.gpu.ridge_tokens():
        rows, unit = candidate.config.max_num_seqs, candidate.machine.unit
        yield sentence("small_steps", budget=budget, ridge=model.gpu.ridge_tokens(), rows=rows, unit=unit)


def _on_traffic(question: Question, traffic: Traffic, is_pooled: bool) -> Iterator[str]:
    demand = question.demand
    p50, p99 = traffic.output.p50 or 1.0, traffic.output.p99 or 1.0
    if p99 < UNIFORM * p50 and not is_pooled:
        yield sentence("equal_lengths", p50=p50, p99=p99)
    if (variation := _asked_variation(demand)) < 1:
        yield sentence("regular_arrivals", variation=math.sqrt(variation))
    shares = [slo.of_requests for slo in question.slos] or [0.99]
    fewest = max(map(min_samples, shares))
    if isinstance(demand, Traced) and traffic.requests < fewest:
        yield sentence("short_trace", requests=traffic.requests, share=max(shares), fewest=fewest)


def _asked_variation(demand: Demand) -> float:
    """Return the squared CV of gaps that are asked for; 1 where they are as recorded, or as conversations end."""
    if isinstance(demand, Traced):
        return 1.0 if demand.retimed is None else demand.retimed
    return 1.0 if isinstance(demand, Mixed) and demand.sessions is not None else demand.gap_variation


def _on_front_end(question: Question, candidate: Candidate, replicas: int) -> Iterator[str]:
    engine = candidate.machine.engine
    seconds, each = (engine or engine_costs()).request, question.demand.rate / replicas
    if each * seconds > BUSY_FRONT_END:
        most, is_simulated = BUSY_FRONT_END / seconds, front_end_costs(engine) is not None
        yield sentence("busy_front_end", rate=each, seconds=seconds, most=most, is_simulated=is_simulated)


def _on_slos(question: Question, candidate: Candidate, trial: Trial, replicas: int) -> Iterator[str]:
    slos, rate, missed_at = question.slos, candidate.rate, candidate.missed_at
    if slos and all(slo.share <= 0.5 for slo in slos):
        yield sentence("only_medians")
    if not slos:
        yield sentence("no_slos", headroom=HEADROOM)
    gap = trial.percentiles["itl"][2]
    if slos and not any(slo.paces for slo in slos) and math.isfinite(gap) and gap > STALL:
        yield sentence("no_slo_between_tokens", gap=gap)
    left = question.demand.rate / max(1, replicas - 1)
    if slos and not trial.met:
        yield sentence("close_slo", shortfall=trial.shortfall, is_fixed=question.gpus is not None)
    if replicas == 1:
        yield sentence("one_replica")
    elif slos and trial.met and (left > rate if missed_at is None else left >= 0.999 * missed_at):
        # Throughput alone is sized with headroom.
        needed = replicas + 1 if missed_at is not None else math.ceil(question.demand.rate / rate * 0.999) + 1
        yield sentence("no_headroom", replicas=replicas, left=left, rate=rate, missed_at=missed_at, needed=needed)
    if trial.preemptions > PREEMPTED * max(1, trial.summary.requests):
        yield sentence("preemptions", preemptions=trial.preemptions, requests=trial.summary.requests)
