"""Runs a workload on an engine in the caller's thread, on whatever clock it has, and notes what becomes of each entry.

The same for a real engine, a simulated one and the null executor. The answers that are asked for are those that were
drawn or recorded in length, and nothing in content: greedy, past end tokens, to the forced length. Turns that follow an
answer carry what stands for it in `contents`, since no real answer is known here. Knows the loop and the pacer; not
where engines come from, and not what figures mean.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from inflight.core.types.events import Event
from inflight.core.types.plan import WaitUntil
from inflight.core.types.request import SLO, Request, RequestRefused
from inflight.core.types.sampling import SamplingParams
from inflight.engine.loop import EngineLoop
from inflight.metrics.observation import Observation
from inflight.workload.observation_collector import ObservationCollector
from inflight.workload.pacing import Pacer
from inflight.workload.workload import Entry, Workload


@lru_cache(maxsize=1024)
def _params(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, ignore_eos=True, max_tokens=max_tokens)


def core_request(
    entry: Entry, request_id: str, prompt_token_ids: tuple[int, ...], arrival: float | None = None
) -> Request:
    """arrival: where its time is known only now (later turns, closed loops); None: the entry's."""
    max_tokens = entry.max_tokens or entry.output_tokens
    return Request(
        request_id=request_id,
        prompt_token_ids=prompt_token_ids,
        params=_params(max_tokens),
        arrival=entry.arrival if arrival is None else arrival,
        lane=entry.lane or "interactive",
        tenant=entry.tenant,
        priority=entry.priority or 0,
        slo=SLO(entry.targets.ttft, entry.targets.pace),
        cache_salt=entry.cache_salt,
        session=entry.session,
        forced_output_tokens=min(entry.output_tokens, max_tokens),
    )


POLL_SECONDS = 0.05  # how often somebody who wants to stop is heard while nothing is due


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
        self._request = request
        self._stepped = stepped
        self._stop: Callable[[], bool] | None = None
        self._pacer = Pacer(workload)
        self._collector = ObservationCollector(workload, ended)
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
        return self._collector.observations()

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
            self._pacer.ended(index, now - self._start)
            self._collector.refused(index, refusal, intended, now)
            return
        self._collector.sent(index, request, intended, now)

    def _wait(self, until: float) -> None:
        """At once in virtual time; where somebody may want to stop, a little at a time."""
        clock = self._loop.clock
        clock.wait_until(until if self._stop is None else min(until, clock.now() + POLL_SECONDS))

    def _take(self, events: list[Event]) -> None:
        now = self._loop.clock.now()
        for index in self._collector.take(events, now):
            self._pacer.ended(index, now - self._start)
        if self._stepped is not None:
            self._stepped(events)

    def _abandon(self) -> None:
        """Whatever has not ended, when the run is to stop."""
        for request_id in tuple(self._collector.pending):
            self._loop.abort(request_id)
        self._collector.cut_off(self._start, self._loop.clock.now())
