"""Dynamic batching: static batches of one length bucket each, opened by a full bucket or by a window's end.

As NVIDIA Triton's dynamic batcher (preferred batch size, maximum queue delay), with the length buckets of BucketServe
(2025): requests of like length are batched together, so that less of the batch is padding. Borders are given, or follow
the lengths that were seen; the window bounds how long a rare length waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from inflight.core.options import Option, Value, seconds
from inflight.core.sequence import SequenceView
from inflight.core.strategies import Fixed, StepShape, StepView, StrategyEntry
from inflight.core.strategies.static import (
    BATCH_SIZE,
    UNUSED_BECAUSE,
    UNUSED_LANE_SETTINGS,
    batch,
    fills,
    size_of_batch,
)
from inflight.core.types.plan import WaitUntil

SEEN = 512  # latest prompt lengths that automatic borders follow


class Dynamic(Fixed):
    name = "dynamic"

    def __init__(self, batch_size: int, window: float, buckets: int | Sequence[int]):
        """window: seconds from a bucket's oldest arrival until it starts incomplete.

        buckets: upper prompt lengths of the buckets in rising order, or how many buckets to keep about equally full.
        """
        self._batch_size = batch_size
        self._window = window
        self._count = buckets if isinstance(buckets, int) else len(buckets) + 1
        self._fixed = None if isinstance(buckets, int) else tuple(buckets)
        self._seen: deque[int] = deque(maxlen=SEEN)
        self._last_seen = -1  # numbers rise with acceptance

    def shape(self, view: StepView) -> StepShape | WaitUntil:
        if view.running:
            return batch((), self._batch_size)
        buckets = self._sorted_in(list(view.waiting.views()))
        full = [bucket for bucket in buckets if fills(bucket, self._batch_size)]
        if full:
            longest_waiting = min(full, key=_oldest)
            return batch(longest_waiting, self._batch_size)
        if not buckets:
            return batch((), self._batch_size)
        first = min(buckets, key=_oldest)
        end = _oldest(first) + self._window
        return batch(first, self._batch_size) if view.now >= end else WaitUntil(end)

    def _sorted_in(self, waiting: list[SequenceView]) -> list[list[SequenceView]]:
        self._note(waiting)
        borders = self._borders()
        buckets: list[list[SequenceView]] = [[] for _ in range(len(borders) + 1)]
        for one in waiting:
            buckets[sum(one.prompt_tokens > border for border in borders)].append(one)
        return [bucket for bucket in buckets if bucket]

    def _note(self, waiting: list[SequenceView]) -> None:
        for one in waiting:
            if one.number > self._last_seen:
                self._seen.append(one.prompt_tokens)
        self._last_seen = max((one.number for one in waiting), default=self._last_seen)

    def _borders(self) -> tuple[int, ...]:
        if self._fixed is not None:
            return self._fixed
        ordered = sorted(self._seen)
        places = (round(share * len(ordered) / self._count) for share in range(1, self._count))
        return tuple(ordered[place - 1] for place in places if place)


def _oldest(bucket: list[SequenceView]) -> float:
    return min(one.arrival for one in bucket)


def _buckets(value: Value) -> int | tuple[int, ...]:
    """ "4" keeps four buckets about equally full; "64,256" are borders in prompt tokens."""
    try:
        numbers = tuple(int(part) for part in str(value).split(","))
    except ValueError:
        numbers = ()
    if not numbers or list(numbers) != sorted(set(numbers)) or numbers[0] < 1:
        raise ValueError(f"is {value!r}; give how many, such as 4, or rising borders, such as 64,256,1024.")
    buckets = numbers[0] if len(numbers) == 1 else len(numbers) + 1
    if buckets > SEEN:
        raise ValueError(f"asks for {buckets} buckets, but their borders follow the last {SEEN} prompts; give fewer.")
    return numbers[0] if len(numbers) == 1 else numbers


WINDOW = seconds("window", "Seconds that a bucket of dynamic batching waits.", 0.05)
BUCKETS: Option[int | tuple[int, ...]] = Option(
    name="buckets",
    kind=str,
    help="Length buckets of dynamic batching: how many, or borders such as 64,256.",
    default=4,
    read=_buckets,
)
ENTRY = StrategyEntry(
    name="dynamic",
    reason="static batches of one length bucket each",
    options=(BATCH_SIZE, WINDOW, BUCKETS),
    bounded_by="sequences",
    unused_lane_settings=UNUSED_LANE_SETTINGS,
    unused_because=UNUSED_BECAUSE,
    make=lambda context, options: Dynamic(size_of_batch(context, options), options[WINDOW], options[BUCKETS]),
)
