"""Job completion times of programs, by lane.

No client says that a program is done. It counts once it has rested for REST_S, from its first request's intended send
time to its last token, when the next request comes in; one that goes on after that is another program.
"""

from __future__ import annotations

from collections import OrderedDict

from inflight.core.types.request import Request
from inflight.metrics.definitions import jct
from inflight.server.metrics.histogram import Histogram

REST_S = 600.0  # as of the policy
MAX_PROGRAMS = 20_000  # that are watched; beyond it the one that was at work longest ago counts as it is
JCT_SECONDS = (
    *(1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0, 14_400.0, 28_800.0),
)

Key = tuple[str, str]  # tenant, name


class _Program:
    __slots__ = ("alive", "began", "ended", "histogram")

    def __init__(self, began: float, histogram: Histogram):
        self.began = self.ended = began
        self.alive = 0
        self.histogram = histogram


class ProgramTimes:
    def __init__(self) -> None:
        self._programs: OrderedDict[Key, _Program] = OrderedDict()  # the one that was at work longest ago first

    def added(self, request: Request, histogram: Histogram) -> Key | None:
        """Add a call. Return its program, which `ended` takes; None where it names none."""
        self._count(request.arrival)
        if not request.of_program:
            return None
        key = request.tenant, request.of_program
        program = self._programs.get(key)
        if program is not None and not program.alive and request.arrival - program.ended > REST_S:
            program.histogram.observe(jct(program.began, program.ended))
            program = None
        if program is None:
            program = self._programs[key] = _Program(request.arrival, histogram)
        program.alive += 1
        self._programs.move_to_end(key)
        return key

    def ended(self, key: Key | None, now: float) -> None:
        program = None if key is None else self._programs.get(key)
        if key is not None and program is not None:
            program.alive = max(0, program.alive - 1)
            program.ended = now
            self._programs.move_to_end(key)

    def _count(self, now: float) -> None:
        """Observe the programs that have rested for long, and those that are too many."""
        for _ in range(2):  # for each call that comes, so that none takes long; one program at most is new
            key, program = next(iter(self._programs.items()), (None, None))
            if key is None or program is None:
                return
            if program.alive and len(self._programs) <= MAX_PROGRAMS:
                self._programs.move_to_end(key)
            elif len(self._programs) > MAX_PROGRAMS or now - program.ended > REST_S:
                del self._programs[key]
                program.histogram.observe(jct(program.began, program.ended))
