"""Make frames of a record, line by line: those that a viewer of the live engine would have seen.

Only the requests in flight are in memory, whatever the record's length. Facts that a record lacks are estimated: freed
blocks stay cached until they are allocated again (`records.block_owners`), a queue is blocked by what its head waited
for longest, and step times are predicted by the engine's own latency model, fed with the record's steps.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from itertools import chain

from inflight.core.estimation.latency import LatencyModel
from inflight.live.block_map import in_cells
from inflight.live.frame_maker import FrameMaker
from inflight.live.frames import FREE, SHARED, Account, BlocksPart, Frame, Hello, Holder, LanePart, RequestInfo, Setting
from inflight.live.record_index import RecordedRequest, RecordIndex
from inflight.live.recorded_host import RecordedHost
from inflight.live.step_facts import Moment, of_record
from inflight.records.block_owners import CACHED, BlockOwners
from inflight.records.drafts import verified
from inflight.records.schema import Position, RecordError, RequestRecord, StepRecord, read_from

MAX_FRAMES = 1500  # of a record, unless more are requested
_NAMED = 8
MIN_PERIOD = 0.01  # seconds
_MAPS, _SMALL = 300, 512  # maps of a record; blocks of a pool small enough for a map in every frame
_TOGETHER = ("static", "dynamic")  # strategies that send a batch's answers when the batch ends


def period_of(index: RecordIndex, frames: int = MAX_FRAMES) -> float:
    """Return the seconds of a frame if the record is drawn in `frames` frames or fewer."""
    return max(MIN_PERIOD, (index.end - index.start) / frames)


def hello_of(index: RecordIndex, title: str, period: float) -> Hello:
    capacity = index.header.capacity
    settings = [
        Setting.of(name, entry["value"], entry.get("reason", ""))
        if isinstance(entry, dict) and "value" in entry
        else Setting.of(name, entry)
        for name, entry in index.header.settings.items()
    ]
    return Hello(
        source="record",
        title=title,
        num_blocks=capacity.num_blocks,
        block_size=capacity.block_size,
        max_rows=capacity.max_rows,
        host_blocks=capacity.host_blocks,
        period=period,
        span=(round(index.start, 4), round(index.end, 4)),
        sees_all=True,
        settings=settings,
    )


class RecordFeed:
    """The frames of one record.

    Attributes:
        notes: Messages for the viewer, as of a truncated record.
        position: Behind the last line that was read.
    """

    def __init__(self, index: RecordIndex, period: float):
        self._index, self._period = index, period
        self._start = index.start  # of the next frame
        self.position = Position()
        self.notes: list[str] = []
        capacity = index.header.capacity
        self._num_blocks = capacity.num_blocks
        keeps = bool(index.setting("prefix_caching", True))
        windows = capacity.windows
        self._owners = BlockOwners(capacity.block_size, keeps, windows, self._num_blocks)
        self._host = RecordedHost(capacity.host_blocks, bool(index.setting("kv_cache_host", None)))
        self._together = index.setting("strategy", "") in _TOGETHER
        span = index.end - index.start
        self._maker = FrameMaker(max(20 * period, min(10.0, span / 10)))
        self._map_period = period if self._num_blocks <= _SMALL else max(period, span / _MAPS)
        self._map_at = float("-inf")
        self._queues = RecordedQueues(dict.fromkeys(one.lane for one in index.requests))
        self._coming = iter(index.requests)
        self._next = next(self._coming, None)
        self._requests = {number: one for one in index.requests for number in one.sequences}
        self._first = {one.request_id: min(one.sequences) for one in index.requests}
        self._left: dict[int, int] = {}  # sequence → output tokens still to come
        self._latency = LatencyModel()

    def frames(self, reads: Callable[[RecordFeed, float], None] = lambda feed, time: None) -> Iterator[Frame]:
        """Yield the frames from the current position to the end. A damaged record ends early, with an entry in `notes`.

        Args:
            reads: Called with the feed and a line's time before each line.
        """
        try:
            for line, position in read_from(self._index.path, self.position):
                if isinstance(line, StepRecord):
                    reads(self, line.planned)
                    yield from self._until(line.planned)
                    self._planned(line)
                    yield from self._until(line.committed)
                    self._committed(line)
                elif isinstance(line, RequestRecord):
                    reads(self, line.ended)
                    yield from self._until(line.ended)
                    self._ended(line)
                self.position = position
        except RecordError as error:
            self.notes.append(f"The record is cut off: {error} The part before is shown.")
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            self.notes.append(f"A line of the record cannot be read ({error!r}). The part before is shown.")
        yield self._frame()

    @property
    def time(self) -> float:
        """End of the last frame."""
        return self._start

    def copy(self) -> RecordFeed:
        """Return an independent copy of the current state; the index is shared."""
        index = self._index
        shared = (index, index.requests, *index.requests, self._requests, self._first)
        return deepcopy(self, {id(one): one for one in shared})

    def between(self, start: float, end: float, period: float) -> Iterator[Frame]:
        """Yield frames of an interval, for a feed that is before its start. period: seconds of a frame."""
        self._period = math.inf  # no frame ends before the interval

        def begin(feed: RecordFeed, time: float) -> None:
            if feed._period is math.inf and time >= start - period:
                feed._maker.end_frame(feed._start, start, None)
                feed._start, feed._period, feed._map_period, feed._map_at = start, period, period, -math.inf

        for frame in self.frames(begin):
            if frame.end > end + period or self._period is math.inf:
                return
            yield frame

    def _until(self, time: float) -> Iterator[Frame]:
        while time > self._start + self._period:
            yield self._frame()

    def _planned(self, step: StepRecord) -> None:
        """Give the plan's sequences their rows and blocks."""
        self._check_blocks(step)
        self._arrivals(step.planned)
        held = self._owners.sequences
        for row in step.plan.freed_rows:
            number = held.get(row)
            if number is not None:
                self._queues.waits_again(number, self._requests.get(number))
                if number in self._left:
                    self._host.preempted(number, self._owners.held(row))
        self._host.moved(step.plan.copies("store"), step.plan.copies("load"))
        prompts = {new.row: new.prompt_length for new in step.plan.new_requests}
        rows = {chunk.row: chunk.sequence_id for chunk in step.plan.chunks} if prompts else {}
        for chunk in step.plan.chunks:
            if chunk.sequence_id not in self._left and chunk.sequence_id not in self._requests:
                self._unknown(chunk.sequence_id, step.planned, prompts.get(chunk.row, 0))
            self._queues.runs(chunk.sequence_id)
            self._host.taken(chunk.new_blocks)
        for row in prompts:
            self._host.release(rows[row])
        self._owners.free(step)
        self._owners.allocate(step)

    def _check_blocks(self, step: StepRecord) -> None:
        """Raise RecordError for a block beyond the pool."""
        limit = self._num_blocks + any(self._index.header.capacity.windows)  # one more: blocks that left a window
        for chunk in step.plan.chunks:
            for block in chain(chunk.new_blocks, *chunk.window_blocks):
                if block >= limit:
                    raise RecordError(
                        f"step {step.plan.step} takes block {block:,}, but the engine has {self._num_blocks:,} blocks."
                    )

    def _committed(self, step: StepRecord) -> None:
        self._maker.step(of_record(step, self._predicted(step)))
        if step.error is None and not self._together:
            self._tokens(step)

    def _tokens(self, step: StepRecord) -> None:
        """Count the sampled tokens, except those after a sequence's end, which were dropped."""
        accepted = {one.sequence: one.accepted for one in verified(step)}
        for chunk in step.plan.chunks:
            if chunk.sample:
                number = chunk.sequence_id
                count = min(1 + accepted.get(number, 0), self._left.get(number, 0))
                self._left[number] = self._left.get(number, 0) - count
                self._maker.tokens(number, count, step.committed)

    def _predicted(self, step: StepRecord) -> float:
        features = step.features
        predicted = self._latency.seconds(features) if self._latency.ready else 0.0
        self._latency.observe(features, step.seconds - step.draft_seconds)
        return predicted

    def _arrivals(self, until: float) -> None:
        while (one := self._next) is not None and one.arrival <= until:
            self._add(one)
            self._next = next(self._coming, None)

    def _add(self, request: RecordedRequest) -> None:
        slo = request.slo
        infos = [
            RequestInfo(
                number,
                request.request_id,
                request.lane,
                request.tenant,
                round(request.arrival, 4),
                request.prompt_tokens,
                slo.ttft or 0.0,
                slo.itl or 0.0,
                tpot_target=slo.tpot or 0.0,
            )
            for number in sorted(request.sequences)
        ]
        self._maker.add(infos)
        for number, tokens in request.sequences.items():
            self._queues.add(number, request, request.lane)
            self._left[number] = tokens

    def _unknown(self, number: int, at: float, prompt_tokens: int) -> None:
        """Add a sequence that had not ended when the record did."""
        lane = self._index.requests[0].lane if self._index.requests else "interactive"
        info = RequestInfo(number, f"sequence {number}, not ended", lane, "", round(at, 4), prompt_tokens)
        self._maker.add([info])
        self._queues.add(number, None, lane)
        self._left[number] = 1 << 62

    def _ended(self, request: RequestRecord) -> None:
        self._arrivals(request.ended)
        first = self._first.get(request.request.request_id)
        known = None if first is None else self._requests[first]
        if first is None or known is None:
            return
        rows = {number: row for row, number in self._owners.sequences.items()}
        for number, tokens in known.sequences.items():
            if self._together:
                self._maker.tokens(number, tokens, known.ended)
            self._queues.ended(number)
            self._host.release(number)
            self._left.pop(number, None)
            if number in rows:
                self._owners.free_row(rows[number], Counter())
        self._maker.ended(first, known.reason, known.ended, _account(known))

    def _frame(self) -> Frame:
        start, end = self._start, self._start + self._period
        self._start = end
        self._arrivals(end)
        return self._maker.end_frame(start, end, self._moment(end))

    def _moment(self, end: float) -> Moment:
        owners, counts = self._owners, Counter(self._owners.owner.values())
        shared, evictable, held = counts[SHARED], counts[CACHED], owners.allocated
        free = self._num_blocks - held - evictable
        cells: list[int] = []
        holders: list[Holder] = []
        per_cell = 1
        if end - self._map_at >= self._map_period * 0.999:
            self._map_at = end
            every = [FREE] * self._num_blocks
            for block, owner in owners.owner.items():
                every[block] = owner
            cells, per_cell = in_cells(every)
            holders = [self._holder(row, number) for row, number in sorted(owners.sequences.items())]
        host = self._host.part() if cells else None
        blocks = BlocksPart(held, shared, evictable, free, len(self._host), cells, per_cell, host=host)
        return Moment(self._queues.lanes(end), blocks, holders)

    def _holder(self, row: int, number: int) -> Holder:
        held, computed = self._owners.held(row), self._owners.computed(row)
        shared = sum(self._owners.owner.get(block) == SHARED for block in held)
        return Holder(number, row, computed + 1, computed, len(held), shared)


def _account(request: RecordedRequest) -> Account:
    timings = request.timings
    return Account(
        queue=timings.queue_ms,
        prefill=timings.prefill_ms,
        decode=timings.decode_ms,
        preempted=timings.preempted_ms,
        other=timings.other_ms,
        total=timings.total_ms,
        ttft=timings.ttft_ms,
        cached_tokens=timings.cached_tokens,
        recomputed_tokens=timings.recomputed_tokens,
        queued_by={name: ms for name, ms in timings.queued_by.items() if ms > 0},
        queued_behind={name: ms for name, ms in timings.queued_behind.items() if ms > 0},
    )


class RecordedQueues:
    def __init__(self, lanes: Iterable[str]):
        """Start with empty queues. lanes: shown from the start."""
        self._waiting: dict[str, dict[int, RecordedRequest | None]] = {name: {} for name in lanes}
        self._running: dict[int, str] = {}  # sequence → lane
        self._lane_of: dict[int, str] = {}

    def add(self, number: int, request: RecordedRequest | None, lane: str) -> None:
        """Add a waiting sequence. request: None if the record ends before the request does."""
        self._lane_of[number] = lane
        self._waiting.setdefault(lane, {})[number] = request

    def runs(self, number: int) -> None:
        lane = self._lane_of.get(number)
        if lane is not None and number not in self._running:
            self._waiting[lane].pop(number, None)
            self._running[number] = lane

    def waits_again(self, number: int, request: RecordedRequest | None) -> None:
        lane = self._running.pop(number, None)
        if lane is not None:
            self._waiting[lane][number] = request

    def ended(self, number: int) -> None:
        self._running.pop(number, None)
        lane = self._lane_of.pop(number, None)
        if lane is not None:
            self._waiting[lane].pop(number, None)

    def lanes(self, now: float) -> list[LanePart]:
        running = dict.fromkeys(self._waiting, 0)
        for lane in self._running.values():
            running[lane] += 1
        return [self._lane(name, waiting, running[name], now) for name, waiting in self._waiting.items()]

    def _lane(self, name: str, waiting: dict[int, RecordedRequest | None], running: int, now: float) -> LanePart:
        first = [number for number, _ in zip(waiting, range(_NAMED), strict=False)]
        known = next((one for one in waiting.values() if one is not None), None)
        oldest = 0.0 if known is None else max(0.0, round(now - known.arrival, 3))
        reason = _largest(known.timings.queued_by) if known is not None else ""
        behind = _largest(known.timings.queued_behind) if known is not None else ""
        return LanePart(name, len(waiting), running, reason, behind, first, oldest)


def _largest(milliseconds: dict[str, float]) -> str:
    name = max(milliseconds, key=lambda one: milliseconds[one], default="")
    return name if name and milliseconds[name] > 0 else ""
