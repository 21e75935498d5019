"""Client of peers' exports: pulls blocks into this engine's own, in threads beside its steps.

A pull ends within its time, whatever the peer does, and writes no block afterwards. Connections are kept for the next
pull. Used by the engine's thread, which begins pulls and asks which have ended.
"""

from __future__ import annotations

import logging
import queue
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from inflight.core.types.kv_transfer import PeerAddress, Transport
from inflight.core.types.plan import Transferred
from inflight.execution.kv.block_memory import BlockMemory, KVMemory
from inflight.execution.kv.transfer.description import KVDescription
from inflight.execution.kv.transfer.exports import Key
from inflight.execution.kv.transfer.handshake import PeerRefused, introduce
from inflight.execution.kv.transfer.nixl import NIXL, NixlAgent, NixlReceiver
from inflight.execution.kv.transfer.transports import STREAM, Receiver, Run, StreamReceiver
from inflight.execution.kv.transfer.wire import (
    NAME,
    PROGRESS,
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

MAX_PULLS = 8  # at a time; more wait
_CONNECT = 5.0  # seconds
_REFUSED = 10.0  # seconds in which a peer that has refused is not asked again
_MAX_REFUSED = 1024  # peers
_BROKEN_OFF = "The pull was broken off."

log = logging.getLogger(__name__)

Address = tuple[str, int]


class Arrivals:
    """How much of each block of a pull has arrived, from its beginning on."""

    def __init__(self, memories: list[BlockMemory]):
        """Create it for blocks of these memories, of which nothing has arrived."""
        self._memories, self._arrived = memories, [0] * len(memories)
        self._missing = len(memories)

    @property
    def is_whole(self) -> bool:
        return not self._missing

    def is_next(self, message: Blocks) -> bool:
        """Return whether a message announces the next bytes of blocks of the pull."""
        announced = slice(message.first, message.first + message.count)
        memory = self._memories[message.first] if message.first < len(self._memories) else None
        return (
            memory is not None
            and 0 < message.count == len(self._arrived[announced])
            and message.start < message.end <= memory.block_bytes
            and {*self._arrived[announced]} == {message.start}
            and all(one is memory for one in self._memories[announced])
        )

    def add(self, message: Blocks) -> None:
        """Note that the announced bytes have arrived."""
        announced = slice(message.first, message.first + message.count)
        self._arrived[announced] = [message.end] * message.count
        if message.end == self._memories[message.first].block_bytes:
            self._missing -= message.count


@dataclass(frozen=True, slots=True)
class _Pull:
    """One pull. keys, blocks: there and here, one to one. until: on the clock."""

    transfer_id: int
    peer: PeerAddress
    keys: tuple[Key, ...]
    blocks: tuple[int, ...]
    until: float


@dataclass(slots=True)
class PullCounts:
    """Pulls that have ended. blocks: of those without an error."""

    blocks: int = 0
    pulls: int = 0
    failed: int = 0


@dataclass(slots=True)
class _Connection:
    channel: Channel
    receiver: Receiver

    def close(self) -> None:
        self.receiver.close()
        self.channel.close()


class KVClient:
    def __init__(
        self,
        secret: PeerSecret,
        describe: Callable[[], KVDescription],
        memory: KVMemory,
        timeout: float,
        transport: Transport = "auto",
        agent: NixlAgent | None = None,
    ):
        """Create it without connections.

        Args:
            secret: Of the peers.
            describe: Returns the description of this engine, whose adapters change.
            memory: Into which blocks are pulled.
            timeout: Seconds of a pull.
            transport: As in `KVTransferOptions`.
            agent: Of NIXL; None: there is none.
        """
        self.counts = PullCounts()  # written under the lock
        self._memory, self._timeout = memory, timeout
        self._connections = _Connections(secret, describe, transport, agent)
        self._waiting: queue.SimpleQueue[_Pull | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # for what follows
        self._in_flight = 0
        self._threads: list[threading.Thread] = []
        self._ended: list[Transferred] = []
        self._busy: set[Channel] = set()
        self._is_closed, self._abandoned = False, 0.0  # time when pulls were abandoned last

    def begin(self, transfer_id: int, peer: PeerAddress, keys: tuple[Key, ...], blocks: tuple[int, ...]) -> None:
        """Begin a pull. Raises IndexError for a block that does not exist."""
        for group in {group for group, _ in keys}:
            self._memory.of(group).views([block for (own, _), block in zip(keys, blocks, strict=True) if own == group])
        with self._lock:
            self._in_flight += 1
            if self._in_flight > len(self._threads) and len(self._threads) < MAX_PULLS:
                thread = threading.Thread(target=self._run, name="inflight-kv-pull", daemon=True)
                self._threads.append(thread)
                thread.start()
        self._waiting.put(_Pull(transfer_id, peer, keys, blocks, time.monotonic() + self._timeout))

    def poll(self) -> tuple[Transferred, ...] | None:
        """Return the pulls that have ended since the last call; None: none is in flight."""
        with self._lock:
            if not self._in_flight and not self._ended:
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
        """Interrupt pulls in flight; afterwards no block is written."""
        with self._lock:
            self._is_closed = True
            threads = tuple(self._threads)
        self.abandon()
        for _ in threads:
            self._waiting.put(None)
        for thread in threads:
            thread.join(self._timeout + PROGRESS)
        self._connections.close()

    def _run(self) -> None:
        while (pull := self._waiting.get()) is not None:
            error = _BROKEN_OFF if self._is_abandoned(pull) else self._finish(pull)
            with self._lock:
                self._in_flight -= 1
                self._ended.append(Transferred(pull.transfer_id, error))

    def _is_abandoned(self, pull: _Pull) -> bool:
        return self._is_closed or pull.until - self._timeout <= self._abandoned

    def _finish(self, pull: _Pull) -> str | None:
        """Pull, and return the error message, if any."""
        error = None
        try:
            self._pull(pull)
        except PeerError as fault:
            error = str(fault)
        except Exception as fault:  # a peer must not end the thread
            log.exception("a pull ends by a fault")
            error = f"Blocks could not be pulled ({type(fault).__name__}: {fault})."
        with self._lock:
            self.counts.pulls += 1
            self.counts.failed += error is not None
            self.counts.blocks += len(pull.blocks) if error is None else 0
        if error is not None:
            log.warning("%s The prompt's %d blocks are computed here.", error, len(pull.blocks))
        return error

    def _pull(self, pull: _Pull) -> None:
        address = (pull.peer.host, pull.peer.port)
        connection = self._connections.acquire(address)
        with self._lock:
            self._busy.add(connection.channel)
        try:
            if self._is_abandoned(pull):  # while it connected
                raise PeerError(_BROKEN_OFF)
            self._fetch(connection, pull)
        except _NothingThere:
            self._connections.keep(address, connection)
            raise
        except BaseException:
            connection.close()
            raise
        finally:
            with self._lock:
                self._busy.discard(connection.channel)
        self._connections.keep(address, connection)

    def _fetch(self, connection: _Connection, pull: _Pull) -> None:
        # The peer times out first, and says why.
        channel, patience = connection.channel, 0.8 * (pull.until - time.monotonic())
        names = [name.to_bytes(NAME, "big") for _, name in pull.keys]
        groups = [group for group, _ in pull.keys]
        memories = [self._memory.of(group) for group in groups]
        message: Message = Pull(pull.peer.export_id, names, groups if any(groups) else [], max(0, int(1e3 * patience)))
        channel.send(message, PROGRESS)
        arrivals = Arrivals(memories)
        while not arrivals.is_whole:
            message = _answer(channel, pull.until)
            if not isinstance(message, Blocks) or not arrivals.is_next(message):
                raise PeerError(f"{channel.peer} sent something else than the blocks that were asked for.")
            blocks = pull.blocks[message.first : message.first + message.count]
            run = Run(memories[message.first], blocks, message.first, message.start, message.end)
            connection.receiver.receive(run, message.at)
            arrivals.add(message)
        channel.send(Taken(), PROGRESS)
        released = _answer(channel, pull.until)  # once the step that computes the last of them is done
        if not isinstance(released, Released) or not released.were_held:
            raise PeerError(f"{channel.peer} no longer held the blocks when they were read.")


class _Connections:
    """Connections to peers: opens them, and keeps them for the next pull. Used by several threads."""

    def __init__(
        self,
        secret: PeerSecret,
        describe: Callable[[], KVDescription],
        transport: Transport,
        agent: NixlAgent | None,
    ):
        self._secret, self._describe, self._transport, self._agent = secret, describe, transport, agent
        self._lock = threading.Lock()
        self._kept: dict[Address, list[_Connection]] = {}
        self._refused: dict[Address, tuple[float, str]] = {}  # until when, and why
        self._is_closed = False

    def acquire(self, address: Address) -> _Connection:
        """Return a kept connection, or open one. Raises PeerError."""
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
                if len(self._refused) > _MAX_REFUSED:
                    self._refused.clear()
                self._refused[address] = time.monotonic() + _REFUSED, str(error)
            raise

    def keep(self, address: Address, connection: _Connection) -> None:
        with self._lock:
            kept = self._kept.setdefault(address, [])
            is_kept = not self._is_closed and len(kept) < MAX_PULLS
            if is_kept:
                kept.append(connection)
        if not is_kept:
            connection.close()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            kept, self._kept = self._kept, {}
        for connections in kept.values():
            for one in connections:
                one.close()

    def _connect(self, address: Address) -> _Connection:
        """Open a connection by the best transport that both ends have. Raises PeerError."""
        channel = _open(address)
        try:
            return _Connection(channel, self._receiver(channel))
        except BaseException:
            channel.close()
            raise

    def _receiver(self, channel: Channel) -> Receiver:
        """Run the handshake, and return what receives by the transport that the server has. Raises PeerError."""
        agent = self._agent if self._transport in ("auto", NIXL) else None
        welcome = introduce(channel, self._secret, self._describe(), STREAM if agent is None else NIXL)
        if agent is not None and welcome.nixl_data:
            return NixlReceiver(channel, agent, welcome.nixl_data)
        if self._transport == NIXL:
            raise PeerError(f"{channel.peer} has no NIXL; install it there, too.")
        return StreamReceiver(channel)


class _NothingThere(PeerError):
    """The peer does not hold what was asked for; the connection can be used again."""


def _answer(channel: Channel, until: float) -> Message:
    """Receive a message. Raises _NothingThere where the peer refuses the pull."""
    message = channel.receive(until - time.monotonic())
    if isinstance(message, Refused):
        raise _NothingThere(f"{channel.peer} says: {message.why}")
    return message


def _open(address: Address) -> Channel:
    host, port = address
    try:
        connected = socket.create_connection((host, port), timeout=_CONNECT)
    except OSError as error:
        cause = "it took too long" if isinstance(error, TimeoutError) else error.strerror or str(error)
        raise PeerError(f"The peer at {host}:{port} cannot be reached ({cause}).") from None
    return Channel(connected, f"The peer at {host}:{port}")
