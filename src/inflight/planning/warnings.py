"""Common mistakes of sizing, pointed out when they are made, each with the number that makes it one.

Knows a question and its answer; nothing here changes the answer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from inflight.metrics.confidence import min_samples
from inflight.planning.demand import Drawn, Traced
from inflight.planning.engine_config import TOGETHER
from inflight.planning.machine import MOST_ROWS, WIDEST_STEP
from inflight.planning.memory import max_concurrent_sequences
from inflight.planning.proposal import KV_SHARE
from inflight.planning.simulation import Trial
from inflight.planning.sizing import Candidate, Question, prompt_seconds
from inflight.planning.traffic import Traffic
from inflight.planning.wording import how_broken
from inflight.simulate.roofline import Roofline
from inflight.simulate.tensor_parallel import min_kv_heads

UNIFORM = 1.1  # p99 over p50 below which lengths are all but equal
STALL = 0.2  # seconds that a reader notices


def warnings(
    question: Question, traffic: Traffic, candidate: Candidate, trial: Trial, replicas: int
) -> tuple[str, ...]:
    """Sentences, the gravest first; empty where nothing is wrong."""
    return (
        *_of_memory(question, traffic, candidate),
        *_of_strategy(question, traffic, candidate),
        *_of_steps(question, traffic, candidate),
        *_of_traffic(question, traffic),
        *_of_slos(question, traffic, candidate, trial, replicas),
    )


def _of_memory(question: Question, traffic: Traffic, candidate: Candidate) -> Iterator[str]:
    rows, machine = question.overrides.max_num_seqs, candidate.machine
    fits = machine.sequences(traffic.mean_context)
    if rows is not None and rows > fits:
        yield (
            f"--max-num-seqs {rows:,} is beyond the KV memory: {fits:,.0f} sequences of "
            f"{traffic.mean_context:,.0f} tokens "
            "fit. The rest is admitted and preempted again, and its prompts are computed twice; set at most "
            f"{max(1, int(KV_SHARE * fits)):,}."
        )
    yield from _of_wide_steps(question, traffic, candidate)
    longest = machine.max_model_len
    if machine.tokens < longest:
        yield (
            f"KV memory holds {machine.tokens:,} tokens, less than one sequence of the {longest:,} that the "
            "model allows; "
            f"set --max-model-len to what the traffic needs ({traffic.longest:,} at most), so that longer requests are "
            "refused at the door."
        )


def _of_wide_steps(question: Question, traffic: Traffic, candidate: Candidate) -> list[str]:
    """Memory is reckoned with steps of WIDEST_STEP tokens at most."""
    budget, model, memory = question.overrides.max_num_batched_tokens, candidate.machine.model, candidate.machine.memory
    if budget is None or budget <= WIDEST_STEP or memory is None or not isinstance(model, Roofline):
        return []
    wider = max_concurrent_sequences(
        model.spec,
        model.gpu,
        max(1.0, traffic.mean_context),
        tensor_parallel=model.tensor_parallel,
        weights=model.weights,
        kv=model.kv,
        max_num_batched_tokens=budget,
        max_num_seqs=question.overrides.max_num_seqs or MOST_ROWS,
        block_size=candidate.machine.block_size,
    )
    return [
        f"--max-num-batched-tokens {budget:,} takes {(wider.activation_bytes - memory.activation_bytes) / 1e9:,.1f} GB "
        f"more per GPU than the {WIDEST_STEP:,} that memory was reckoned with: {wider.sequences:,} typical sequences "
        f"fit, not {memory.sequences:,}."
    ]


def _of_strategy(question: Question, traffic: Traffic, candidate: Candidate) -> list[str]:
    strategy = question.overrides.strategy
    interactive = any(slo.paces or slo.metric == "ttft" for slo in question.slos)
    if strategy in TOGETHER:
        p50, p99 = traffic.output.p50 or 1.0, traffic.output.p99 or 1.0
        return [
            f"{strategy.capitalize()} batching: every answer waits for the longest of its batch, and answers here are "
            f"{p50:,.0f} tokens at p50 and {p99:,.0f} at p99; --strategy chunked lets each leave when it is done "
            "(--compare-strategies shows the difference)."
        ]
    if strategy == "continuous" and interactive:
        seconds = prompt_seconds(candidate.machine, candidate.config, traffic.input.p99 or 1.0)
        if seconds > STALL / 2:
            return [
                f"Chunking is off: a prompt of {traffic.input.p99 or 0:,.0f} tokens (p99) takes "
                f"{seconds * 1e3:,.0f} ms in "
                "one step, in which every running stream stands still; --strategy chunked spreads it over several."
            ]
    return []


def _of_steps(question: Question, traffic: Traffic, candidate: Candidate) -> Iterator[str]:
    budget, rows = question.overrides.max_num_batched_tokens, candidate.config.max_num_seqs
    if budget is None:
        return
    alone = prompt_seconds(candidate.machine, candidate.config, min(budget, traffic.input.p99 or 1.0))
    if budget > traffic.input_mean and alone > STALL and any(slo.bounds_gaps for slo in question.slos):
        yield (
            f"--max-num-batched-tokens {budget:,} makes full steps of at least {alone * 1e3:,.0f} ms, which running "
            "streams wait; a smaller one keeps them steadier."
        )
    model = candidate.machine.model
    ridge = getattr(getattr(model, "gpu", None), "ridge_tokens", None)
    if ridge is not None and budget < ridge():
        yield (
            f"--max-num-batched-tokens {budget:,} is below the {ridge():,.0f} tokens from which this GPU is busy with "
            f"arithmetic: each step reads all weights again for few tokens ({rows:,} of them are decodes at most)."
        )


def _of_traffic(question: Question, traffic: Traffic) -> Iterator[str]:
    demand = question.demand
    p50, p99 = traffic.output.p50 or 1.0, traffic.output.p99 or 1.0
    if p99 < UNIFORM * p50:
        yield (
            f"All answers have about the same length ({p50:,.0f} tokens at p50, {p99:,.0f} at p99): real ones vary "
            "several times, and a deployment measured or sized with equal lengths is too small for them; give a "
            "distribution such as lognormal:P50:P99, or a trace."
        )
    if isinstance(demand, Drawn) and demand.gap_variation < 1:
        yield (
            f"Gaps between arrivals have a coefficient of variation of {math.sqrt(demand.gap_variation):.2g}, more "
            "regular than chance: waiting times of independent users, who come as Poisson arrivals or clump, come out "
            "too short."
        )
    shares = [slo.of_requests for slo in question.slos] or [0.99]
    share, fewest = max(shares), max(min_samples(share) for share in shares)
    if isinstance(demand, Traced) and traffic.requests < fewest:
        beyond = traffic.requests * (1 - share)
        yield (
            f"The trace has {traffic.requests:,} requests: its p{share * 100:g} rests on {beyond:,.0f} of them; to be "
            f"sure of it takes {fewest:,}."
        )


def _of_slos(question: Question, traffic: Traffic, candidate: Candidate, trial: Trial, replicas: int) -> Iterator[str]:
    if question.slos and all(slo.share <= 0.5 for slo in question.slos):
        yield "Only medians are promised: half of the requests may be as slow as they like; promise p95 or p99 too."
    if not question.slos:
        yield "Nothing is promised (--slo): this is sized for throughput alone, and latencies are what they are."
    gap = trial.percentiles["itl"][2]
    paced = any(slo.paces for slo in question.slos)
    if question.slos and not paced and math.isfinite(gap) and gap > STALL:
        yield (
            f"Nothing is promised between tokens, and streams stand still for {gap * 1e3:,.0f} ms at p99 while "
            "prompts of "
            "others are computed; if people read along, add a promise such as itl=100(p99)."
        )
    yield from _of_spares(question, candidate, trial, replicas)
    degree, model = candidate.machine.gpus, candidate.machine.model
    heads = min_kv_heads(model.spec) if isinstance(model, Roofline) else None
    if heads is not None and degree > heads:
        yield (
            f"{degree} GPUs share {heads} KV heads: each head is held {degree // heads} "
            "times, so that KV "
            "memory grows less than the number of GPUs."
        )
    if trial.preemptions > 0.02 * max(1, trial.summary.requests):
        yield (
            f"{trial.preemptions:,} preemptions came upon {trial.summary.requests:,} requests: memory is "
            "tighter than the "
            "sequences are many; lower --max-num-seqs."
        )


def _of_spares(question: Question, candidate: Candidate, trial: Trial, replicas: int) -> list[str]:
    if replicas == 1:
        return ["One replica has no spare: when it restarts, nobody is served."]
    if not question.slos:
        return []  # throughput alone is sized with headroom
    if not trial.met:
        return [
            f"With another seed {how_broken(trial)} even so: the promise is close to the best that these machines do; "
            "take the upper end of the replicas, or a looser one."
        ]
    left = question.demand.rate / (replicas - 1)
    if left <= candidate.rate:
        return []
    return [
        f"There is no headroom: with one of {replicas:,} replicas down, each other one gets {left:.4g} requests/s, "
        f"more than the {candidate.rate:.4g} at which the promises were found to be kept; "
        f"{math.ceil(question.demand.rate / candidate.rate * 0.999) + 1:,} replicas bear one failure or a rolling "
        "restart."
    ]
