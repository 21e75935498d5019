"""Standings: how contenders did on the same workloads, with intervals over repeats and ratios to the first one.

Percentiles stand also where a run was saturated, since all contenders had the same requests for the same time; whether
it was is said.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence

from msgspec import Struct

from inflight.metrics.confidence import Estimate, estimate, paired_ratio
from inflight.metrics.definitions import jain
from inflight.metrics.observation import Observation
from inflight.report.run import Report, Run, Setting

HIGHER = ("goodput", "attainment", "output_tokens_per_s", "fairness")
_FIGURES: dict[str, Callable[[Run], float | None]] = {
    "goodput": lambda run: run.summary.attained_per_s,
    "attainment": lambda run: run.summary.attainment,
    "output_tokens_per_s": lambda run: run.summary.output_tokens_per_s,
    "ttft_p99": lambda run: run.summary.ttft.p99,
    "tpot_p99": lambda run: run.summary.tpot.p99,
    "e2e_mean": lambda run: run.summary.e2e.mean,
    "e2e_p99": lambda run: run.summary.e2e.p99,
    "jct_mean": lambda run: run.summary.jct.mean,
    "jct_p99": lambda run: run.summary.jct.p99,
    "fairness": lambda run: fairness(run.observations),
}
FIGURES = tuple(_FIGURES)


class Standing(Struct, frozen=True):
    """One contender on one workload.

    Attributes:
        contender: Its name.
        load: The workload's name.
        figures: Means over repeats, by FIGURES; without those that no repeat has.
        ratio: Of the deciding figure to the first contender's, paired by repeat; of the means, where a repeat has 0;
            None for that one itself, or where it has 0 alone.
        is_best: No other has a better mean of the deciding figure.
        saturated: Whether latency was still growing at the end of any repeat.
    """

    contender: str
    load: str
    figures: dict[str, Estimate]
    ratio: Estimate | None
    is_best: bool
    saturated: bool


def fairness(observations: Sequence[Observation]) -> float | None:
    """Return Jain's index over tenants of seconds per output token, or over requests where all are of one tenant; None
    where no request was completed."""
    seconds: dict[str, list[float]] = defaultdict(list)
    for one in observations:
        if one.outcome == "completed" and one.output_tokens:
            seconds[one.tenant].append(one.e2e / one.output_tokens)
    means = [statistics.fmean(values) for values in seconds.values()]
    if not means:
        return None
    return jain(means if len(means) > 1 else next(iter(seconds.values())))


def is_better(figure: str, one: float, other: float) -> bool:
    """Return whether one value of a figure is better than another."""
    return one > other if figure in HIGHER else one < other


def standings(report: Report, by: str) -> list[Standing]:
    """Return the standings, workload by workload, the contenders in the report's order. by: the figure that decides."""
    loads = list(dict.fromkeys(load for one in report.settings for load in one.loads))
    return [standing for load in loads for standing in _of_load(report.settings, load, by)]


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Return Spearman's rank correlation of paired values; None for fewer than 3, or where all are equal."""
    ranks = _ranks(one), _ranks(other)
    if len(one) < 3 or any(len(set(values)) < 2 for values in ranks):
        return None
    return statistics.correlation(*ranks)


def _of_load(settings: Sequence[Setting], load: str, by: str) -> list[Standing]:
    runs = {one.name: repeats for one in settings if (repeats := one.repeats(load))}
    figures = {name: _figures(repeats) for name, repeats in runs.items()}
    means = [found[by].mean for found in figures.values() if by in found]
    best = (max if by in HIGHER else min)(means, default=None)
    first = next(iter(runs), None)
    return [
        Standing(
            name,
            load,
            figures[name],
            None if name == first else _ratio(repeats, runs[str(first)], by),
            by in figures[name] and figures[name][by].mean == best,
            any(run.summary.saturated for run in repeats),
        )
        for name, repeats in runs.items()
    ]


def _figures(repeats: Sequence[Run]) -> dict[str, Estimate]:
    found = {key: [value for run in repeats if (value := figure(run)) is not None] for key, figure in _FIGURES.items()}
    return {key: estimate(values) for key, values in found.items() if values}


def _ratio(mine: Sequence[Run], theirs: Sequence[Run], by: str) -> Estimate | None:
    pairs = [(_FIGURES[by](a), _FIGURES[by](b)) for a, b in zip(mine, theirs, strict=True)]
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    if not known or len(known) < len(pairs):
        return None
    own, others = [a for a, _ in known], [b for _, b in known]
    if (ratio := paired_ratio(own, others)) is not None or sum(others) <= 0:
        return ratio
    return Estimate(sum(own) / sum(others), None, None, len(known))  # a repeat has 0


def _ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each value; equal ones share the mean of theirs."""
    ordered = sorted(values)
    return [ordered.index(value) + (ordered.count(value) - 1) / 2 for value in values]
