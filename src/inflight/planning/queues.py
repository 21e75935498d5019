"""Decide whether a trial's queue grows without end. Latency rises while an empty engine fills, too, but by little of
the run; the waiting of a queue that gets more than is served rises by a share of it."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence

from inflight.metrics.observation import Observation
from inflight.metrics.summary import SIGNIFICANT, Trend, Window, ttft_trend

MAX_WAIT = 0.3  # of the run, in the median of a class: beyond, its queue grows without end
RISE = 0.02  # of the run, that waiting must grow by: about what a load of 3 % more than is served adds
MIN_SHARE = 0.05  # of the work, of a lane that has less
JUDGED = 0.6  # of the run, in which a class's queue must not grow: what comes later is served when arrivals end


def grows(trend: Trend | None, seconds: float, share: float = 1.0) -> bool:
    """Whether waiting grows without end.

    Args:
        trend: Of the time to the first token.
        seconds: Of the run.
        share: Of the work that is of its lane. All that is beyond what is served waits in the lowest lane, whose queue
            grows the faster the less of the work is its own.
    """
    return trend is not None and trend.z > SIGNIFICANT and trend.rise > RISE * seconds / share


def class_behind(observations: Sequence[Observation], span: float) -> str:
    """Return the class whose queue grows, as a low lane's does where others take all; "" where there is none, or one
    class. Each is judged by itself, and before arrivals end, since its later requests wait less."""
    by_class: dict[str, list[Observation]] = defaultdict(list)
    for one in observations:
        by_class[one.traffic].append(one)
    first, of_lane = min(one.intended for one in observations), Counter[str]()
    for one in observations:
        of_lane[one.lane] += _work(one)
    whole = max(1, of_lane.total())
    for name, ones in by_class.items() if len(by_class) > 1 else ():
        waits = [math.inf if one.response is None else one.response for one in ones]
        trends = (ttft_trend(ones, Window(first, first + part * span)) for part in (JUDGED, 1.0))
        share = max(MIN_SHARE, of_lane[ones[0].lane] / whole)
        # A low lane's waiting varies by as much as it is, near capacity.
        if (
            any(one is not None and one.growing and grows(one, span, share) for one in trends)
            or statistics.median(waits) > MAX_WAIT * span
        ):
            return name
    return ""


def _work(one: Observation) -> int:
    return one.prompt_tokens - one.cached_tokens + one.output_tokens
