"""The throughput-latency curve: one run at each of several rates or concurrencies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from inflight.bench.run import Measured


@dataclass(frozen=True, slots=True)
class Point:
    """value: requests/s, or concurrency."""

    value: float
    measured: Measured


def sweep(
    run: Callable[[float], Measured], values: Sequence[float], tell: Callable[[Point], None] = lambda point: None
) -> list[Point]:
    """In the order of the values; ends after the run that was interrupted."""
    points: list[Point] = []
    for value in values:
        points.append(Point(value, run(value)))
        tell(points[-1])
        if points[-1].measured.partial:
            break
    return points
