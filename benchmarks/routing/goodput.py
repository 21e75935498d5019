"""The highest rate at which nine of ten requests keep their targets, for each policy and shape of traffic."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.comparison import log_line, steady
from benchmarks.results import table
from benchmarks.routing.clusters import RAY, SHAPES, Engine, know_ray, shape, traffic
from inflight.routing.registry import ROUTERS
from inflight.simulate.simulation import simulate
from inflight.workload.classes import TrafficClass

KEPT = 0.9
_LOWEST = 0.08  # arrivals a second
_TRIALS = 5  # of a bisection, after bounds are known
ASKED = {"agents": "≥ 1.5", "nothing-shared": "≥ 0.97", "system-prompts": "-"}


@dataclass(frozen=True, slots=True)
class Found:
    """rates: the highest one for each seed, in arrivals a second. cached: share of prompt tokens that was found cached
    there, the mean of seeds."""

    rates: list[float]
    cached: float


def report(engine: Engine, replicas: int, requests: int, seeds: int) -> str:
    ours = list(ROUTERS)
    know_ray()
    parts = [f"{replicas} replicas, each with KV memory for {engine.kv_tokens:,} tokens, {engine.model.name}."]
    for name in SHAPES:
        found = {}
        for router in (*ours, *RAY):
            found[router] = _found(engine, router, replicas, shape(name), requests, seeds)
            log_line(f"{name}, {router}: {statistics.fmean(found[router].rates):.3f} arrivals/s")
        parts.append(_table(name, found))
    return "\n\n".join(parts)


def _table(name: str, found: dict[str, Found]) -> str:
    turns = found["round-robin"].rates
    ray = [max(pair) for pair in zip(*(found[one].rates for one in RAY), strict=True)]
    rows = [
        [
            f"`{router}`",
            f"{statistics.fmean(one.rates):.2f}",
            _ratio(one.rates, turns),
            _ratio(one.rates, ray),
            f"{100 * one.cached:.0f} %",
        ]
        for router, one in found.items()
    ]
    head = ("policy", "arrivals/s", f"over round-robin (asked of prefix-aware: {ASKED[name]})", "over the better Ray")
    return f"**{name}**\n\n{table((*head, 'found cached'), rows)}"


def _ratio(above: Sequence[float], below: Sequence[float]) -> str:
    ratios = [one / other for one, other in zip(above, below, strict=True)]
    return f"{statistics.fmean(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"


def _found(
    engine: Engine, router: str, replicas: int, classes: Sequence[TrafficClass], requests: int, seeds: int
) -> Found:
    rates, cached = [], []
    for seed in range(seeds):

        def keeps(rate: float, seed: int = seed) -> float | None:
            """Return what share was found cached, where the targets are kept."""
            run = simulate(traffic(classes, rate, requests, seed), engine.setup(router, replicas, seed))
            if steady(run.observations).attainment < KEPT:
                return None
            prompts = sum(one.prompt_tokens for one in run.observations)
            return sum(one.cached_tokens for one in run.observations) / prompts

        rate, share = _highest(keeps)
        rates.append(rate)
        cached.append(share)
    return Found(rates, statistics.fmean(cached))


def _highest(keeps: Callable[[float], float | None]) -> tuple[float, float]:
    """By doubling from a low rate, and bisection of the last one's logarithm."""
    low, share = _LOWEST, keeps(_LOWEST)
    if share is None:
        raise SystemExit(f"the targets are not kept even at {_LOWEST} arrivals/s; this engine is too slow for them")
    high = low * 2
    while (kept := keeps(high)) is not None:
        low, share, high = high, kept, high * 2
    for _ in range(_TRIALS):
        middle = (low * high) ** 0.5
        if (kept := keeps(middle)) is None:
            high = middle
        else:
            low, share = middle, kept
    return low, share
