"""Runs a workload on an engine in the caller's thread, on whatever clock it has, and notes what becomes of each entry.

The same for a real engine, a simulated one and the null executor. Knows the loop and the pacer; not where engines come
from, and not what figures mean.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

from inflight.core.events import Event, FinishedEvent, TokensEvent
from inflight.core.plan import WaitUntil
from inflight.core.request import Request, RequestRefused
from inflight.engine.loop import EngineLoop
from inflight.metrics.observation import Observation, Outcome
from inflight.workload.entry import Entry
from inflight.workload.pacing import Pacer
from inflight.workload.workload import Workload

POLL_SECONDS = 0.05  # how often somebody who wants to stop is heard while nothing is due


class EngineFault(RuntimeError):
    """A step failed: what the run measured would tell nothing."""


@dataclass(slots=True)
class _Alive:
    index: int
    request: Request
    sent: float
    token_times: array[float] = field(default_factory=lambda: array("d"))
    counts: list[int] = field(default_factory=list)  # output tokens of each sample


class Driver:
    """request: the engine's request for (index of an entry, intended send time on the engine's clock).

    A request's time to be sent is when the engine could have taken it; that it stood busy with a step is the engine's
    delay, not the client's, and counts. A turn of a conversation follows the answer before it.
    """

    def __init__(
        self,
        loop: EngineLoop,
        workload: Workload,
        request: Callable[[int, float], Request],
        *,
        stepped: Callable[[list[Event]], None] | None = None,
        ended: Callable[[int, Observation], None] | None = None,
    ):
        """stepped: told the events of each step. ended: told of each entry, by index, what became of it."""
        self._loop = loop
        self._workload = workload
        self._request = request
        self._stepped = stepped
        self._told = ended
        self._stop: Callable[[], bool] | None = None
        self._pacer = Pacer(workload)
        self._alive: dict[str, _Alive] = {}
        self._observed: dict[int, Observation] = {}
        self._start = 0.0

    def run(self, stop: Callable[[], bool] | None = None) -> list[Observation]:
        """What became of the entries, in their order; times on the engine's clock, as in its record.

        stop: whether the run is to end now; what is under way is aborted then. Raises EngineFault when a step fails.
        """
        self._stop = stop
        clock = self._loop.clock
        self._start = clock.now()
        while not self._pacer.done and (stop is None or not stop()):
            self._offer()
            due = self._pacer.next_due()
            if self._loop.idle:
                if due is not None:
                    self._wait(self._start + due)
                continue
            result = self._loop.advance()
            if isinstance(result, WaitUntil):
                self._wait(result.time if due is None else min(result.time, self._start + due))
                continue
            self._take(result)
        self._abandon()
        return [self._observed[index] for index in range(len(self._workload.entries))]

    def _offer(self) -> None:
        """Send whoever is due. A place that a refusal gives back may be the next one's at once."""
        while due := self._pacer.due(self._loop.clock.now() - self._start):
            for index, intended in due:
                self._send(index, self._start + intended)

    def _send(self, index: int, intended: float) -> None:
        request = self._request(index, intended)
        now = self._loop.clock.now()
        try:
            self._loop.add(request)
        except RequestRefused as refusal:
            outcome: Outcome = "failed" if refusal.retry_after is None else "rejected"
            self._pacer.ended(index, now - self._start)
            self._note(index, self._seen(index, intended, outcome, sent=now, ended=now, error=str(refusal)))
            return
        self._alive[request.request_id] = _Alive(index, request, now, counts=[0] * request.params.n)

    def _wait(self, until: float) -> None:
        """At once in virtual time; where somebody may want to stop, a little at a time."""
        clock = self._loop.clock
        clock.wait_until(until if self._stop is None else min(until, clock.now() + POLL_SECONDS))

    def _take(self, events: list[Event]) -> None:
        now = self._loop.clock.now()
        for event in events:
            alive = self._alive[event.request_id]
            if isinstance(event, TokensEvent):
                alive.token_times.extend([now] * len(event.token_ids))
                alive.counts[event.sample_index] += len(event.token_ids)
            elif isinstance(event, FinishedEvent):
                del self._alive[event.request_id]
                for finish in event.finishes:
                    if finish.reason == "error":
                        raise EngineFault(f"A step of the engine failed: {finish.detail}")
                self._pacer.ended(alive.index, now - self._start)
                self._note(alive.index, self._ended(alive, event, now, "completed"))
        if self._stepped is not None:
            self._stepped(events)

    def _abandon(self) -> None:
        """Whatever has not ended, when the run is to stop."""
        now = self._loop.clock.now()
        for alive in tuple(self._alive.values()):
            self._loop.abort(alive.request.request_id)
            self._note(alive.index, self._ended(alive, None, now, "unfinished"))
        self._alive.clear()
        for index, entry in enumerate(self._workload.entries):
            if index not in self._observed:
                self._note(index, self._seen(index, min(self._start + entry.arrival, now), "unfinished", ended=now))

    def _note(self, index: int, observation: Observation) -> None:
        self._observed[index] = observation
        if self._told is not None:
            self._told(index, observation)

    def _ended(self, alive: _Alive, event: FinishedEvent | None, now: float, outcome: Outcome) -> Observation:
        request = alive.request
        return self._seen(
            alive.index,
            request.arrival,
            outcome,
            sent=alive.sent,
            ended=now,
            token_times=alive.token_times,
            prompt_tokens=len(request.prompt_token_ids),
            cached_tokens=0 if event is None else event.timings.cached_tokens,
            output_tokens=sum(alive.counts),
            longest_output=max(alive.counts),
        )

    def _seen(
        self,
        index: int,
        intended: float,
        outcome: Outcome,
        *,
        ended: float,
        sent: float | None = None,
        token_times: array[float] | tuple[float, ...] = (),
        prompt_tokens: int = 0,
        cached_tokens: int = 0,
        output_tokens: int = 0,
        longest_output: int = 0,
        error: str = "",
    ) -> Observation:
        entry: Entry = self._workload.entries[index]
        return Observation(
            request_id=str(index),
            intended=intended,
            ended=ended,
            outcome=outcome,
            sent=sent,
            first_token=token_times[0] if token_times else None,
            last_token=token_times[-1] if token_times else None,
            token_times=token_times,
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
            output_tokens=output_tokens,
            longest_output=longest_output,
            traffic=entry.traffic,
            lane=entry.lane,
            tenant=entry.tenant,
            targets=entry.targets,
            error=error,
        )
