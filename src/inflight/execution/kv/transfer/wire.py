"""Messages between peers and how they are read: in frames of bounded length, by their types.

A frame is its length in 4 bytes and one message, in MessagePack. Bytes of blocks follow some of them, outside of
frames. Knows sockets and deadlines; whatever a peer sends that is no message ends the connection with a sentence.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from inflight.execution.kv.transfer.description import KVDescription

PROTOCOL = 2
NONCE = 32  # bytes
MAX_UNKNOWN = 4096  # bytes of a frame from a peer that has not proved the secret yet
MAX_BYTES = 4 << 20  # of a frame: names of a prompt of a million tokens
NAME = 64  # bytes of a block's name, at most
_PIECES = 512  # at once; what systems take

Nonce = Annotated[bytes, Meta(min_length=NONCE, max_length=NONCE)]
Proof = Annotated[bytes, Meta(min_length=32, max_length=32)]
Name = Annotated[bytes, Meta(min_length=1, max_length=NAME)]
Sentence = Annotated[str, Meta(max_length=2048)]
Count = Annotated[int, Meta(ge=0, lt=1 << 31)]


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    pass


class Hello(_Message, frozen=True):
    """The first message, of the connecting side."""

    protocol: int
    nonce: Nonce


class Challenge(_Message, frozen=True):
    """The listener's answer. proof: of the secret, for the connecting side's nonce."""

    nonce: Nonce
    proof: Proof


class Introduction(_Message, frozen=True):
    """The connecting side's answer. proof: for the listener's nonce. way: how to send blocks; ways_data: of that
    way."""

    proof: Proof
    description: KVDescription
    way: Annotated[str, Meta(max_length=32)]
    ways_data: Annotated[bytes, Meta(max_length=1 << 16)] = b""


class Welcome(_Message, frozen=True):
    """local: the name of a socket by which peers on the same host connect instead; host: which host that is."""

    host: Annotated[str, Meta(max_length=256)]
    local: Annotated[str, Meta(max_length=256)]
    ways_data: Annotated[bytes, Meta(max_length=1 << 16)] = b""


class Refused(_Message, frozen=True):
    """The connection, or what was asked on it last. blocks are not to be had."""

    why: Sentence


class Pull(_Message, frozen=True):
    """Blocks of an export, by their names in order. patience: milliseconds for what is not computed yet."""

    export: Annotated[str, Meta(max_length=256)]
    names: Annotated[list[Name], Meta(max_length=1 << 17)]
    patience: Count


class Blocks(_Message, frozen=True):
    """`count` of the blocks that were asked for, from number `first` on, are there; of each the bytes from `start` to
    `end`, or to its end where that is 0. at: where, if not in the stream."""

    count: Count
    at: Annotated[list[Count], Meta(max_length=1 << 17)] = []
    first: Count = 0
    start: Count = 0
    end: Count = 0


class Copied(_Message, frozen=True):
    """So many blocks are out of shared memory, and their places free."""

    count: Count


class Taken(_Message, frozen=True):
    """All blocks that were asked for have arrived; they need not be held any more."""


class Released(_Message, frozen=True):
    """were_held: until now, so that what was read was what was asked for."""

    were_held: bool


Message = Hello | Challenge | Introduction | Welcome | Refused | Pull | Blocks | Copied | Taken | Released


class PeerError(RuntimeError):
    """The peer is gone, too slow, or sends an invalid message; the error message says which."""


class Channel:
    """One end of a connection. Nothing takes longer than it may: every call has a deadline."""

    def __init__(self, connected: socket.socket, peer: str):
        """peer: how sentences call it."""
        self._socket, self.peer = connected, peer
        # The system watches the time: otherwise each piece that comes would take a call more, to wait for it.
        connected.settimeout(None)
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode: Callable[[bytes | bytearray], Message] = msgspec.msgpack.Decoder(Message).decode

    def send(self, message: Message, seconds: float, blocks: Sequence[memoryview] = ()) -> None:
        """And bytes behind it. Raises PeerError."""
        content = self._encode(message)
        self._send([memoryview(len(content).to_bytes(4, "big") + content), *blocks], time.monotonic() + seconds)

    def receive(self, seconds: float, most: int = MAX_BYTES) -> Message:
        """Return the next message, once all of it is there. Raises PeerError."""
        deadline = time.monotonic() + seconds
        head = bytearray(4)
        self._fill(memoryview(head), deadline)
        length = int.from_bytes(head, "big")
        if length > most:
            raise PeerError(f"{self.peer} announced a message of {length:,} bytes, where {most:,} are the most.")
        content = bytearray(length)
        self._fill(memoryview(content), deadline)
        try:
            return self._decode(content)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise PeerError(f"{self.peer} sent what is no message ({error}).") from None

    def receive_bytes(self, into: Sequence[memoryview], seconds: float) -> None:
        """Receive the bytes behind a message. seconds: for all of them. Raises PeerError."""
        deadline = time.monotonic() + seconds
        for view in into:
            self._fill(view, deadline)

    def send_descriptor(self, descriptor: int, seconds: float) -> None:
        """To a peer on the same host. Raises PeerError."""
        self._until(time.monotonic() + seconds, socket.SO_SNDTIMEO)
        try:
            socket.send_fds(self._socket, [b"\0"], [descriptor])
        except OSError as error:
            raise self._lost(error) from None

    def receive_descriptor(self, seconds: float) -> int:
        """Receive a file descriptor, which the caller closes. Raises PeerError."""
        self._until(time.monotonic() + seconds, socket.SO_RCVTIMEO)
        try:
            _, descriptors, _, _ = socket.recv_fds(self._socket, 1, 1)
        except OSError as error:
            raise self._lost(error) from None
        if not descriptors:
            raise PeerError(f"{self.peer} sent no memory where some was due.")
        return descriptors[0]

    def is_quiet(self) -> bool:
        """Whether nothing has come, and the peer is there: so a connection that was kept may be used."""
        try:
            self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def close(self) -> None:
        with contextlib.suppress(OSError):  # the peer was first
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _send(self, views: list[memoryview], deadline: float) -> None:
        first = 0
        while first < len(views):
            self._until(deadline, socket.SO_SNDTIMEO)
            try:
                sent = self._socket.sendmsg(views[first : first + _PIECES])
            except OSError as error:
                raise self._lost(error) from None
            while first < len(views) and sent >= len(views[first]):
                sent -= len(views[first])
                first += 1
            if sent:
                views[first] = views[first][sent:]

    def _fill(self, view: memoryview, deadline: float) -> None:
        while view:
            self._until(deadline, socket.SO_RCVTIMEO)
            try:
                got = self._socket.recv_into(view, 0, socket.MSG_WAITALL)
            except OSError as error:
                raise self._lost(error) from None
            if not got:
                raise PeerError(f"{self.peer} closed the connection.")
            view = view[got:]

    def _until(self, deadline: float, limit: int) -> None:
        """Set the timeout of the next call. limit: the socket's option, for receiving or for sending."""
        left = deadline - time.monotonic()
        if left <= 0:
            raise PeerError(f"{self.peer} took too long.")
        micros = max(1, int(1e6 * left))
        try:
            self._socket.setsockopt(
                socket.SOL_SOCKET, limit, struct.pack("ll", micros // 1_000_000, micros % 1_000_000)
            )
        except OSError as error:
            raise self._lost(error) from None

    def _lost(self, error: OSError) -> PeerError:
        if isinstance(error, TimeoutError | BlockingIOError):
            return PeerError(f"{self.peer} took too long.")
        return PeerError(f"{self.peer} is lost ({error.strerror or error}).")
