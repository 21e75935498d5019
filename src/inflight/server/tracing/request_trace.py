"""Notes of a request while it runs, for its spans: when each stage ended, its call, and its generation.

All times are of the wall clock as it stood when the request began, so that a clock that is set meanwhile moves nothing.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from starlette.types import Scope

from inflight.server.asgi import state_of
from inflight.server.common.prepared import Call, EndpointName
from inflight.server.generating import Generation


class Stage(NamedTuple):
    """Nanoseconds since 1970."""

    name: str
    begin: int
    end: int


class RequestTrace:
    """call, generation: None where it was refused before there was one."""

    def __init__(self, endpoint: EndpointName):
        self.endpoint = endpoint
        self.begin = time.time_ns()
        self._zero = self.begin - time.monotonic_ns()
        self.stages: list[Stage] = []
        self.call: Call | None = None
        self.generation: Generation | None = None
        self._engine_zero = 0

    def now(self) -> int:
        return self._zero + time.monotonic_ns()

    def passed(self, name: str) -> None:
        """End a stage now. It began with the end of the one before."""
        begin = self.stages[-1].end if self.stages else self.begin
        self.stages.append(Stage(name, begin, self.now()))

    def asks(self, call: Call, engine_now: float) -> None:
        """engine_now: the engine's clock."""
        self.call = call
        self._engine_zero = self.now() - int(engine_now * 1e9)

    def at(self, engine_seconds: float) -> int:
        """Return the time of an instant on the engine's clock."""
        return self._engine_zero + int(engine_seconds * 1e9)


def trace_of(scope: Scope) -> RequestTrace | None:
    """Return the trace of a request; None where no traces are made."""
    trace: RequestTrace | None = state_of(scope).get("trace")
    return trace


def passed(scope: Scope, stage: str) -> None:
    """End a stage of the request now, where traces are made."""
    trace = trace_of(scope)
    if trace is not None:
        trace.passed(stage)
