"""Decide whether a trial's queue grows without end. Latency rises while an empty engine fills, too, but by little of
the run; the waiting of a queue that gets more than is served rises by a share of it."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence

from inflight.metrics.observation import Observation
from inflight.metrics.summary import SIGNIFICANT, Trend, Window, ttft_trend

MAX_WAIT = 0.3  # of the run, in the median of a class: beyond, its queue grows without end
RISE = 0.02  # of the run, that waiting must grow by: about what a load of 3 % more than is served adds
JUDGED = 0.6  # of the run, in which a class's queue must not grow: what comes later is served when arrivals end


def grows(trend: Trend | None, seconds: float) -> bool:
    """Whether waiting grows without end. trend: of the time to the first token. seconds: of the run."""
    return trend is not None and trend.z > SIGNIFICANT and trend.rise > RISE * seconds


def class_behind(observations: Sequence[Observation], span: float) -> str:
    """Return the class whose queue grows, as a low lane's does where others take all; "" where there is none, or one
    class. Each is judged by itself, and before arrivals end, since its later requests wait less."""
    by_class: dict[str, list[Observation]] = defaultdict(list)
    for one in observations:
        by_class[one.traffic].append(one)
    first = min(one.intended for one in observations)
    for name, ones in by_class.items() if len(by_class) > 1 else ():
        waits = [math.inf if one.response is None else one.response for one in ones]
        some, whole = (ttft_trend(ones, Window(first, first + share * span)) for share in (JUDGED, 1.0))
        # A low lane's waiting varies by as much as it is, near capacity.
        if (
            any(one is not None and one.growing and grows(one, span) for one in (some, whole))
            or statistics.median(waits) > MAX_WAIT * span
        ):
            return name
    return ""
