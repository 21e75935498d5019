"""Request timings: for each sequence, where its time went, so that the parts sum to the whole.

A sequence is always in one account. Waiting is charged through `QueueWaitMeter`, which runs once for the whole queue of
a lane: a sequence notes its reading when it joins and when it leaves, so that ten thousand waiting cost nothing per
step. Every second of waiting is charged twice: to what was lacking, and to the lane that had most of it.
Knows nothing of why a sequence moves; the scheduler says that it does.
"""

from __future__ import annotations

from copy import copy
from typing import NamedTuple

from inflight.records.timings import GRAMMAR, QUEUE_REASONS, Timings

OTHER = "other"  # waiting for the step that was under way when the request came


class Hands(NamedTuple):
    """Seconds that a queue has stood still: for each reason, and behind each lane (those with the reason OTHER behind
    nobody)."""

    by_reason: dict[str, float]
    behind: dict[str, float]

    def move(self, seconds: float, reason: str, behind: str) -> None:
        self.by_reason[reason] += seconds
        if reason != OTHER:
            self.behind[behind] = self.behind.get(behind, 0.0) + seconds


class QueueWaitMeter:
    """How long the queue of one lane has stood still, for what and behind which lane."""

    def __init__(self) -> None:
        self._hands = Hands(dict.fromkeys((*QUEUE_REASONS, OTHER), 0.0), {})
        self._holds = (OTHER, "")  # reason, lane
        self._since: float | None = None

    @property
    def reason(self) -> str:
        """What the queue stands still for now."""
        return self._holds[0]

    @property
    def behind(self) -> str:
        """The lane that has most of it."""
        return self._holds[1]

    def charge(self, now: float, reason: str, behind: str) -> None:
        """Charge the time since the last call to what held then; from now on this reason holds, and this lane has most
        of what lacks."""
        if self._since is not None:
            self._hands.move(now - self._since, *self._holds)
        self._since = now
        self._holds = (reason, behind)

    def read(self, now: float) -> Hands:
        hands = Hands(dict(self._hands.by_reason), dict(self._hands.behind))
        if self._since is not None:
            hands.move(now - self._since, *self._holds)
        return hands


class RequestTimings:
    """Accounts of one sequence, in seconds on the engine's clock."""

    __slots__ = (
        "_entered",
        "_hands",
        "_state",
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
        self._hands = Hands({}, {})
        self.seconds = dict.fromkeys(("queue", "prefill", "decode", "preempted", OTHER), 0.0)
        self.queued_by = dict.fromkeys(QUEUE_REASONS, 0.0)
        self.queued_behind: dict[str, float] = {}
        self.started: float | None = None
        self.first_token: float | None = None
        self.ended: float | None = None
        self.cached_tokens = 0
        self.recomputed_tokens = 0
        self.swapped_blocks = 0

    def arrive(self, arrival: float, now: float, clock: QueueWaitMeter) -> None:
        """`arrival` may lie before `now`: the engine was busy, or the client's bridge was."""
        self.seconds[OTHER] += max(0.0, now - arrival)
        self._hands = clock.read(now)
        self._enter("queue", now)

    def compiled(self, seconds: float, lane: str) -> None:
        """So long of what lay before it joined the queue, its grammar was being compiled. lane: its own."""
        seconds = min(seconds, self.seconds[OTHER])
        if seconds > 0:
            self.seconds[OTHER] -= seconds
            self.seconds["queue"] += seconds
            self.queued_by[GRAMMAR] += seconds
            self.queued_behind[lane] = self.queued_behind.get(lane, 0.0) + seconds

    def stand_apart(self, now: float, clock: QueueWaitMeter) -> None:
        """From now on its queue goes on without it."""
        if self._state == "queue":
            self._leave_queue(now, clock)
            self._enter("queue", now)

    def awaited(self, reason: str, now: float, clock: QueueWaitMeter, lane: str) -> None:
        """All the time that it stood apart from its queue, it was this that lacked. lane: its own."""
        if self._state != "queue":
            return  # preempted, which it is until its next token
        waited = now - self._entered
        if waited > 0:
            self.seconds["queue"] += waited
            self.queued_by[reason] += waited
            self.queued_behind[lane] = self.queued_behind.get(lane, 0.0) + waited
        self._hands = clock.read(now)
        self._entered = now

    def start(self, now: float, clock: QueueWaitMeter) -> None:
        """Its first chunk is planned. After a preemption the account stays `preempted` until the next token."""
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
        if self._state == "queue":
            self._leave_queue(now, clock)
        self._enter(None, now)
        self.ended = now

    def _leave_queue(self, now: float, clock: QueueWaitMeter) -> None:
        """Split the stay by what the queue stood still for, and behind whom; what no reason claims is `other`."""
        hands = clock.read(now)
        waited = 0.0
        for reason in QUEUE_REASONS:
            spent = hands.by_reason[reason] - self._hands.by_reason[reason]
            self.queued_by[reason] += spent
            waited += spent
        for lane, seconds in hands.behind.items():
            spent = seconds - self._hands.behind.get(lane, 0.0)
            if spent > 0:
                self.queued_behind[lane] = self.queued_behind.get(lane, 0.0) + spent
        self.seconds["queue"] += waited
        self._state, self._entered = OTHER, self._entered + waited

    def _enter(self, state: str | None, now: float) -> None:
        if self._state is not None:
            self.seconds[self._state] += now - self._entered
        self._state = state
        self._entered = now

    def so_far(self, now: float, clock: QueueWaitMeter, lacked: str | None, lane: str) -> RequestTimings:
        """The account as it were if the sequence ended now, unless it has. lacked: for what it stands apart from its
        queue, if it does. lane: its own."""
        other = copy(self)
        other.seconds, other.queued_by = dict(self.seconds), dict(self.queued_by)
        other.queued_behind = dict(self.queued_behind)
        if other.ended is None:
            if lacked is not None:
                other.awaited(lacked, now, clock, lane)
            other.end(now, clock)
        return other

    def summary(self, arrival: float, prompt_tokens: int, output_tokens: int, lane: str) -> Timings:
        """The account, once the sequence has ended."""
        ms = {name: max(0.0, value * 1e3) for name, value in self.seconds.items()}
        decode_ms = ms["decode"]
        return Timings(
            queue_ms=ms["queue"],
            prefill_ms=ms["prefill"],
            decode_ms=decode_ms,
            preempted_ms=ms["preempted"],
            other_ms=ms[OTHER],
            total_ms=sum(ms.values()),
            ttft_ms=None if self.first_token is None else (self.first_token - arrival) * 1e3,
            cached_tokens=self.cached_tokens,
            recomputed_tokens=self.recomputed_tokens,
            swapped_blocks=self.swapped_blocks,
            prompt_tokens_per_s=(
                (prompt_tokens - self.cached_tokens) / ms["prefill"] * 1e3
                if ms["prefill"] and self.first_token is not None
                else None
            ),
            output_tokens_per_s=(output_tokens - 1) / decode_ms * 1e3 if decode_ms and output_tokens > 1 else None,
            lane=lane,
            queued_by={reason: value * 1e3 for reason, value in self.queued_by.items()},
            queued_behind={name: value * 1e3 for name, value in self.queued_behind.items()},
            started_ms=None if self.started is None else (self.started - arrival) * 1e3,
        )
