"""Server of exports: listens, and sends peers the blocks that they pull, in a thread for each connection.

A peer that stops, sends invalid messages or none costs a thread until its time is over, and the engine nothing.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable

from inflight.execution.kv.transfer.description import KVDescription
from inflight.execution.kv.transfer.exports import Exports, Key, NotHeld, Reading
from inflight.execution.kv.transfer.handshake import SECONDS, check
from inflight.execution.kv.transfer.nixl import NIXL, NixlAgent, NixlSender
from inflight.execution.kv.transfer.transports import STREAM, Run, Sender, StreamSender
from inflight.execution.kv.transfer.wire import PROGRESS, Channel, PeerError, Pull, Refused, Released, Taken, Welcome
from inflight.peer_secret import PeerSecret

MAX_CONNECTIONS = 64
_IDLE = 300.0  # seconds after which a connection without pulls is closed
_MAX_PATIENCE = 600.0
_CLOSING = 5.0  # seconds for a thread to end

log = logging.getLogger(__name__)


class KVServer:
    def __init__(
        self, secret: PeerSecret, describe: Callable[[], KVDescription], exports: Exports, agent: NixlAgent | None
    ):
        """Create it without a listener.

        Args:
            secret: Of the peers.
            describe: Returns the description of this engine, whose adapters change.
            exports: Blocks to send.
            agent: Of NIXL; None: there is none.
        """
        self.address = ("", 0)  # at which it listens
        self._secret, self._describe, self._exports, self._agent = secret, describe, exports, agent
        self._lock = threading.Lock()  # for what follows
        self.served_blocks = 0
        self._listener: socket.socket | None = None
        self._channels: set[Channel] = set()
        self._unknown: dict[Channel, None] = {}  # those whose peers have not proved the secret, the oldest first
        self._threads: set[threading.Thread] = set()
        self._is_closed = False

    def listen(self, host: str, port: int) -> None:
        """Listen for peers. Raises OSError for an address that cannot be used."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family, backlog=MAX_CONNECTIONS)
        self.address = self._listener.getsockname()[:2]
        self._start(threading.Thread(target=self._accept, args=(self._listener,), name="inflight-kv-listen"))

    def close(self) -> None:
        """Close the listener and all connections."""
        with self._lock:
            self._is_closed = True
            channels = tuple(self._channels)
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            self._listener.close()
        for channel in channels:
            channel.close()

    def join(self) -> None:
        """Wait for the threads of a closed server, whose exports are closed too: they use the engine's memory."""
        with self._lock:
            threads = tuple(self._threads)
        for thread in threads:
            thread.join(_CLOSING)

    def _start(self, thread: threading.Thread) -> None:
        thread.daemon = True
        with self._lock:
            self._threads.add(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connected, address = listener.accept()
                channel = Channel(connected, f"The peer at {address[0]}:{address[1]}")
            except OSError:
                if self._is_closed:
                    return
                time.sleep(0.1)  # too many open files, perhaps
                continue
            if self._add(channel):
                self._start(threading.Thread(target=self._serve, args=(channel,), name="inflight-kv-serve"))

    def _add(self, channel: Channel) -> bool:
        """Add a connection; return False, and close it, where there are too many. The oldest of a peer that has not
        proved the secret is closed for it, so that peers which say nothing keep no other out."""
        with self._lock:
            refused = None
            if self._is_closed or len(self._channels) >= MAX_CONNECTIONS:
                refused = channel if self._is_closed else next(iter(self._unknown), channel)
                self._forget(refused)
            if refused is not channel:
                self._channels.add(channel)
                self._unknown[channel] = None
        if refused is not None:
            refused.close()
        return refused is not channel

    def _forget(self, channel: Channel) -> None:
        self._channels.discard(channel)
        self._unknown.pop(channel, None)

    def _serve(self, channel: Channel) -> None:
        try:
            sender = self._sender(channel)
            with self._lock:
                self._unknown.pop(channel, None)
            while isinstance(message := channel.receive(_IDLE), Pull):
                self._serve_pull(channel, sender, message)
        except PeerError as error:
            log.debug("a peer's connection has ended: %s", error)
        except Exception:
            log.exception("a peer's connection ends by a fault")
        finally:
            with self._lock:
                self._forget(channel)
                self._threads.discard(threading.current_thread())
            channel.close()

    def _sender(self, channel: Channel) -> Sender:
        """Run the handshake, and return what sends by the best transport of both ends. Raises PeerError."""
        transport = check(channel, self._secret, self._describe())
        if transport not in (NIXL, STREAM):
            raise PeerError(f"{channel.peer} asks for the transport {transport!r}, which is not to be had here.")
        agent = self._agent if transport == NIXL else None
        channel.send(Welcome(b"" if agent is None else agent.server_data), SECONDS)
        return StreamSender(channel) if agent is None else NixlSender(channel)

    def _serve_pull(self, channel: Channel, sender: Sender, pull: Pull) -> None:
        """Send all blocks of a pull, or why not."""
        if not pull.names or (pull.groups and len(pull.groups) != len(pull.names)):
            raise PeerError(f"{channel.peer} names {len(pull.names)} blocks of {len(pull.groups)} groups.")
        numbers = (int.from_bytes(name, "big") for name in pull.names)
        keys = list(zip(pull.groups or [0] * len(pull.names), numbers, strict=True))
        if len({*keys}) < len(keys):
            raise PeerError(f"{channel.peer} names a block twice in one pull.")
        deadline = time.monotonic() + min(pull.patience / 1e3, _MAX_PATIENCE)
        try:
            with self._exports.reading(pull.export, deadline - time.monotonic()) as reading:
                _send_all(sender, reading, keys, deadline)
                if not isinstance(channel.receive(PROGRESS), Taken):
                    raise PeerError(f"{channel.peer} did not say that it has the blocks.")
                was_held = reading.take(len(keys))
        except NotHeld as error:
            channel.send(Refused(str(error)), SECONDS)
            return
        with self._lock:
            self.served_blocks += len(keys) if was_held else 0
        channel.send(Released(was_held), SECONDS)


def _send_all(sender: Sender, reading: Reading, keys: list[Key], deadline: float) -> None:
    """Send blocks as they are computed, layer by layer; return when a transfer holds all of them."""
    sent: list[int] = []
    while len(sent) < len(keys):
        found, done = reading.next(keys, len(sent), deadline - time.monotonic()), 0
        while done < found.memory.block_bytes:
            ready = reading.wait_ready(found, done, deadline - time.monotonic())
            sender.send(Run(found.memory, found.blocks, len(sent), done, ready))
            done = ready
        sent += found.blocks
    reading.wait_held(dict(zip(keys, sent, strict=True)), deadline - time.monotonic())
