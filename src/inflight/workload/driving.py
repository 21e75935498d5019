"""Drive an engine with a workload in the caller's thread, and collect an observation of each entry.

The same for a real engine, a simulated one and the null executor. Output lengths are forced to those that were drawn or
recorded: greedy, past end tokens. Later turns carry made-up answers (`contents`), since no real answer is known here.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

from inflight.core.types.events import Event, FinishedEvent, TokensEvent
from inflight.core.types.plan import WaitUntil
from inflight.core.types.request import SLO, Request, RequestRefused
from inflight.core.types.sampling import SamplingParams
from inflight.engine.loop import EngineLoop
from inflight.metrics.observation import Observation, Outcome
from inflight.workload.workload import NO_TARGETS, Entry, Pacer, Workload


class EngineFault(RuntimeError):
    """A step failed, so that the run's measurements are worthless."""


@dataclass(slots=True)
class PendingRequest:
    """A request in flight. intended, sent: seconds on the engine's clock. sample_times: of its tokens."""

    index: int
    request: Request
    intended: float
    sent: float
    sample_times: list[array[float]]


class ObservationCollector:
    """Collects what happens to each entry of a workload, and makes its observation."""

    def __init__(self, workload: Workload, on_end: Callable[[int, Observation], None] | None = None):
        """on_end: called with the index and the observation of each entry as it ends."""
        self._workload = workload
        self._on_end = on_end
        self._observed: dict[int, Observation] = {}
        self.pending: dict[str, PendingRequest] = {}  # by request id

    def sent(self, index: int, request: Request, intended: float, now: float) -> None:
        sample_times = [array("d") for _ in range(request.params.n)]
        self.pending[request.request_id] = PendingRequest(index, request, intended, now, sample_times)

    def refused(self, index: int, refusal: RequestRefused, intended: float, now: float) -> None:
        outcome: Outcome = "failed" if refusal.retry_after is None else "rejected"
        self._end(index, self._observation(index, intended, outcome, sent=now, ended=now, error=str(refusal)))

    def take(self, events: Iterable[Event], now: float) -> list[int]:
        """Take the events of this time and return the entries that end with them. Raises EngineFault."""
        ended = []
        for event in events:
            pending = self.pending[event.request_id]
            if isinstance(event, TokensEvent):
                times = pending.sample_times[event.sample_index]
                if len(event.token_ids) == 1:
                    times.append(now)
                else:
                    times.extend([now] * len(event.token_ids))
            elif isinstance(event, FinishedEvent):
                del self.pending[event.request_id]
                for finish in event.finishes:
                    if finish.reason == "error":
                        raise EngineFault(f"A step of the engine failed: {finish.detail}")
                ended.append(pending.index)
                self._end(pending.index, self._ended(pending, event.timings.cached_tokens, now, "completed"))
        return ended

    def tokens(self, request_id: str, times: Sequence[float]) -> None:
        """Take one token at each of these times, of a request with one sample."""
        self.pending[request_id].sample_times[0].extend(times)

    def cut_off(self, start: float, now: float) -> None:
        """End the run that began at `start`: entries that have not ended are unfinished."""
        for pending in tuple(self.pending.values()):
            self._end(pending.index, self._ended(pending, 0, now, "unfinished"))
        self.pending.clear()
        for index, entry in enumerate(self._workload.entries):
            if index not in self._observed:
                self._end(index, self._observation(index, min(start + entry.arrival, now), "unfinished", ended=now))

    def observations(self) -> list[Observation]:
        """Return the observations in the order of the entries."""
        return [self._observed[index] for index in range(len(self._workload.entries))]

    def _end(self, index: int, observation: Observation) -> None:
        self._observed[index] = observation
        if self._on_end is not None:
            self._on_end(index, observation)

    def _ended(self, pending: PendingRequest, cached_tokens: int, now: float, outcome: Outcome) -> Observation:
        return self._observation(
            pending.index,
            pending.intended,
            outcome,
            sent=pending.sent,
            ended=now,
            sample_times=pending.sample_times,
            prompt_tokens=len(pending.request.prompt_token_ids),
            cached_tokens=cached_tokens,
        )

    def _observation(
        self,
        index: int,
        intended: float,
        outcome: Outcome,
        *,
        ended: float,
        sent: float | None = None,
        sample_times: Sequence[array[float]] = (array("d"),),
        prompt_tokens: int = 0,
        cached_tokens: int = 0,
        error: str = "",
    ) -> Observation:
        entry = self._workload.entries[index]
        several = len(sample_times) > 1
        token_times = array("d", sorted(chain.from_iterable(sample_times))) if several else sample_times[0]
        return Observation(
            request_id=str(index),
            intended=intended,
            ended=ended,
            outcome=outcome,
            sent=sent,
            first_token=token_times[0] if token_times else None,
            last_token=token_times[-1] if token_times else None,
            token_times=token_times,
            sample_times=sample_times if several else (),
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
            output_tokens=len(token_times),
            longest_output=max(map(len, sample_times)),
            traffic=entry.traffic,
            lane=entry.lane,
            tenant=entry.tenant,
            program=entry.program or entry.session,
            targets=entry.targets,
            error=error,
        )


_NO_SLO = SLO()


@lru_cache(maxsize=1024)
def _params(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, ignore_eos=True, max_tokens=max_tokens)


def core_request(
    entry: Entry, request_id: str, prompt_token_ids: tuple[int, ...], arrival: float | None = None
) -> Request:
    """Make an entry's request. arrival: where it is known only now (later turns, closed loops); None: the entry's."""
    max_tokens, targets = entry.max_tokens or entry.output_tokens, entry.targets
    return Request(
        request_id=request_id,
        prompt_token_ids=prompt_token_ids,
        params=_params(max_tokens),
        arrival=entry.arrival if arrival is None else arrival,
        lane=entry.lane or "interactive",
        tenant=entry.tenant,
        priority=entry.priority or 0,
        slo=_NO_SLO if targets is NO_TARGETS else SLO(targets.ttft, targets.gap, targets.tpot),
        cache_salt=entry.cache_salt,
        session=entry.session,
        program=entry.program,
        forced_output_tokens=min(entry.output_tokens, max_tokens),
    )


POLL_SECONDS = 0.05  # how often `stop` is asked while nothing is due


class Driver:
    """Runs a workload on an engine.

    A request is due when the engine could have taken it: waiting for a step that is in flight is the engine's delay,
    not the client's, and counts. A turn of a conversation follows the answer before it.
    """

    def __init__(
        self,
        loop: EngineLoop,
        workload: Workload,
        request: Callable[[int, float], Request],
        *,
        on_step: Callable[[list[Event]], None] | None = None,
        on_end: Callable[[int, Observation], None] | None = None,
    ):
        """Prepare a run.

        Args:
            request: makes the engine's request for (index of an entry, intended send time on the engine's clock).
            on_step: called with the events of each step.
            on_end: called with the index and the observation of each entry as it ends.
        """
        self._loop = loop
        self._request = request
        self._on_step = on_step
        self._stop: Callable[[], bool] | None = None
        self._pacer = Pacer(workload)
        self._collector = ObservationCollector(workload, on_end)
        self._start = 0.0

    def run(self, stop: Callable[[], bool] | None = None) -> list[Observation]:
        """Run the workload.

        Args:
            stop: asked whether the run is to end now; requests in flight are aborted then.

        Returns:
            The observations in the order of the entries; times on the engine's clock, as in its record.

        Raises:
            EngineFault: a step failed.
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
            result = self._loop.advance(until=math.inf if due is None else self._start + due)
            if isinstance(result, WaitUntil):
                self._wait(result.time if due is None else min(result.time, self._start + due))
                continue
            self._take(result)
        self._abandon()
        return self._collector.observations()

    def _offer(self) -> None:
        """Send the entries that are due; a refusal may make room for the next one at once."""
        while due := self._pacer.take_due(self._loop.clock.now() - self._start):
            for index, intended in due:
                self._send(index, self._start + intended)

    def _send(self, index: int, intended: float) -> None:
        request = self._request(index, intended)
        now = self._loop.clock.now()
        try:
            self._loop.add(request)
        except RequestRefused as refusal:
            self._pacer.ended(index, now - self._start)
            self._collector.refused(index, refusal, intended, now)
            return
        self._collector.sent(index, request, intended, now)

    def _wait(self, until: float) -> None:
        """Wait until a time; a little at a time where the run may be stopped."""
        clock = self._loop.clock
        clock.wait_until(until if self._stop is None else min(until, clock.now() + POLL_SECONDS))

    def _take(self, events: list[Event]) -> None:
        now = self._loop.clock.now()
        for index in self._collector.take(events, now):
            self._pacer.ended(index, now - self._start)
        if self._on_step is not None:
            self._on_step(events)

    def _abandon(self) -> None:
        """Abort the requests that have not ended."""
        for request_id in tuple(self._collector.pending):
            self._loop.abort(request_id)
        self._collector.cut_off(self._start, self._loop.clock.now())
