"""The bottleneck: why a machine serves no more than it does, from where its steps' time goes beyond capacity."""

from __future__ import annotations

from msgspec import Struct

from inflight.planning.candidate import Candidate
from inflight.planning.rendering import sentence
from inflight.planning.simulation import Trial
from inflight.planning.steady import steady_state
from inflight.planning.traffic import Traffic
from inflight.simulate.engine_costs import front_end_costs
from inflight.simulate.hardware import Precision
from inflight.simulate.roofline import Roofline

FULL = 0.65  # of the sequences that KV memory holds, on average: peaks are half as high again
LARGE_WEIGHTS = 0.5  # of a GPU's memory
MIN_BATCH_GAIN = 1.1  # in requests/s that a larger batch must bring for memory to be the bottleneck
MIN_STEP_SHARE = 0.02  # of a step's time, below which work is not named
MIN_KIND_SHARE = 0.1  # of a bottleneck's, too
BUSY = 0.9  # of the front end's processor, at the rate that missed the SLOs
NEAR_HIGHEST = 0.95  # of the highest rate that is tried
LONG_PROMPT_SHARE = 0.25  # of an SLO on TTFT that a prompt takes on an idle engine


class Bottleneck(Struct, frozen=True, rename={"bound": "resource", "sentences": "why"}):
    """bound: the resource: weights, KV, compute, bandwidth, link, launch, front end or steps. sentences: why, with the
    numbers. relief: ways to relieve it; empty where not known."""

    bound: str
    sentences: tuple[str, ...]
    relief: str = ""


def bottleneck(candidate: Candidate, trial: Trial, traffic: Traffic) -> Bottleneck:
    """Find the bottleneck. trial: at the planned load. It is read at the rate that missed the SLOs: at a lower load
    steps are shorter, and reading weights takes more of them."""
    missed = candidate.capacity.missed
    limit = missed or candidate.capacity.met or trial
    shares = limit.spent.by_bound
    kv_rows = candidate.machine.sequences(traffic.mean_context)
    rows = max(one.spent.rows for one in (trial, missed) if one is not None)
    memory = candidate.machine.memory
    full = rows > FULL * kv_rows or trial.preemptions > trial.summary.requests / 20
    # Beyond capacity every request slot is taken.
    full = full and _larger_batch_helps(candidate, kv_rows, traffic)
    sentences = [_missed_first(candidate, missed, traffic)] if missed else _never_missed(candidate)
    if memory is not None and memory.weight_bytes > LARGE_WEIGHTS * memory.memory_bytes:
        sentences.append(sentence("large_weights", memory=memory, unit=candidate.machine.unit))
    if full:
        sentences.append(sentence("full_kv", holds=kv_rows, context=traffic.mean_context, rows=rows))
    if shares:
        sentences.append(_where_time_goes(limit, trial, shares, candidate.machine.is_pooled))
    front_end = front_end_costs(candidate.machine.engine)
    if front_end is not None and missed is not None and missed.rate * front_end.request > BUSY:
        sentences.append(sentence("full_front_end", engine=front_end, rate=missed.rate))
        bound = "front end"
    elif full:
        bound = "weights" if memory is not None and memory.weight_bytes > memory.kv_bytes else "KV"
    else:
        bound = max(shares, key=shares.__getitem__) if shares else "steps"
    return Bottleneck(bound, tuple(sentences), _relief(bound, candidate))


def _larger_batch_helps(candidate: Candidate, rows: float, traffic: Traffic) -> bool:
    """Whether twice the sequences would be served faster, by the closed form."""
    model, budget = candidate.machine.model, candidate.step_tokens
    now, then = (steady_state(model, traffic, max(1, round(count * rows)), budget) for count in (1, 2))
    return then.requests_per_s > MIN_BATCH_GAIN * now.requests_per_s


def _relief(bound: str, candidate: Candidate) -> str:
    """Name ways that the machine leaves open: a GPU without fp8 units is not advised to compute in fp8."""
    machine, model = candidate.machine, candidate.machine.model
    if not isinstance(model, Roofline):
        return ""
    lower: list[Precision] = ["fp8", "int8"] if model.weights == "bf16" else []
    units = [name for name in lower if model.gpu.computes(name)]
    about = {"kv": model.kv, "whole": machine.is_encoder_only, "pooled": machine.is_pooled, "unit": machine.unit}
    return sentence("relief", bound=bound, lower=lower, units=units, **about)


def _missed_first(candidate: Candidate, missed: Trial, traffic: Traffic) -> str:
    if not missed.missed:
        trend = missed.summary.ttft_trend
        return sentence("growing_queue", rate=missed.rate, rise=0.0 if trend is None else trend.rise)
    slo, value = missed.missed[0]
    longest, seconds = traffic.long_prompt(slo.traffic), 0.0
    if slo.metric == "ttft":
        seconds = candidate.prompt_seconds(longest)
    prompt = longest if seconds >= LONG_PROMPT_SHARE * slo.limit else None
    return sentence("missed_first", slo=slo, value=value, rate=missed.rate, prompt=prompt, seconds=seconds)


def _never_missed(candidate: Candidate) -> list[str]:
    met = candidate.capacity.met
    if met is None or not met.values:
        return []
    return [sentence("never_missed", rate=met.rate, is_most=met.rate > NEAR_HIGHEST * candidate.ceiling)]


def _where_time_goes(limit: Trial, trial: Trial, shares: dict[str, float], pooled: bool) -> str:
    parts = []
    for bound in sorted(shares, key=lambda bound: -shares[bound]):
        if shares[bound] < MIN_STEP_SHARE:
            continue
        of_bound = {kind: share for (kind, by), share in limit.spent.by_kind.items() if by == bound}
        kinds = [kind for kind in of_bound if of_bound[kind] > MIN_KIND_SHARE * shares[bound]]
        named = sorted(kinds, key=lambda kind: -of_bound[kind]) if bound in ("compute", "bandwidth") else []
        if pooled:  # no token is decoded: a text's keys and values are written and read at once
            named = list(dict.fromkeys("attention" if kind.endswith("attention") else kind for kind in named))
        parts.append((bound, shares[bound], named))
    return sentence("step_time", limit=limit, planned=trial, parts=parts)
