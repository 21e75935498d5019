"""SLOs of a plan: whether they go together, and whether a trial decides them.

An SLO has one meaning in plans, trials, benchmarks and servers (`metrics.slo`): a share of the requests keeps a limit,
and for itl a share of each request's own gaps. A trial measures that share without interpolation. It decides an SLO
that it meets only with enough requests for the upper end of the percentile's 95 % interval (`metrics.confidence`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

from inflight.metrics.confidence import min_samples
from inflight.metrics.slo import Slo, SloError


def check_slos(slos: Sequence[Slo]) -> None:
    """Raise SloError where one SLO can never be missed alone, because another one is at least as hard: one of the two
    is a mistake."""
    for one, other in itertools.permutations(slos, 2):
        if one.traffic != other.traffic:
            continue
        if other.metric == one.metric and other.share > one.share and other.limit <= one.limit:
            raise SloError(
                f"--slo has {other}, with which {one} can never be missed; correct one of them, or leave it out."
            )
        if other.metric == "e2e" and one.metric == "ttft" and other.share >= one.share and other.limit <= one.limit:
            raise SloError(
                f"--slo has {other} for whole answers, with which {one} for their first tokens can never be missed; "
                "correct one of them, or leave it out."
            )


def undecided(values: Mapping[Slo, float], samples_of: Callable[[Slo], int]) -> tuple[Slo, ...]:
    """Return the SLOs that a trial meets with too few requests to decide, a class of none among them, or too few
    programs.

    Args:
        values: Of each SLO.
        samples_of: The requests or programs that its value rests on.
    """

    def is_open(slo: Slo, value: float) -> bool:
        measured = samples_of(slo)
        return (value <= slo.limit or not measured) and measured < min_samples(slo.of_requests)

    return tuple(slo for slo, value in values.items() if is_open(slo, value))


def max_ttft(slos: Sequence[Slo]) -> float:
    """Return the seconds that a first token may take by the SLOs; 0 without one on TTFT."""
    return max((slo.limit for slo in slos if slo.metric == "ttft"), default=0.0)
