"""OutputBuffer at the end of a batch: what request-level batching does with the answers of those that end early.

Knows events and times. Static and dynamic batching hand out a batch's answers when its last sequence has ended; the
time that an answer lay ready is part of its request's account (`other`), and its first token comes with its last.
"""

from __future__ import annotations

from dataclasses import replace

from msgspec import structs

from inflight.core.types.events import Event, FinishedEvent


class OutputBuffer:
    def __init__(self) -> None:
        self._kept: list[tuple[Event, float]] = []

    def keep(self, events: list[Event], now: float) -> None:
        self._kept += [(event, now) for event in events]

    def holds(self, request_id: str) -> bool:
        """Whether something of this request is not told yet."""
        return any(event.request_id == request_id for event, _ in self._kept)

    def release(self, now: float, request_id: str | None = None) -> list[Event]:
        """Everything kept (or all of one request), in order, with the accounts brought up to now."""
        kept = [one for one in self._kept if request_id in (None, one[0].request_id)]
        self._kept = [] if request_id is None else [one for one in self._kept if one[0].request_id != request_id]
        return [_late(event, (now - ready) * 1e3) for event, ready in kept]


def _late(event: Event, late_ms: float) -> Event:
    if not isinstance(event, FinishedEvent):
        return event
    timings = event.timings
    total_ms = timings.total_ms + late_ms
    ttft_ms = None if timings.ttft_ms is None else total_ms
    return structs.replace(
        event, timings=replace(timings, other_ms=timings.other_ms + late_ms, total_ms=total_ms, ttft_ms=ttft_ms)
    )
