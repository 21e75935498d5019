"""Request timings: where each sequence's time went, so that the parts sum to the whole.

A sequence is always in one account. Waiting is charged through `QueueWaitMeter`, one for the queue of each lane: a
sequence notes its reading when it joins and when it leaves, so that ten thousand waiting ones cost nothing per step.
Every second of waiting is charged twice: to the resource that blocked the queue, and to the lane that had most of it.
"""

from __future__ import annotations

from copy import copy
from functools import lru_cache
from typing import NamedTuple

from inflight.core.types.timings import GRAMMAR, QUEUE_REASONS, Timings

OTHER = "other"  # waiting for the step that was running when the request came


class QueueWaits(NamedTuple):
    """Seconds that a queue was blocked, by reason and, except for the reason OTHER, by lane."""

    by_reason: dict[str, float]
    by_lane: dict[str, float]

    def add(self, seconds: float, reason: str, lane: str) -> None:
        self.by_reason[reason] += seconds
        if reason != OTHER:
            self.by_lane[lane] = self.by_lane.get(lane, 0.0) + seconds


class StepTime:
    """The time of the scheduler's verb in progress, which is read once; seconds on the engine's clock."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = 0.0


class QueueWaitMeter:
    """Measures how long the queue of one lane is blocked, on what and behind which lane."""

    def __init__(self) -> None:
        self._waits = QueueWaits(dict.fromkeys((*QUEUE_REASONS, OTHER), 0.0), {})
        self._blocked_on = (OTHER, "")  # reason, lane
        self._since: float | None = None

    @property
    def reason(self) -> str:
        """Reason for which the queue is blocked now."""
        return self._blocked_on[0]

    @property
    def behind(self) -> str:
        """The lane that has most of it."""
        return self._blocked_on[1]

    def charge(self, now: float, reason: str, behind: str) -> None:
        """Charge the time since the last call to what blocked the queue then, and set what blocks it from now on."""
        if self._since is not None:
            self._waits.add(now - self._since, *self._blocked_on)
        self._since = now
        self._blocked_on = (reason, behind)

    def read(self, now: float) -> QueueWaits:
        """Return the waits up to now."""
        waits = QueueWaits(dict(self._waits.by_reason), dict(self._waits.by_lane))
        if self._since is not None:
            waits.add(now - self._since, *self._blocked_on)
        return waits


class RequestTimings:
    """Accounts of one sequence, in seconds on the engine's clock."""

    __slots__ = (
        "_entered",
        "_state",
        "_waits",
        "cached_tokens",
        "ended",
        "first_token",
        "queued_behind",
        "queued_by",
        "recomputed_tokens",
        "seconds",
        "started",
        "swapped_blocks",
    )

    def __init__(self) -> None:
        self._state: str | None = None
        self._entered = 0.0
        self._waits = QueueWaits({}, {})  # of the meter when it joined the queue
        self.seconds = dict.fromkeys(("queue", "prefill", "decode", "preempted", OTHER), 0.0)
        self.queued_by = dict.fromkeys(QUEUE_REASONS, 0.0)
        self.queued_behind: dict[str, float] = {}
        self.started: float | None = None
        self.first_token: float | None = None
        self.ended: float | None = None
        self.cached_tokens = self.recomputed_tokens = self.swapped_blocks = 0

    def arrive(self, arrival: float, now: float, clock: QueueWaitMeter) -> None:
        """Join the queue. `arrival` may lie before `now`: the engine was busy, or the client's bridge was."""
        self.seconds[OTHER] += max(0.0, now - arrival)
        self._waits = clock.read(now)
        self._enter("queue", now)

    def add_compile_time(self, seconds: float, lane: str) -> None:
        """Charge so much of the time before it joined the queue to compiling its grammar. lane: its own."""
        seconds = min(seconds, self.seconds[OTHER])
        if seconds > 0:
            self.seconds[OTHER] -= seconds
            self._add_wait(seconds, GRAMMAR, lane)

    def block(self, now: float, clock: QueueWaitMeter) -> None:
        """Leave the queue, which continues without it."""
        if self._state == "queue":
            self._leave_queue(now, clock)
            self._enter("queue", now)

    def unblock(self, reason: str, now: float, clock: QueueWaitMeter, lane: str) -> None:
        """Charge the time since `block` to what it was blocked on. lane: its own."""
        if self._state != "queue":
            return  # preempted, which it is until its next token
        if now > self._entered:
            self._add_wait(now - self._entered, reason, lane)
        self._waits = clock.read(now)
        self._entered = now

    def start(self, now: float, clock: QueueWaitMeter) -> None:
        """Begin prefill with its first chunk. After a preemption it stays `preempted` until the next token."""
        if self._state == "queue":
            self._leave_queue(now, clock)
            self._enter("prefill", now)
            self.started = now

    def token(self, now: float) -> None:
        if self.first_token is None:
            self.first_token = now
        if self._state != "decode":
            self._enter("decode", now)

    def preempt(self, now: float) -> None:
        self._enter("preempted", now)

    def end(self, now: float, clock: QueueWaitMeter) -> None:
        """Close the accounts."""
        if self._state == "queue":
            self._leave_queue(now, clock)
        self._enter(None, now)
        self.ended = now

    def _add_wait(self, seconds: float, reason: str, lane: str) -> None:
        self.seconds["queue"] += seconds
        self.queued_by[reason] += seconds
        self.queued_behind[lane] = self.queued_behind.get(lane, 0.0) + seconds

    def _leave_queue(self, now: float, clock: QueueWaitMeter) -> None:
        """Split the wait by what blocked the queue, and behind which lane; without a reason it is `other`."""
        waits = clock.read(now)
        waited = 0.0
        for reason in QUEUE_REASONS:
            spent = waits.by_reason[reason] - self._waits.by_reason[reason]
            self.queued_by[reason] += spent
            waited += spent
        for lane, seconds in waits.by_lane.items():
            spent = seconds - self._waits.by_lane.get(lane, 0.0)
            if spent > 0:
                self.queued_behind[lane] = self.queued_behind.get(lane, 0.0) + spent
        self.seconds["queue"] += waited
        self._state, self._entered = OTHER, self._entered + waited

    def _enter(self, state: str | None, now: float) -> None:
        if self._state is not None:
            self.seconds[self._state] += now - self._entered
        self._state = state
        self._entered = now

    def so_far(self, now: float, clock: QueueWaitMeter, blocked_on: str | None, lane: str) -> RequestTimings:
        """Return the accounts as if the sequence ended now, unless it has.

        Args:
            now: Seconds on the engine's clock.
            clock: The meter of its queue.
            blocked_on: Reason for which it has left its queue, if it has.
            lane: Its own.
        """
        other = copy(self)
        other.seconds, other.queued_by = dict(self.seconds), dict(self.queued_by)
        other.queued_behind = dict(self.queued_behind)
        if other.ended is None:
            if blocked_on is not None:
                other.unblock(blocked_on, now, clock, lane)
            other.end(now, clock)
        return other

    def summary(self, arrival: float, prompt_tokens: int, output_tokens: int, lane: str) -> Timings:
        """Return the accounts of a sequence that has ended, as they are reported."""
        ms = {name: max(0.0, value * 1e3) for name, value in self.seconds.items()}
        prefill_ms, decode_ms = ms["prefill"], ms["decode"]
        computed = prompt_tokens - self.cached_tokens
        return Timings(
            queue_ms=ms["queue"],
            prefill_ms=prefill_ms,
            decode_ms=decode_ms,
            preempted_ms=ms["preempted"],
            other_ms=ms[OTHER],
            total_ms=sum(ms.values()),
            ttft_ms=None if self.first_token is None else (self.first_token - arrival) * 1e3,
            cached_tokens=self.cached_tokens,
            recomputed_tokens=self.recomputed_tokens,
            swapped_blocks=self.swapped_blocks,
            prompt_tokens_per_s=computed / prefill_ms * 1e3 if prefill_ms and self.first_token is not None else None,
            output_tokens_per_s=(output_tokens - 1) / decode_ms * 1e3 if decode_ms and output_tokens > 1 else None,
            lane=lane,
            queued_by={reason: value * 1e3 for reason, value in self.queued_by.items()},
            queued_behind={name: value * 1e3 for name, value in self.queued_behind.items()},
            started_ms=None if self.started is None else (self.started - arrival) * 1e3,
        )


class Untimed(RequestTimings):
    """Accounts of tokens and blocks alone, for schedulers of which it is not asked where a request's time went."""

    __slots__ = ()

    def __init__(self) -> None:
        self.first_token = self.ended = None
        self.cached_tokens = self.recomputed_tokens = self.swapped_blocks = 0

    def arrive(self, arrival: float, now: float, clock: QueueWaitMeter) -> None: ...

    def add_compile_time(self, seconds: float, lane: str) -> None: ...

    def block(self, now: float, clock: QueueWaitMeter) -> None: ...

    def unblock(self, reason: str, now: float, clock: QueueWaitMeter, lane: str) -> None: ...

    def start(self, now: float, clock: QueueWaitMeter) -> None: ...

    def token(self, now: float) -> None: ...

    def preempt(self, now: float) -> None: ...

    def end(self, now: float, clock: QueueWaitMeter) -> None:
        """Note the time: of several samples the last one is summarised."""
        self.ended = now

    def so_far(self, now: float, clock: QueueWaitMeter, blocked_on: str | None, lane: str) -> RequestTimings:
        """Return these accounts."""
        return copy(self)

    def summary(self, arrival: float, prompt_tokens: int, output_tokens: int, lane: str) -> Timings:
        """Return the accounts, without times."""
        return _untimed(self.cached_tokens, self.recomputed_tokens, self.swapped_blocks, lane)


@lru_cache(maxsize=1024)
def _untimed(cached: int, recomputed: int, swapped: int, lane: str) -> Timings:
    return Timings(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, None, cached, recomputed, swapped, None, None, lane)
