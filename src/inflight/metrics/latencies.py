"""Latencies of requests, each sorted once for the percentiles of a summary and of a trial."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from inflight.metrics.observation import Observation
from inflight.metrics.slo import shares_of


class Latencies(NamedTuple):
    """Sorted latencies in seconds of requests that completed. itl: all gaps of all of them."""

    ttft: list[float]
    tpot: list[float]
    itl: list[float]
    e2e: list[float]

    def percentiles(self, shares: Sequence[float], unserved: int) -> dict[str, tuple[float, ...]]:
        """Return the maximum of each latency over each share of all offered requests, as `slo.percentiles` does.

        unserved: Requests that did not complete; each counts as infinite.
        """
        infinite = [math.inf] * unserved
        return {name: shares_of([*values, *infinite], shares) for name, values in self._asdict().items()}


def latencies(completed: Sequence[Observation]) -> Latencies:
    """Return the latencies of requests that completed; one that has nothing to measure adds none."""
    gaps: list[float] = []
    for one in completed:
        gaps += one.gaps
    return Latencies(
        ttft=sorted(value for one in completed if (value := one.ttft) is not None),
        tpot=sorted(value for one in completed if (value := one.tpot) is not None),
        itl=sorted(gaps),
        e2e=sorted(one.e2e for one in completed),
    )
