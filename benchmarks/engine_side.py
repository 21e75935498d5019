"""One of two engines in one process, in a thread of its own: one computes prompts, the other goes on with them. For
measurements and tests.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from inflight.build import Engine, KVPeerSettings, build_engine
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.core.types.events import Event, FinishedEvent, TokensEvent
from inflight.core.types.kv_transfer import KVTransferOptions, PeerAddress, Role, Transport
from inflight.core.types.request import Request
from inflight.peer_secret import PeerSecret

SECRET = b"a secret of the tests, no more"


class EngineSide:
    """One engine. Use it in `with`."""

    def __init__(
        self,
        role: Role,
        transport: Transport = "auto",
        secret: bytes = SECRET,
        timeout: float = 20.0,
        hold: float = 20.0,
        scheduling: SchedulingSettings | None = None,
        **settings: Any,
    ):
        options = KVTransferOptions(role=role, transport=transport, timeout=timeout, hold=hold)
        engine_settings = EngineSettings(**{"threads": 1, **settings})
        self.engine: Engine = build_engine(
            engine_settings, scheduling, peers=KVPeerSettings(options, PeerSecret(secret))
        )
        self._inbox: queue.SimpleQueue[Request | str | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self.tokens: dict[str, list[int]] = {}
        self.times: dict[str, list[float]] = {}  # of tokens, on the monotonic clock
        self.ended: dict[str, FinishedEvent] = {}
        self.interrupts = False  # may come
        self._thread = threading.Thread(target=self._main, daemon=True)

    def __enter__(self) -> EngineSide:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inbox.put(None)
        self._thread.join(60)
        self.engine.loop.close()

    def address(self, export_id: str) -> PeerAddress:
        """Return the address of an export of this side."""
        assert self.engine.peer_transfers is not None
        return PeerAddress(*self.engine.peer_transfers.address, export_id)

    def add(self, request: Request) -> None:
        self._inbox.put(request)

    def abort(self, request_id: str) -> None:
        """Whatever it does by then."""
        self._inbox.put(request_id)

    def wait(self, request_id: str, seconds: float = 60.0) -> list[int]:
        """Until it has ended; its tokens."""
        with self._changed:
            assert self._changed.wait_for(lambda: request_id in self.ended, seconds), f"{request_id} does not end"
        return self.tokens.get(request_id, [])

    def cached(self, request_id: str) -> int:
        return self.ended[request_id].timings.cached_tokens

    def _main(self) -> None:
        loop = self.engine.loop
        while True:
            try:
                request = self._inbox.get(loop.idle, 0.01) if loop.idle else self._inbox.get_nowait()
                if request is None:
                    return
                if isinstance(request, str):
                    self._note(loop.abort(request))
                else:
                    loop.add(request)
            except queue.Empty:
                pass
            if loop.idle:
                loop.advance()  # exports expire
                continue
            try:
                outcome = loop.advance()
            except KeyboardInterrupt:
                assert self.interrupts
                continue
            self._note(outcome if isinstance(outcome, list) else ())

    def _note(self, events: Sequence[Event]) -> None:
        now = time.monotonic()
        with self._changed:
            for event in events:
                if isinstance(event, TokensEvent):
                    self.tokens.setdefault(event.request_id, []).extend(event.token_ids)
                    self.times.setdefault(event.request_id, []).append(now)
                elif isinstance(event, FinishedEvent):
                    self.ended[event.request_id] = event
            self._changed.notify_all()
