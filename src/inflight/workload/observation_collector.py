"""What is seen of each entry of a workload while an engine serves it: who is under way, and the observation it ends as.

Knows entries, events and times on the engine's clock; not who drives which engine.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from inflight.core.types.events import Event, FinishedEvent, TokensEvent
from inflight.core.types.request import Request, RequestRefused
from inflight.metrics.observation import Observation, Outcome
from inflight.workload.workload import Workload


class EngineFault(RuntimeError):
    """A step failed: what the run measured would tell nothing."""


@dataclass(slots=True)
class PendingRequest:
    """intended, sent: seconds on the engine's clock. sample_times: when the tokens of each sample came."""

    index: int
    request: Request
    intended: float
    sent: float
    sample_times: list[array[float]]


class ObservationCollector:
    def __init__(self, workload: Workload, ended: Callable[[int, Observation], None] | None = None):
        """ended: told of each entry, by index, what became of it."""
        self._workload = workload
        self._on_end = ended
        self._observed: dict[int, Observation] = {}
        self.pending: dict[str, PendingRequest] = {}  # by request id

    def sent(self, index: int, request: Request, intended: float, now: float) -> None:
        sample_times = [array("d") for _ in range(request.params.n)]
        self.pending[request.request_id] = PendingRequest(index, request, intended, now, sample_times)

    def refused(self, index: int, refusal: RequestRefused, intended: float, now: float) -> None:
        outcome: Outcome = "failed" if refusal.retry_after is None else "rejected"
        self._end(index, self._observation(index, intended, outcome, sent=now, ended=now, error=str(refusal)))

    def take(self, events: Iterable[Event], now: float) -> list[int]:
        """Events that came at this time; returns the entries that ended by them. Raises EngineFault."""
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
        """One token of a request, which has one sample, at each of these times."""
        self.pending[request_id].sample_times[0].extend(times)

    def cut_off(self, start: float, now: float) -> None:
        """The run that began at `start` ends: whatever has not ended is unfinished."""
        for pending in tuple(self.pending.values()):
            self._end(pending.index, self._ended(pending, 0, now, "unfinished"))
        self.pending.clear()
        for index, entry in enumerate(self._workload.entries):
            if index not in self._observed:
                self._end(index, self._observation(index, min(start + entry.arrival, now), "unfinished", ended=now))

    def observations(self) -> list[Observation]:
        """In the order of the entries."""
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
            targets=entry.targets,
            error=error,
        )
