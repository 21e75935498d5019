"""Decide whether a trial's queue grows without end. Latency rises while an empty engine fills, too, but by little of
the run; the waiting of a queue that gets more than is served rises by a share of it."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence

from inflight.metrics.observation import Observation
from inflight.metrics.summary import SIGNIFICANT, Trend, Window, ttft_trend
from inflight.planning.demand import LANES

MAX_WAIT = 0.3  # of the run, in the median of a class: beyond, its queue grows without end
RISE = 0.02  # of the run, that waiting must grow by: about what a load of 3 % more than is served adds
MIN_STEPS = 4 / RISE  # of a run: waiting varies by a few steps, which are more than RISE of a shorter one
JUDGED = 0.6  # of the run, in which a class's queue must not grow either: later requests are served when arrivals end
LATE = 0.3  # of the judged part, in which a queue that is served is short at least once


def grows(trend: Trend | None, seconds: float) -> bool:
    """Whether waiting grows without end. trend: of the time to the first token. seconds: of the run."""
    return trend is not None and trend.z > SIGNIFICANT and trend.rise > RISE * seconds


def class_behind(observations: Sequence[Observation], span: float) -> str:
    """Return the class whose queue grows, as a low lane's does where others take all; "" where there is none, or one
    class. Each is judged by itself, over the run and over its first JUDGED, since requests near its end wait less."""
    by_class: dict[str, list[Observation]] = defaultdict(list)
    for one in observations:
        by_class[one.traffic].append(one)
    first = min(one.intended for one in observations)
    for name, ones in by_class.items() if len(by_class) > 1 else ():
        windows = [Window(first, first + part * span) for part in (JUDGED, 1.0)]
        if any(_is_behind(ones, one, span) for one in windows) or statistics.median(map(_wait, ones)) > MAX_WAIT * span:
            return name
    return ""


def _is_behind(ones: Sequence[Observation], window: Window, span: float) -> bool:
    """Whether the queue of a class grows in a window. In the lowest lane, where all waits that others leave no time
    for, waiting varies by as much as it is; one that is served is short now and then, however little of the work it
    has."""
    trend = ttft_trend(ones, window)
    if trend is None or not trend.growing or not grows(trend, span):
        return False
    begin = window.end - LATE * window.seconds
    late = (_wait(one) for one in ones if begin <= one.intended <= window.end)
    return ones[0].lane != LANES[-1] or min(late, default=math.inf) > RISE * span


def _wait(one: Observation) -> float:
    return math.inf if one.response is None else one.response
