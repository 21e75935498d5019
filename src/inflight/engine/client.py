"""What whoever asks an engine sees of it, wherever the engine is: in this process (`bridge`) or in another (`remote`).

Knows requests, events and counts: messages, so that nothing depends on where they go.
"""

from __future__ import annotations

from typing import Protocol

from inflight.core.scheduling.snapshot import Snapshot
from inflight.core.types.request import Request
from inflight.engine.event_stream import EventStream


class EngineClient(Protocol):
    """All verbs are called in the asker's event loop, `close` in any thread."""

    async def open(self, *requests: Request) -> EventStream:
        """Hand in requests, all of them or none. Raises RequestRefused or EngineStopped."""

    def abort(self, request_id: str) -> None:
        """End a request wherever it is; its stream ends with finish reason "abort". Unknown ids are ignored."""

    async def snapshot(self) -> Snapshot:
        """Counts as they are while no plan is being made. Raises EngineStopped."""

    @property
    def stopped(self) -> str | None:
        """Why the engine works no more, or None while it does."""

    def close(self) -> None:
        """What still runs of this client's is aborted, and its consumers are told."""
