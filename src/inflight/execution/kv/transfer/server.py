"""The provider: gives peers the blocks that are held for them. Listens; a thread for each connection.

Knows the order of what is said after the handshake. A peer that stops half-way, sends nonsense or nothing costs a
thread until its time is over, and the engine nothing.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from inflight.execution.kv.block_memory import BlockMemory
from inflight.execution.kv.transfer import nixl, shared_memory, stream
from inflight.execution.kv.transfer.description import KVDescription
from inflight.execution.kv.transfer.exports import Exports, NotHeld, Reading
from inflight.execution.kv.transfer.handshake import SECONDS, answer
from inflight.execution.kv.transfer.nixl import NixlAgent, NixlSender
from inflight.execution.kv.transfer.shared_memory import SharedSender
from inflight.execution.kv.transfer.stream import StreamSender
from inflight.execution.kv.transfer.this_host import this_host
from inflight.execution.kv.transfer.transports import PROGRESS, Run, Sender
from inflight.execution.kv.transfer.wire import (
    Channel,
    Copied,
    Introduction,
    PeerError,
    Pull,
    Refused,
    Released,
    Taken,
    Welcome,
)
from inflight.peer_secret import PeerSecret

MAX_CONNECTIONS = 64
_IDLE = 300.0  # seconds after which a connection that asks nothing is closed
_LONGEST_PATIENCE = 600.0
_CLOSING = 5.0  # seconds for a thread to hear that it is over

log = logging.getLogger(__name__)


@dataclass(slots=True)
class ProvidedCounts:
    """Blocks that were given to peers, and pulls that came to no good end. Written by the provider's threads, under its
    lock."""

    blocks: int = 0
    pulls: int = 0
    failed: int = 0


@dataclass(slots=True)
class Provider:
    """describe: what this engine is now: adapters come and go. agent: NIXL's, if there is one."""

    secret: PeerSecret
    describe: Callable[[], KVDescription]
    exports: Exports
    memory: BlockMemory
    agent: NixlAgent | None = None
    counts: ProvidedCounts = field(default_factory=ProvidedCounts)
    address: tuple[str, int] = ("", 0)  # where it listens
    _local: str = ""
    _listeners: list[socket.socket] = field(default_factory=list)
    _channels: set[Channel] = field(default_factory=set)
    _threads: set[threading.Thread] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _is_closed: bool = False

    def listen(self, host: str, port: int) -> None:
        """Listen. Raises OSError for an address that cannot be used."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        by_network = socket.create_server((host, port), family=family, backlog=MAX_CONNECTIONS)
        self._listeners.append(by_network)
        self.address = by_network.getsockname()[:2]
        if hasattr(socket, "AF_UNIX") and hasattr(os, "memfd_create"):
            self._listen_here()
        for listener in self._listeners:
            self._start(threading.Thread(target=self._accept, args=(listener,), name="inflight-kv-listen", daemon=True))

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            channels = tuple(self._channels)
        for listener in self._listeners:
            _shut(listener)
        for channel in channels:
            channel.close()

    def join(self) -> None:
        """Its threads, once it is closed and its exports are: they hold the engine's memory."""
        with self._lock:
            threads = tuple(self._threads)
        for thread in threads:
            thread.join(_CLOSING)

    def _start(self, thread: threading.Thread) -> None:
        with self._lock:
            self._threads.add(thread)
        thread.start()

    def _listen_here(self) -> None:
        """For peers on this host: by a name that is in no folder, and goes with the process."""
        name = f"inflight-kv-{os.urandom(16).hex()}"
        here = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            here.bind(f"\0{name}")
            here.listen(MAX_CONNECTIONS)
        except OSError:
            here.close()  # this system has no such names; peers come by the network
            return
        self._listeners.append(here)
        self._local = name

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connected, address = listener.accept()
            except OSError:
                if self._is_closed:
                    return
                time.sleep(0.1)  # too many open files, perhaps
                continue
            if connected.family != socket.AF_UNIX:
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer = "The peer on this host" if not address else f"The peer at {address[0]}:{address[1]}"
            channel = Channel(connected, peer)
            with self._lock:
                is_full = self._is_closed or len(self._channels) >= MAX_CONNECTIONS
                if not is_full:
                    self._channels.add(channel)
            if is_full:
                channel.close()
                continue
            self._start(threading.Thread(target=self._serve, args=(channel,), name="inflight-kv-give", daemon=True))

    def _serve(self, channel: Channel) -> None:
        sender: Sender | None = None
        try:
            sender = self._introduced(channel)
            while isinstance(message := channel.receive(_IDLE), Pull | Copied):
                if isinstance(message, Pull):
                    self._give(channel, sender, message)
                else:  # of a pull that has ended half-way
                    sender.copied(message)
        except PeerError as error:
            log.debug("a peer's connection has ended: %s", error)
        except Exception:
            log.exception("a peer's connection ends by a fault")
        finally:
            if sender is not None:
                sender.close()
            with self._lock:
                self._channels.discard(channel)
                self._threads.discard(threading.current_thread())
            channel.close()

    def _introduced(self, channel: Channel) -> Sender:
        introduction = answer(channel, self.secret, self.describe())
        data = b"" if self.agent is None else self.agent.introduction
        channel.send(Welcome(this_host(), self._local, data), SECONDS)
        return self._sender(channel, introduction)

    def _sender(self, channel: Channel, introduction: Introduction) -> Sender:
        if introduction.way == shared_memory.NAME:
            return SharedSender(channel, self.memory)
        if introduction.way == nixl.NAME and self.agent is not None:
            return NixlSender(channel, self.memory.block_bytes)
        if introduction.way == stream.NAME:
            return StreamSender(channel, self.memory)
        raise PeerError(f"{channel.peer} asks for the way {introduction.way!r}, which is not to be had here.")

    def _give(self, channel: Channel, sender: Sender, pull: Pull) -> None:
        """Everything that is asked for, or why not."""
        deadline = time.monotonic() + min(pull.patience / 1e3, _LONGEST_PATIENCE)
        done = False
        try:
            with self.exports.reading(pull.export, deadline - time.monotonic()) as reading:
                self._send_all(sender, reading, pull, deadline)
                while isinstance(message := channel.receive(PROGRESS), Copied):
                    sender.copied(message)
                if not isinstance(message, Taken):
                    raise PeerError(f"{channel.peer} did not say that it has the blocks.")
                done = reading.taken(len(pull.names))
            answer: Released | Refused = Released(done)
        except NotHeld as error:
            answer = Refused(str(error))
        finally:
            with self._lock:
                self.counts.pulls += 1
                self.counts.failed += not done
                self.counts.blocks += len(pull.names) if done else 0
        channel.send(answer, SECONDS)

    def _send_all(self, sender: Sender, reading: Reading, pull: Pull, deadline: float) -> None:
        """As they are computed, layer by layer, and until all of that counts."""
        names = [int.from_bytes(name, "big") for name in pull.names]
        sent: list[int] = []
        while len(sent) < len(names):
            found, done = reading.next(names[len(sent) :], deadline - time.monotonic()), 0
            while done < self.memory.block_bytes:
                ready = reading.ready(found, done, deadline - time.monotonic())
                sender.send(Run(found.blocks, len(sent), done, ready))
                done = ready
            sent += found.blocks
        reading.settle(dict(zip(names, sent, strict=True)), deadline - time.monotonic())


def _shut(listener: socket.socket) -> None:
    """So that who waits for a connection wakes."""
    with contextlib.suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)
    listener.close()
