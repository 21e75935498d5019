"""Driving an engine with a schedule of requests, on the real clock or a virtual one, and what came of each.

A request's clock starts at its intended send time, whether or not the engine was ready for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from msgspec import structs

from inflight.core.scheduling.stats import SchedulerStats
from inflight.core.types.events import Event, FinishedEvent, TokensEvent
from inflight.core.types.executor import Executor, Pending
from inflight.core.types.plan import BatchPlan, Capacity, StepResult, Transferred
from inflight.core.types.request import Request
from inflight.core.types.timings import Timings
from inflight.engine.loop import EngineLoop
from inflight.metrics.definitions import itl, kv_waste, padding_waste
from inflight.metrics.observation import Observation
from inflight.workload.driving import Driver
from inflight.workload.workload import Entry, Workload


@dataclass(slots=True)
class Outcome:
    """One offered request. token_times: when each token came, seconds on the engine's clock."""

    request: Request
    token_times: list[float] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    timings: Timings | None = None
    refused: str | None = None

    @property
    def ttft(self) -> float | None:
        """Seconds; None where no token came."""
        return None if self.timings is None or self.timings.ttft_ms is None else self.timings.ttft_ms / 1e3

    @property
    def gaps(self) -> list[float]:
        return itl(self.token_times)

    def met(self, ttft: float, worst_itl: float | None = None) -> bool:
        """Whether it kept its targets; refused ones did not."""
        if self.ttft is None or self.ttft > ttft:
            return False
        return worst_itl is None or max(self.gaps, default=0.0) <= worst_itl


@dataclass(slots=True)
class Run:
    """All outcomes, and the wall time from the first intended send to the last token."""

    outcomes: list[Outcome]
    seconds: float

    @property
    def output_tokens(self) -> int:
        return sum(len(one.token_ids) for one in self.outcomes)

    @property
    def output_tokens_per_s(self) -> float:
        return self.output_tokens / self.seconds

    @property
    def requests_per_s(self) -> float:
        return sum(one.timings is not None for one in self.outcomes) / self.seconds

    def ttfts(self) -> list[float]:
        return [one.ttft for one in self.outcomes if one.ttft is not None]

    def gaps(self) -> list[float]:
        return [gap for one in self.outcomes for gap in one.gaps]


class Observer:
    """Notes what an engine does, step by step: padding of its plans, sequences running and KV slots after them.

    busy: seconds that its steps took.
    """

    def __init__(self) -> None:
        self.busy = 0.0
        self.slots = 0
        self.padded = 0
        self.running: list[int] = []
        self.running_at_most: list[int] = []  # in steps after which requests waited: as many as could run
        self.preemptions = 0
        self.allocated_slots = 0
        self.used_slots = 0

    def plan(self, plan: BatchPlan) -> None:
        self.slots += plan.tokens
        self.padded += sum(plan.padding)

    def after(self, snapshot: SchedulerStats) -> None:
        self.running.append(snapshot.running)
        if snapshot.waiting:
            self.running_at_most.append(snapshot.running)
        self.preemptions = snapshot.preemptions
        self.allocated_slots += snapshot.kv.held_slots
        self.used_slots += snapshot.kv.used_slots

    @property
    def padding_waste(self) -> float:
        return padding_waste(self.padded, self.slots)

    @property
    def kv_waste(self) -> float:
        """Over all steps, each weighing as much as it held."""
        return kv_waste(self.allocated_slots, self.used_slots)


class _Timed:
    def __init__(self, pending: Pending, observer: Observer):
        self._pending = pending
        self._observer = observer

    def result(self) -> StepResult:
        result = self._pending.result()
        self._observer.busy += result.seconds
        return result


class Watched:
    """An executor whose plans, and the seconds they took, an observer sees."""

    def __init__(self, executor: Executor, observer: Observer):
        self._executor = executor
        self._observer = observer

    @property
    def capacity(self) -> Capacity:
        return self._executor.capacity

    def submit(self, plan: BatchPlan) -> Pending:
        self._observer.plan(plan)
        return _Timed(self._executor.submit(plan), self._observer)

    def poll(self, seconds: float = 0.0) -> tuple[Transferred, ...] | None:
        return self._executor.poll(seconds)

    def close(self) -> None:
        self._executor.close()


def drive(
    loop: EngineLoop,
    requests: Iterable[Request],
    after: Callable[[SchedulerStats], None] | None = None,
    until: Callable[[Request], bool] = lambda request: True,
) -> Run:
    """Send each request at `arrival` seconds after the start, and run until all have ended that `until` names.

    after: receives the engine's counts after each step.
    """
    offered = sorted(requests, key=lambda one: one.arrival)
    outcomes = [Outcome(one) for one in offered]
    by_id = {one.request_id: outcome for one, outcome in zip(offered, outcomes, strict=True)}
    awaited = {one.request_id for one in offered if until(one)}

    def request(index: int, arrival: float) -> Request:
        outcomes[index].request = structs.replace(offered[index], arrival=arrival)
        return outcomes[index].request

    def stepped(events: list[Event]) -> None:
        _note(by_id, events, loop.clock.now())
        if after is not None:
            after(loop.stats())

    def ended(index: int, observation: Observation) -> None:
        outcomes[index].refused = observation.error or None
        awaited.discard(offered[index].request_id)

    entries = tuple(Entry(one.arrival, len(one.prompt_token_ids), one.forced_output_tokens or 0) for one in offered)
    start = loop.clock.now()
    driver = Driver(loop, Workload(entries, "a benchmark's"), request, on_step=stepped, on_end=ended)
    driver.run(None if len(awaited) == len(offered) else lambda: not awaited)
    return Run(outcomes, loop.clock.now() - start - offered[0].arrival)


def _note(outcomes: dict[str, Outcome], events: list[Event], now: float) -> None:
    for event in events:
        outcome = outcomes[event.request_id]
        if isinstance(event, TokensEvent):
            outcome.token_times += [now] * len(event.token_ids)
            outcome.token_ids += event.token_ids
        elif isinstance(event, FinishedEvent):
            outcome.timings = event.timings
