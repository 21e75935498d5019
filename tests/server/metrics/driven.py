"""An engine in miniature with metrics, driven on a virtual clock, and its page as Prometheus reads it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from core.harness import FaultyExecutor, Setup
from prometheus_client.parser import text_string_to_metric_families

from inflight.core.scheduling.stats import SchedulerStats
from inflight.core.types.events import Event, FinishedEvent, TokensEvent
from inflight.core.types.plan import BatchPlan, WaitUntil
from inflight.core.types.request import Request
from inflight.engine.clock import VirtualClock
from inflight.engine.loop import EngineLoop
from inflight.server.metrics.page import Metrics, Names

STEP = 0.25  # seconds; a binary fraction, so that sums are exact
ROOMY = Setup(num_blocks=40, block_size=4, max_rows=4, token_budget=8, max_model_len=64)


@dataclass
class Driven:
    """An engine with metrics, and what its events said."""

    setup: Setup = ROOMY
    names: Names = "inflight"
    depth: int = 1
    plans: list[BatchPlan] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    token_times: dict[tuple[str, int], list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.clock = VirtualClock()
        elsewhere = None if self.setup.tier is None else self.setup.tier.elsewhere
        self.executor = FaultyExecutor(self.setup.capacity, self._seconds, self.setup.fate, elsewhere=elsewhere)
        self.metrics = Metrics("tiny", self.setup.capacity, self.names, version="1.2.3")
        self.loop = EngineLoop(
            self.setup.scheduler(),
            self.executor,
            self.clock,
            depth=self.depth,
            observers=[self.metrics.observer],
            suspender=self.executor if self.setup.prefill_suspension else None,
        )

    def _seconds(self, plan: BatchPlan) -> float:
        self.plans.append(plan)
        return STEP

    def add(self, *requests: Request) -> None:
        for one in requests:
            self.loop.add(one)

    def advance(self) -> None:
        outcome = self.loop.advance()
        if isinstance(outcome, WaitUntil):
            self.clock.wait_until(outcome.time)
        else:
            self.note(outcome)

    def note(self, events: list[Event]) -> None:
        self.events += events
        for event in events:
            if isinstance(event, TokensEvent):
                times = self.token_times.setdefault((event.request_id, event.sample_index), [])
                times += [self.clock.now()] * len(event.token_ids)

    def drain(self) -> None:
        while not self.loop.idle:
            self.advance()

    @property
    def ends(self) -> dict[str, FinishedEvent]:
        return {event.request_id: event for event in self.events if isinstance(event, FinishedEvent)}

    def page(self, snapshot: SchedulerStats | None = None) -> Page:
        return Page(self.metrics.render(snapshot or self.loop.stats()))


class Page:
    """A rendered page, read by Prometheus' own parser."""

    def __init__(self, rendered: tuple[bytes, str]):
        text, self.content_type = rendered
        self.families = list(text_string_to_metric_families(text.decode()))
        self._values = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families
            for sample in family.samples
        }

    def get(self, name: str, **labels: str) -> float:
        """The value of the one series with exactly these labels."""
        return self._values[name, frozenset(labels.items())]

    def total(self, name: str) -> float:
        return sum(value for (series, _), value in self._values.items() if series == name)

    def histogram(self, name: str, **labels: str) -> tuple[float, float]:
        """Count and sum."""
        return self.get(f"{name}_count", **labels), self.get(f"{name}_sum", **labels)

    def names(self) -> set[str]:
        return {name for name, _ in self._values}


def summed(values: Iterable[float]) -> tuple[float, float]:
    found = list(values)
    return len(found), sum(found)
