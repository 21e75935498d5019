"""Compare a record with a step model: errors of its steps, and what they do to the times of whole requests.

The recorded requests are offered again at their recorded times, with the recorded settings and output lengths, on the
model's seconds. Arrivals are not moved, although a client that waits for answers would have sent later requests later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from inflight.engine.clock import VirtualClock
from inflight.engine.loop import EngineLoop
from inflight.metrics.observation import Observation
from inflight.metrics.summary import Summary, summarize
from inflight.records.drafts import DraftCounts
from inflight.records.schema import Records, RequestRecord, header_of, of_kind
from inflight.simulate.drafting import SimulatedDrafts, acceptance_of, pass_seconds_of, simulated_drafter
from inflight.simulate.executor import SimulatedExecutor
from inflight.simulate.recorded_run import (
    RecordedSettings,
    RecordedStops,
    rebuild_request,
    recorded_scheduler,
    recorded_settings,
)
from inflight.simulate.replay import Replay
from inflight.simulate.steps import StepModel, errors_of, rounds, timed_steps
from inflight.workload.driving import Driver, ObservationCollector
from inflight.workload.workload import Entry, Workload


@dataclass(frozen=True, slots=True)
class Comparison:
    """A record against a model. step_errors: mean absolute relative error of rounds by kind, and their number. Requests
    that were aborted or that failed in the record are in neither summary."""

    step_errors: Mapping[str, tuple[float, int]]
    recorded: Summary
    modelled: Summary
    preemptions: tuple[int, int]  # in the replayed record, and modelled
    extrapolated: Mapping[str, int]


def compare(records: Records, replay: Replay, model: StepModel) -> Comparison:
    """Compare a record with a model. replay: of the record, run to its end. Raises RecordError."""
    settings = recorded_settings(header_of(records))
    requests = sorted(replay.requests, key=lambda one: (one.request.arrival, one.command))
    whole = [all(sample.finish.reason in ("stop", "length") for sample in one.samples) for one in requests]
    start = requests[0].request.arrival if requests else 0.0
    workload = Workload(
        tuple(
            Entry(one.arrival - start, len(one.prompt_token_ids), max(1, _longest(record)), lane=one.lane)
            for record, one in ((record, record.request) for record in requests)
        ),
        "the requests of a record",
    )
    drafts = _drafts(settings, replay)
    executor = SimulatedExecutor(settings.capacity, model, drafts)
    stops = RecordedStops(requests, reasons=("stop", "abort", "error"))
    drafter = None if drafts is None else simulated_drafter(settings.scheduling, drafts)
    scheduler = recorded_scheduler(settings, stops, drafter=drafter)
    loop = EngineLoop(scheduler, executor, VirtualClock(start), depth=settings.depth)
    driver = Driver(loop, workload, lambda index, arrival: rebuild_request(requests[index]))
    modelled = driver.run()
    preempted = replay.stats().preemptions, loop.stats().preemptions
    return Comparison(
        step_errors=errors_of(model, rounds(timed_steps(of_kind(records, "step")))),
        recorded=_summary(_recorded(replay, workload, requests), whole),
        modelled=_summary(modelled, whole),
        preemptions=preempted,
        extrapolated=executor.extrapolated,
    )


def _drafts(settings: RecordedSettings, replay: Replay) -> SimulatedDrafts | None:
    """Return drafts as of the record; None where it has none. Raises RecordError where it has too few."""
    if settings.scheduling.draft_source.kind == "off" or not DraftCounts.of(replay.steps).chunks:
        return None
    return SimulatedDrafts(acceptance_of(replay.steps, "the record"), pass_seconds=pass_seconds_of(replay.steps))


def _summary(observations: list[Observation], whole: list[bool]) -> Summary:
    return summarize([one for one, counts in zip(observations, whole, strict=True) if counts])


def _longest(record: RequestRecord) -> int:
    return max(len(sample.token_ids) for sample in record.samples)


def _recorded(replay: Replay, workload: Workload, requests: list[RequestRecord]) -> list[Observation]:
    """Return the observations of the recorded run's clients. A failed step ends only its requests."""
    collector = ObservationCollector(workload)
    for index, one in enumerate(requests):
        collector.sent(index, rebuild_request(one), one.request.arrival, one.added)
    last = 0.0
    for time, events in replay.events:
        collector.take(events, time)
        last = time
    collector.cut_off(0.0, last)
    return collector.observations()
