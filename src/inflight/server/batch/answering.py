"""How one line of a job gets its answer: the seam between batch jobs and whoever runs the model."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from inflight.server.batch.records import LineUsage
from inflight.server.errors import ApiError
from inflight.server.tenants import Tenant


@dataclass(frozen=True, slots=True)
class Answer:
    """status: HTTP status that the endpoint would have given. body: what it would have sent, JSON. usage: of a line
    that was served."""

    status: int
    body: bytes
    usage: LineUsage | None = None


class NotNow(Exception):
    """No answer to the line, and none of its doing: the engine is full, loading, ending or broken. It is tried again.

    retry_after: seconds after which that makes sense; None: unknown.
    """

    def __init__(self, why: str, retry_after: float | None = None):
        super().__init__(why)
        self.retry_after = retry_after


class StepFailed(Exception):
    """The step failed that computed the line, and all that was in flight beside it: whose doing it was, nobody knows.

    answer: the line's answer, should it be the line's doing.
    """

    def __init__(self, answer: ApiError):
        super().__init__(answer.message)
        self.answer = answer


class EngineEnded(Exception):
    """The engine that computed the line broke down, or its process was killed. The text says how."""


InFlight = Callable[[], AbstractAsyncContextManager[None]]


class Answerer(Protocol):
    async def answer(self, url: str, body: bytes, tenant: Tenant, request_id: str, in_flight: InFlight) -> Answer:
        """Answer one body (JSON) as the endpoint at `url` would, without a stream, within `in_flight()`: it is entered
        once the model is there, and what computing the line raises passes through it.

        Raises ApiError where the endpoint refuses the body, which is the line's answer; NotNow; StepFailed;
        EngineEnded. When the task is cancelled, so is the request. A CancelledError that was not requested leaves the
        line unanswered, and it is run again.
        """
        ...
