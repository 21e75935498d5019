"""How one line of a job gets its answer: the seam between batch jobs and whoever runs the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from inflight.server.tenants import Tenant


@dataclass(frozen=True, slots=True)
class Answer:
    """status: HTTP status that the endpoint would have given. body: what it would have sent, fit for JSON."""

    status: int
    body: dict[str, Any]


class Answerer(Protocol):
    async def answer(self, url: str, body: dict[str, Any], tenant: Tenant, request_id: str) -> Answer:
        """Answer one body as the endpoint at `url` would, without a stream.

        Raises ApiError. With the status 429 or 503 it means "not now": the line waits `retry_after` seconds and is
        tried again; any other status is the line's answer. When the task is cancelled, so is the request. A
        CancelledError that nobody asked for leaves the line unanswered, and it is run again.
        """
        ...
