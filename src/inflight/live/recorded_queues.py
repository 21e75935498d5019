"""Track the waiting and running sequences of a record, lane by lane."""

from __future__ import annotations

from collections.abc import Iterable

from inflight.live.frames import LanePart
from inflight.live.record_index import RecordedRequest

_NAMED = 8


class RecordedQueues:
    """The queues of all lanes."""

    def __init__(self, lanes: Iterable[str]):
        """Start with empty queues. lanes: shown from the start."""
        self._waiting: dict[str, dict[int, RecordedRequest | None]] = {name: {} for name in lanes}
        self._running: dict[int, str] = {}  # sequence → lane
        self._lane_of: dict[int, str] = {}

    def add(self, number: int, request: RecordedRequest | None, lane: str) -> None:
        """Add a waiting sequence. request: None if the record ends before the request does."""
        self._lane_of[number] = lane
        self._waiting.setdefault(lane, {})[number] = request

    def runs(self, number: int) -> None:
        lane = self._lane_of.get(number)
        if lane is not None and number not in self._running:
            self._waiting[lane].pop(number, None)
            self._running[number] = lane

    def waits_again(self, number: int, request: RecordedRequest | None) -> None:
        lane = self._running.pop(number, None)
        if lane is not None:
            self._waiting[lane][number] = request

    def ended(self, number: int) -> None:
        self._running.pop(number, None)
        lane = self._lane_of.pop(number, None)
        if lane is not None:
            self._waiting[lane].pop(number, None)

    def lanes(self, now: float) -> list[LanePart]:
        running = dict.fromkeys(self._waiting, 0)
        for lane in self._running.values():
            running[lane] += 1
        return [self._lane(name, waiting, running[name], now) for name, waiting in self._waiting.items()]

    def _lane(self, name: str, waiting: dict[int, RecordedRequest | None], running: int, now: float) -> LanePart:
        first = [number for number, _ in zip(waiting, range(_NAMED), strict=False)]
        known = next((one for one in waiting.values() if one is not None), None)
        oldest = 0.0 if known is None else max(0.0, round(now - known.arrival, 3))
        reason = _largest(known.timings.queued_by) if known is not None else ""
        behind = _largest(known.timings.queued_behind) if known is not None else ""
        return LanePart(name, len(waiting), running, reason, behind, first, oldest)


def _largest(milliseconds: dict[str, float]) -> str:
    name = max(milliseconds, key=lambda one: milliseconds[one], default="")
    return name if name and milliseconds[name] > 0 else ""
