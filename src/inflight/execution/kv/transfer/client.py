"""Pulls: blocks that are fetched from peers into this engine's own, each pull a transfer of its own, in threads of
their own.

Knows how a peer is called, and which way is taken to it; keeps connections for the next pull. A pull ends within its
time, whatever the peer does, and nothing touches its blocks afterwards. Used by the engine's thread, which begins pulls
and asks which have ended.
"""

from __future__ import annotations

import logging
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from inflight.core.types.kv_transfer import PeerAddress, Transport
from inflight.core.types.plan import Transferred
from inflight.execution.kv.block_memory import BlockMemory
from inflight.execution.kv.transfer import nixl, shared_memory, stream
from inflight.execution.kv.transfer.description import KVDescription
from inflight.execution.kv.transfer.handshake import PeerRefused, call
from inflight.execution.kv.transfer.nixl import NixlAgent, NixlReceiver
from inflight.execution.kv.transfer.shared_memory import SharedReceiver
from inflight.execution.kv.transfer.stream import StreamReceiver
from inflight.execution.kv.transfer.this_host import this_host
from inflight.execution.kv.transfer.transports import PROGRESS, Receiver
from inflight.execution.kv.transfer.wire import (
    Blocks,
    Channel,
    Message,
    PeerError,
    Pull,
    Refused,
    Released,
    Taken,
)
from inflight.peer_secret import PeerSecret

NAME_BYTES = 16
MAX_AT_ONCE = 8  # pulls; more wait
_CONNECT = 5.0  # seconds
_REFUSED_FOR = 10.0  # seconds in which a peer that has refused is not asked again

log = logging.getLogger(__name__)


class Arrivals:
    """Keep how much of each block of a pull has come, from its beginning on, in parts."""

    def __init__(self, blocks: int, block_bytes: int):
        self._have, self._block_bytes = [0] * blocks, block_bytes
        self._missing = blocks

    @property
    def is_whole(self) -> bool:
        return not self._missing

    def fits(self, message: Blocks) -> bool:
        """Return whether the message announces the next bytes of blocks that were asked for."""
        end, have = message.end or self._block_bytes, self._have[message.first : message.first + message.count]
        return (
            0 < message.count == len(have) and message.start < end <= self._block_bytes and {*have} == {message.start}
        )

    def came(self, message: Blocks) -> None:
        end = message.end or self._block_bytes
        self._have[message.first : message.first + message.count] = [end] * message.count
        self._missing -= message.count if end == self._block_bytes else 0


@dataclass(frozen=True, slots=True)
class _Wanted:
    """names, blocks: one to one, in order. until: on the clock."""

    transfer_id: int
    place: PeerAddress
    names: tuple[int, ...]
    blocks: tuple[int, ...]
    until: float


@dataclass(slots=True)
class PulledCounts:
    """Written by the threads that pull, under their lock. seconds: of pulls that ended well."""

    blocks: int = 0
    pulls: int = 0
    failed: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class _Connection:
    channel: Channel
    receiver: Receiver

    def close(self) -> None:
        self.receiver.close()
        self.channel.close()


class Pulls:
    def __init__(
        self,
        secret: PeerSecret,
        describe: Callable[[], KVDescription],
        memory: BlockMemory,
        *,
        timeout: float,
        transport: Transport = "auto",
        agent: NixlAgent | None = None,
    ):
        """timeout: seconds from when a pull is begun to its end."""
        self._secret, self._describe, self._memory = secret, describe, memory
        self._timeout, self._transport, self._agent = timeout, transport, agent
        self.counts = PulledCounts()
        self._waiting: queue.SimpleQueue[_Wanted | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # of what follows
        self._out = 0
        self._threads: list[threading.Thread] = []
        self._ended: list[Transferred] = []
        self._kept: dict[tuple[str, int], list[_Connection]] = {}
        self._busy: set[Channel] = set()
        self._refused: dict[tuple[str, int], tuple[float, str]] = {}  # until when, and why
        self._is_closed, self._abandoned = False, 0.0  # when pulls were abandoned last

    def begin(self, transfer_id: int, place: PeerAddress, names: tuple[int, ...], blocks: tuple[int, ...]) -> None:
        self._memory.views(blocks)  # raises for a number of no block
        with self._lock:
            self._out += 1
            if self._out > len(self._threads) and len(self._threads) < MAX_AT_ONCE:
                thread = threading.Thread(target=self._main, name="inflight-kv-pull", daemon=True)
                self._threads.append(thread)
                thread.start()
        self._waiting.put(_Wanted(transfer_id, place, names, blocks, time.monotonic() + self._timeout))

    def poll(self) -> tuple[Transferred, ...] | None:
        """Return the pulls that have ended since the last call; None: none is in flight."""
        with self._lock:
            if not self._out and not self._ended:
                return None
            ended, self._ended = tuple(self._ended), []
            return ended

    def abandon(self) -> None:
        """Make pulls begun until now fail as soon as possible."""
        with self._lock:
            self._abandoned, busy = time.monotonic(), tuple(self._busy)
        for channel in busy:
            channel.close()

    def close(self) -> None:
        """Break off pulls in flight; afterwards no block is touched."""
        with self._lock:
            self._is_closed = True
            threads = tuple(self._threads)
        self.abandon()
        for _ in threads:
            self._waiting.put(None)
        for thread in threads:
            thread.join(self._timeout + PROGRESS)
        for connections in self._kept.values():
            for one in connections:
                one.close()

    def _main(self) -> None:
        while (wanted := self._waiting.get()) is not None:
            is_wanted = not self._is_closed and wanted.until - self._timeout > self._abandoned
            error = self._end(wanted) if is_wanted else "The pull was broken off."
            with self._lock:
                self._out -= 1
                self._ended.append(Transferred(wanted.transfer_id, error))

    def _end(self, wanted: _Wanted) -> str | None:
        """Pull, and return the error message, if any."""
        began, error = time.monotonic(), None
        try:
            self._pull(wanted)
        except PeerError as fault:
            error = str(fault)
        except Exception as fault:  # nothing that a peer does may end the thread
            log.exception("a pull ends by a fault")
            error = f"Blocks could not be pulled ({type(fault).__name__}: {fault})."
        with self._lock:
            self.counts.pulls += 1
            self.counts.failed += error is not None
            if error is None:
                self.counts.blocks += len(wanted.blocks)
                self.counts.seconds += time.monotonic() - began
        if error is not None:
            log.warning("%s The prompt's %d blocks are computed here.", error, len(wanted.blocks))
        return error

    def _pull(self, wanted: _Wanted) -> None:
        place = wanted.place
        address = (place.host, place.port)
        connection = self._connection(address)
        with self._lock:
            self._busy.add(connection.channel)
        try:
            self._fetch(connection, wanted)
        except NothingThere:
            self._keep(address, connection)
            raise
        except BaseException:
            connection.close()
            raise
        finally:
            with self._lock:
                self._busy.discard(connection.channel)
        self._keep(address, connection)

    def _fetch(self, connection: _Connection, wanted: _Wanted) -> None:
        # The peer times out first, and says why.
        channel, patience = connection.channel, 0.8 * (wanted.until - time.monotonic())
        names = [name.to_bytes(NAME_BYTES, "big") for name in wanted.names]
        channel.send(Pull(wanted.place.export_id, names, max(0, int(1e3 * patience))), PROGRESS)
        arrivals = Arrivals(len(names), self._memory.block_bytes)
        while not arrivals.is_whole:
            message = _answered(channel, wanted.until)
            if not isinstance(message, Blocks) or not arrivals.fits(message):
                raise PeerError(f"{channel.peer} sent something else than the blocks that were asked for.")
            connection.receiver.receive(message, wanted.blocks[message.first : message.first + message.count])
            arrivals.came(message)
        channel.send(Taken(), PROGRESS)
        released = _answered(channel, wanted.until)  # once the step that has computed the last of them is done
        if not isinstance(released, Released) or not released.were_held:
            raise PeerError(f"{channel.peer} no longer held the blocks when they were read.")

    # -- connections ----------------------------------------------------------------------------------------------
    def _connection(self, address: tuple[str, int]) -> _Connection:
        """One that was kept, or a new one. Raises PeerError."""
        with self._lock:
            until, why = self._refused.get(address, (0.0, ""))
            if until > time.monotonic():
                raise PeerRefused(why)
            while kept := self._kept.get(address):
                connection = kept.pop()
                if connection.channel.is_quiet():
                    return connection
                connection.close()
        try:
            return self._connect(address)
        except PeerRefused as error:
            with self._lock:
                if len(self._refused) > 1024:
                    self._refused.clear()
                self._refused[address] = time.monotonic() + _REFUSED_FOR, str(error)
            raise

    def _keep(self, address: tuple[str, int], connection: _Connection) -> None:
        with self._lock:
            kept = self._kept.setdefault(address, [])
            is_kept = not self._is_closed and len(kept) < MAX_AT_ONCE
            if is_kept:
                kept.append(connection)
        if not is_kept:
            connection.close()

    def _connect(self, address: tuple[str, int]) -> _Connection:
        """By the way that is asked for; else the best of those that there are. Raises PeerError."""
        if self._transport in ("auto", "nixl") and self._agent is not None:
            channel = _open(address)
            with _closed_by_a_fault(channel):
                welcome = call(channel, self._secret, self._describe(), nixl.NAME)
                if welcome.ways_data:
                    receiver = NixlReceiver(channel, self._memory, self._agent, welcome.ways_data)
                    return _Connection(channel, receiver)
            channel.close()  # the peer is without
        if self._transport == "nixl":
            raise PeerError(f"The peer at {address[0]}:{address[1]} has no NIXL; install it there, too.")
        channel = _open(address)
        with _closed_by_a_fault(channel):
            welcome = call(channel, self._secret, self._describe(), stream.NAME)
            if self._transport in ("auto", "shm") and welcome.local and welcome.host == this_host():
                nearer = self._connect_here(welcome.local)
                if nearer is not None:
                    channel.close()
                    return nearer
            if self._transport == "shm":
                raise PeerError(f"{channel.peer} is on another host, with which no memory is shared.")
            return _Connection(channel, StreamReceiver(channel, self._memory))

    def _connect_here(self, name: str) -> _Connection | None:
        """None where the peer is out of reach so: in a container of its own, perhaps."""
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connected.settimeout(_CONNECT)
            connected.connect(f"\0{name}")
        except OSError as error:
            log.info("no memory is shared with the peer on this host (%s); blocks come by the network", error)
            connected.close()
            return None
        channel = Channel(connected, "The peer on this host")
        try:
            call(channel, self._secret, self._describe(), shared_memory.NAME)
            return _Connection(channel, SharedReceiver(channel, self._memory))
        except (OSError, PeerError) as error:
            log.info("no memory is shared with the peer on this host (%s); blocks come by the network", error)
            channel.close()
            return None


class NothingThere(PeerError):
    """The peer does not hold what was asked for; the connection is as good as before."""


def _answered(channel: Channel, until: float) -> Message:
    """Receive a message. Raises NothingThere where the peer says that there is nothing, or no more."""
    message = channel.receive(until - time.monotonic())
    if isinstance(message, Refused):
        raise NothingThere(f"{channel.peer} says: {message.why}")
    return message


@contextmanager
def _closed_by_a_fault(channel: Channel) -> Iterator[None]:
    try:
        yield
    except BaseException:
        channel.close()
        raise


def _open(address: tuple[str, int]) -> Channel:
    host, port = address
    try:
        connected = socket.create_connection((host, port), timeout=_CONNECT)
    except OSError as error:
        cause = "it took too long" if isinstance(error, TimeoutError) else error.strerror or str(error)
        raise PeerError(f"The peer at {host}:{port} cannot be reached ({cause}).") from None
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Channel(connected, f"The peer at {host}:{port}")
