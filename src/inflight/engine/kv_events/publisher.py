"""The publisher of KV events: a thread that makes events of changes, sends them, and resends what subscribers missed.

Steps never wait for it: it sends changes when it gets to them, if too many wait several steps share a message, and a
subscriber that reads too slowly loses messages. `KVEventObserver` passes a step's changes to it.

A subscriber that missed messages asks with the number of the first that it lacks, and gets all that are retained from
there on, each with its number, then an end mark; if fewer are retained, the first number shows it. Many messages go out
in pieces, so that new ones do not wait behind them and a slow reader delays no other.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections import deque
from dataclasses import dataclass

import zmq

from inflight.core.kv.prefix_cache import KVEventQueue
from inflight.core.types.events import Event
from inflight.core.types.kv_blocks import CacheChange
from inflight.core.types.plan import BatchPlan, StepResult, Transferred
from inflight.engine.kv_events import KVEventOptions
from inflight.engine.kv_events.events import RANK, Batch, SentBlocks, encode
from inflight.engine.kv_events.sockets import open_sockets
from inflight.engine.observers import EngineObserver

CLOSE_SECONDS = 1.0  # seconds at the end, for messages that subscribers have not taken yet
_RETRY = 20  # milliseconds until a subscriber that took nothing is tried again

END = (-1).to_bytes(8, "big", signed=True)  # with an empty payload
_BATCH = 64  # messages to one subscriber before others get theirs
_MAX_SUBSCRIBERS = 64  # that are answered at once; others ask again
PATIENCE = 10.0  # seconds without a message taken, after which a subscriber is dropped

log = logging.getLogger(__name__)


class KVEventPublisher:
    """Publishes the events of one engine."""

    def __init__(self, options: KVEventOptions):
        """Open the addresses; `begin` starts to send. Raises KVEventAddressError."""
        self._options = options
        self._topic = options.topic.encode()
        self._sockets = open_sockets(options)
        replay = self._sockets.replay
        self._replay = None if replay is None else Replay(replay, options.buffer_steps)
        self._sent = SentBlocks()
        self._next = 0  # number of a message
        self._waiting: deque[tuple[float, list[CacheChange]]] = deque()
        self._lock = threading.Lock()  # of the changes that wait, and of the two below
        self._is_called = self._is_closed = False
        self._bell, self._heard = socket.socketpair()  # so that the thread waits for changes and requests at once
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
        """Queue the changes of a step; any thread may call it."""
        with self._lock:
            if self._is_closed:
                return
            if len(self._waiting) >= self._options.max_queue_size:
                self._waiting[-1][1].extend(changes)
            else:
                self._waiting.append((time.time(), changes))
            self._call()

    def close(self) -> None:
        """Send all that was queued, and end the thread."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._call()
        if self._thread.ident is None:
            self._release()
        else:
            self._thread.join(2 * CLOSE_SECONDS)

    def _call(self) -> None:
        if not self._is_called:
            self._is_called = True
            self._bell.send(b"\0")

    def _main(self) -> None:
        try:
            self._run()
        except Exception:
            log.exception(
                "KV events stopped after an error; routers no longer see this engine's cache. The engine continues."
            )
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
                pause = None if not self._replay.is_pending else 0 if has_sent else _RETRY

    def _wake(self) -> bool:
        """Clear the wake-up signal, and return whether the publisher is closed."""
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
            events = self._sent.events(changes)
            if events:
                self._send(encode(Batch(when, events, RANK)))

    def _send(self, payload: bytes) -> None:
        # A publisher's socket never blocks: a subscriber with too many messages waiting loses this one.
        self._sockets.publish.send_multipart((self._topic, self._next.to_bytes(8, "big"), payload))
        self._next += 1
        if self._replay is not None:
            self._replay.retain(payload)

    def _release(self) -> None:
        self._sockets.close(CLOSE_SECONDS)
        self._bell.close()
        self._heard.close()


class KVEventObserver(EngineObserver):
    """Passes changes of the prefix cache to the publisher."""

    def __init__(self, queue: KVEventQueue, publisher: KVEventPublisher):
        """Publish that nothing is cached. queue: of the observed engine's cache."""
        self._queue, self._publisher = queue, publisher
        publisher.begin()
        self._publish()

    def step(self, plan: BatchPlan, result: StepResult, planned: float, committed: float) -> None:
        self._publish()

    def transferred(self, ended: tuple[Transferred, ...], now: float) -> None:
        self._publish()

    def events(self, events: list[Event], now: float) -> None:
        self._publish()

    def close(self) -> None:
        self._publish()
        self._publisher.close()

    def _publish(self) -> None:
        changes = self._queue.take()
        if changes:
            self._publisher.publish(changes)


@dataclass(slots=True)
class _Request:
    """A subscriber's request. following: number of its next message. taken: when it last took one."""

    following: int
    taken: float


class Replay:
    """Messages that are resent to subscribers that missed them."""

    def __init__(self, socket: zmq.Socket[bytes], steps: int):
        self._socket = socket
        self._steps = steps
        self._retained: dict[int, bytes] = {}
        self._next = 0  # number
        self._asking: dict[bytes, _Request] = {}  # by ZMQ's name of the subscriber

    def retain(self, payload: bytes) -> None:
        """Add the message that was sent with the next number."""
        self._retained[self._next] = payload
        self._retained.pop(self._next - self._steps, None)
        self._next += 1

    @property
    def is_pending(self) -> bool:
        """Whether a request is not answered in full."""
        return bool(self._asking)

    def serve(self) -> bool:
        """Read requests and send each a piece; return whether anything was sent."""
        self._read()
        return any([self._send(name, asking) for name, asking in tuple(self._asking.items())])

    def _read(self) -> None:
        for _ in range(_BATCH):
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if len(frames) != 3 or frames[1] or len(frames[2]) != 8:
                continue  # it cannot be answered
            if len(self._asking) < _MAX_SUBSCRIBERS or frames[0] in self._asking:
                self._asking[frames[0]] = _Request(int.from_bytes(frames[2], "big"), time.monotonic())

    def _send(self, name: bytes, asking: _Request) -> bool:
        """Send a piece to a subscriber, and return whether it took anything."""
        first = asking.following
        for _ in range(_BATCH):
            asking.following = max(asking.following, self._next - len(self._retained))
            is_end = asking.following >= self._next
            number = END if is_end else asking.following.to_bytes(8, "big")
            try:
                self._socket.send_multipart((name, b"", number, self._retained.get(asking.following, b"")), zmq.NOBLOCK)
            except zmq.Again:
                break
            except zmq.ZMQError:  # it is gone
                is_end = True
            if is_end:
                del self._asking[name]
                return True
            asking.following += 1
        if asking.following > first:
            asking.taken = time.monotonic()
        elif time.monotonic() - asking.taken > PATIENCE:
            del self._asking[name]
        return asking.following > first
