"""The publisher: a thread that makes events of a step's changes, sends them, and answers who has missed some.

Knows the order of messages and their numbers. Steps never wait for it: what they hand over is taken up when it comes
to it, where too many wait they share a message, and a subscriber that reads too slowly loses messages, not the engine
time. It ends when it has sent all that was handed over.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections import deque

import zmq

from inflight.core.types.kv_blocks import CacheChange
from inflight.engine.kv_events.options import KVEventOptions
from inflight.engine.kv_events.replay import Replay
from inflight.engine.kv_events.sockets import open_sockets
from inflight.engine.kv_events.told_blocks import ToldBlocks
from inflight.engine.kv_events.wire import RANK, Batch, encode

LINGER = 1.0  # seconds at the end, for what subscribers have not taken yet
_RETRY = 20  # milliseconds until whoever asked and took nothing is tried again

log = logging.getLogger(__name__)


class KVEventPublisher:
    def __init__(self, options: KVEventOptions):
        """Opens the addresses; nothing is sent before `begin`. Raises KVEventAddressError."""
        self._options = options
        self._topic = options.topic.encode()
        self._sockets = open_sockets(options)
        replay = self._sockets.replay
        self._replay = None if replay is None else Replay(replay, options.buffer_steps)
        self._told = ToldBlocks()
        self._next = 0  # number of a message
        self._waiting: deque[tuple[float, list[CacheChange]]] = deque()
        self._lock = threading.Lock()  # of what waits, and of the two below
        self._is_called = self._is_closed = False
        self._bell, self._heard = socket.socketpair()  # so that the thread sleeps on the same as for those who ask
        self._heard.setblocking(False)
        self._thread = threading.Thread(target=self._main, name="inflight-kv-events", daemon=True)

    @property
    def published(self) -> str:
        return self._sockets.published

    @property
    def replayed(self) -> str | None:
        return self._sockets.replayed

    def begin(self) -> None:
        self._thread.start()

    def publish(self, changes: list[CacheChange]) -> None:
        """Of a step. In any thread; returns at once."""
        with self._lock:
            if self._is_closed:
                return
            if len(self._waiting) >= self._options.max_queue_size:
                self._waiting[-1][1].extend(changes)
            else:
                self._waiting.append((time.time(), changes))
            self._call()

    def close(self) -> None:
        """Waits until what was handed over is sent."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._call()
        if self._thread.ident is None:
            self._release()
        else:
            self._thread.join(2 * LINGER)

    def _call(self) -> None:
        if not self._is_called:
            self._is_called = True
            self._bell.send(b"\0")

    def _main(self) -> None:
        try:
            self._run()
        except Exception:
            log.exception("KV events end by a fault: routers know no more what is cached here. The engine goes on.")
        finally:
            with self._lock:
                self._is_closed = True
                self._waiting.clear()
            self._release()

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._heard, zmq.POLLIN)
        if self._sockets.replay is not None:
            poller.register(self._sockets.replay, zmq.POLLIN)
        pause: int | None = None  # milliseconds; None: until something comes
        while True:
            poller.poll(pause)
            is_last = self._wake()
            self._send_waiting()
            if is_last:
                return
            if self._replay is not None:
                has_sent = self._replay.serve()
                pause = None if not self._replay.owes else 0 if has_sent else _RETRY

    def _wake(self) -> bool:
        """Whether nothing more will be handed over."""
        with self._lock:
            self._is_called = False
            with contextlib.suppress(BlockingIOError):
                self._heard.recv(16)
            return self._is_closed

    def _send_waiting(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    return
                when, changes = self._waiting.popleft()
            events = self._told.events(changes)
            if events:
                self._send(encode(Batch(when, events, RANK)))

    def _send(self, payload: bytes) -> None:
        # A publisher's socket never blocks: whoever has the most that may wait loses this one.
        self._sockets.publish.send_multipart((self._topic, self._next.to_bytes(8, "big"), payload))
        self._next += 1
        if self._replay is not None:
            self._replay.keep(payload)

    def _release(self) -> None:
        self._sockets.close(LINGER)
        self._bell.close()
        self._heard.close()
