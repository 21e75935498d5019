"""Whether latency was still growing when a run ended: then its percentiles say how long the run was, and nothing else.

Follows Mann and Kendall's test for a trend over the means of segments: single latencies follow each other too closely
to count as independent, means over a tenth of a run much less. The rise is by Theil and Sen's slope.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

SEGMENTS = 10
FEWEST = 3  # values in a segment
SIGNIFICANT = 2.326  # one-sided, 1 %


@dataclass(frozen=True, slots=True)
class Trend:
    """rise: in seconds of latency, from the beginning of the window to its end. z: of the test; large means a trend."""

    rise: float
    z: float
    typical: float  # median of the segments' means

    @property
    def growing(self) -> bool:
        """Surely rising, and by more than its own usual size."""
        return self.z > SIGNIFICANT and self.rise > self.typical


def trend(points: Iterable[tuple[float, float]], start: float, end: float) -> Trend | None:
    """points: (time, latency) of requests, times within start … end. None where there are too few to tell."""
    segments: list[list[float]] = [[] for _ in range(SEGMENTS)]
    length = (end - start) / SEGMENTS
    if length <= 0:
        return None
    for time, value in points:
        segments[min(SEGMENTS - 1, max(0, math.floor((time - start) / length)))].append(value)
    means = [(place, statistics.fmean(values)) for place, values in enumerate(segments) if len(values) >= FEWEST]
    if len(means) < SEGMENTS - 2:
        return None
    pairs = list(itertools.combinations(means, 2))
    score = sum((later[1] > earlier[1]) - (later[1] < earlier[1]) for earlier, later in pairs)
    number = len(means)
    deviation = math.sqrt(number * (number - 1) * (2 * number + 5) / 18)
    slope = statistics.median((later[1] - earlier[1]) / (later[0] - earlier[0]) for earlier, later in pairs)
    return Trend(slope * SEGMENTS, (score - 1) / deviation, statistics.median(mean for _, mean in means))
