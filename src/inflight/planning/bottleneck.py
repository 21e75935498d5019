"""What binds: why a machine serves no more than it does, in words.

Knows trials and where their steps' time went; not how to change it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from inflight.metrics.slo import Slo
from inflight.planning.machine import WIDEST_STEP
from inflight.planning.simulation import Trial
from inflight.planning.sizing import Candidate, prompt_seconds
from inflight.planning.steady import steady_state
from inflight.planning.traffic import Traffic
from inflight.simulate.hardware import Precision
from inflight.simulate.roofline import Roofline

FULL = 0.65  # of the rows that KV memory holds, on average: peaks are half as high again
LARGE = 0.5  # of a GPU's memory
GAIN = 1.1  # in requests/s that a larger batch must bring for memory to be what binds
_WORDS: dict[str, str] = {
    "compute": "arithmetic",
    "bandwidth": "reading memory",
    "link": "adding up partial results between GPUs",
    "launch": "fixed costs of steps, layers and rows",
}


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """bound: the resource: weights, KV, compute, bandwidth, link, launch or steps.

    slo: the SLO that gives way first when the rate grows; None where waiting itself grows without end. sentences: why,
    with the numbers. relief: what would help, in words; empty where that is not known."""

    bound: str
    slo: Slo | None
    sentences: tuple[str, ...]
    relief: str = ""


def bottleneck(candidate: Candidate, trial: Trial, traffic: Traffic) -> Bottleneck:
    """trial: at the load that is planned. What happens above it, the candidate's capacity knows, and there is read what
    binds: at a lower load steps are shorter, and reading weights takes more of them."""
    broken = candidate.capacity.broken
    limit = broken or candidate.capacity.held or trial
    slo, first = _first_broken(candidate, broken, traffic)
    sentences = [first] if first else []
    shares = _by_bound(limit)
    kv_rows = candidate.machine.sequences(traffic.mean_context)
    rows = trial.rows if broken is None else max(trial.rows, broken.rows)
    memory = candidate.machine.memory
    if memory is not None and memory.weight_bytes > LARGE * memory.memory_bytes:
        sentences.append(
            f"Weights take {memory.weight_bytes / memory.memory_bytes:.0%} of each GPU's memory and leave "
            f"{memory.kv_bytes / 1e9:,.1f} GB for keys and values."
        )
    full = rows > FULL * kv_rows or trial.preemptions > trial.summary.requests / 20
    full = full and _larger_batch_helps(candidate, kv_rows, traffic)  # beyond capacity every place is taken
    if full:
        sentences.append(
            f"KV memory holds {kv_rows:,.0f} sequences of {traffic.mean_context:,.0f} tokens, and {rows:,.0f} run: a "
            "larger batch does not fit, though the arithmetic could take one."
        )
    if shares:
        sentences.append(_where_time_goes(limit, trial, shares))
    if full:
        heavy = memory is not None and memory.weight_bytes > memory.kv_bytes
        bound = "weights" if heavy else "KV"
    else:
        bound = max(shares, key=shares.__getitem__) if shares else "steps"
    return Bottleneck(bound, slo, tuple(sentences), _relief(bound, candidate))


def _larger_batch_helps(candidate: Candidate, rows: float, traffic: Traffic) -> bool:
    """Whether twice the sequences would be served faster, by the closed form."""
    model, budget = candidate.machine.model, candidate.config.max_num_batched_tokens or WIDEST_STEP
    now, then = (steady_state(model, traffic, max(1, round(count * rows)), budget) for count in (1, 2))
    return then.requests_per_s > GAIN * now.requests_per_s


def _relief(bound: str, candidate: Candidate) -> str:
    """Only what the machine leaves open: a GPU without fp8 units is not told to compute in fp8."""
    model = candidate.machine.model
    if not isinstance(model, Roofline):
        return ""
    lower: list[Precision] = ["fp8", "int8"] if model.weights == "bf16" else []
    units = [name for name in lower if model.gpu.computes(name)]
    smaller = f"--weights {' or '.join(lower)}" if lower else ""
    ways = {
        "weights": [smaller, "more GPUs per replica", "GPUs with more memory"],
        "KV": ["--kv fp8" if model.kv == "bf16" else "", smaller, "more GPUs per replica", "GPUs with more memory"],
        "compute": [
            f"--weights {' or '.join(units)}, whose arithmetic is twice as fast here" if units else "",
            "prompts that share their beginnings (the prefix cache computes those once)",
            "GPUs with more arithmetic",
        ],
        "bandwidth": [f"{smaller}, which halves what each step reads" if smaller else "", "GPUs with more bandwidth"],
        "link": ["fewer GPUs per replica, where they hold the model", "a faster link"],
        "launch": ["larger steps", "fewer GPUs per replica"],
    }
    return ", ".join(way for way in ways[bound] if way)


def _first_broken(candidate: Candidate, broken: Trial | None, traffic: Traffic) -> tuple[Slo | None, str]:
    if broken is None:
        return None, ""
    if not broken.broken:
        return None, (
            f"Above {broken.rate:.3g} requests/s per replica the queue grows without end (TTFT rises by "
            f"{_rise(broken):,.1f} s within the run): it is throughput that gives way first."
        )
    slo, value = broken.broken[0]
    shown = "never" if math.isinf(value) else f"{value * 1e3:,.0f} ms"
    text = f"{slo} gives way first: with {broken.rate:.3g} requests/s per replica it is {shown}."
    if slo.metric == "ttft":
        text += _prompt_alone(candidate, slo, traffic)
    return slo, text


def _rise(trial: Trial) -> float:
    trend = trial.summary.ttft_trend
    return 0.0 if trend is None else trend.rise


def _prompt_alone(candidate: Candidate, slo: Slo, traffic: Traffic) -> str:
    """How much of a TTFT SLO a long prompt takes with nobody else there."""
    longest = traffic.input.p99
    if longest is None:
        return ""
    seconds = prompt_seconds(candidate.machine, candidate.config, longest)
    if seconds < 0.25 * slo.limit:
        return ""
    return f" A prompt of {longest:,.0f} tokens (p99) takes {seconds * 1e3:,.0f} ms of that with nobody else there" + (
        ", and what is left for waiting is little." if seconds > 0.5 * slo.limit else "."
    )


def _by_bound(trial: Trial) -> dict[str, float]:
    shares: dict[str, float] = {}
    for (_, bound), share in trial.spent.by_kind.items():
        shares[bound] = shares.get(bound, 0.0) + share
    return shares


def _where_time_goes(limit: Trial, trial: Trial, shares: dict[str, float]) -> str:
    order = sorted(shares, key=lambda bound: -shares[bound])
    parts = []
    for bound in order:
        if shares[bound] < 0.02:
            continue
        kinds = {
            kind: share
            for (kind, by), share in limit.spent.by_kind.items()
            if by == bound and share > 0.1 * shares[bound]
        }
        named = " and ".join(sorted(kinds, key=lambda kind: -kinds[kind]))
        of = f" ({named})" if bound in ("compute", "bandwidth") else ""
        parts.append(f"{shares[bound]:.0%} {_WORDS[bound]}{of}")
    return (
        f"With {limit.rate:.3g} requests/s a step takes {limit.spent.step_seconds * 1e3:,.0f} ms on average "
        f"({trial.spent.step_seconds * 1e3:,.0f} ms with the planned {trial.rate:.3g}): {', '.join(parts)}."
    )
