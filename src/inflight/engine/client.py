"""What whoever asks an engine sees of it, wherever the engine is: in this process (`bridge`) or in another (`remote`).

Knows requests and events: messages, so that nothing depends on where they go.
"""

from __future__ import annotations

from typing import Protocol

from inflight.core.types.request import Request
from inflight.engine.event_stream import EventStream


class EngineClient(Protocol):
    """All verbs are called in the asker's event loop, `close` in any thread."""

    async def open(self, *requests: Request) -> EventStream:
        """Hand in requests, all of them or none. Raises RequestRefused or EngineStopped."""

    @property
    def stopped(self) -> str | None:
        """Why the engine works no more, or None while it does."""

    def close(self) -> None:
        """What still runs of this client's is aborted, and its consumers are told."""
