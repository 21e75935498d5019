"""Messages between peers, and the connection that sends and reads them in frames of bounded length.

A frame is its length in 4 bytes and one message, in MessagePack. Bytes of blocks follow some messages, outside of
frames. Bytes that are no message end the connection with a sentence.
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

PROTOCOL = 3  # 2 named blocks without their groups; `Hello` and `Refused` are the same in all versions
NONCE = 32  # bytes
MAX_UNKNOWN = 4096  # bytes of a frame from a peer that has not proved the secret yet
MAX_BYTES = 4 << 20  # of a frame: names of a prompt of a million tokens
NAME = 16  # bytes of a block's name
MAX_NAMES = 1 << 17
PROGRESS = 10.0  # seconds in which some of what is being sent arrives; otherwise the peer is lost
_PIECES = 512  # views in one system call; more are refused by some systems

Nonce = Annotated[bytes, Meta(min_length=NONCE, max_length=NONCE)]
Proof = Annotated[bytes, Meta(min_length=32, max_length=32)]
Name = Annotated[bytes, Meta(min_length=NAME, max_length=NAME)]
Sentence = Annotated[str, Meta(max_length=2048)]
Count = Annotated[int, Meta(ge=0, lt=1 << 31)]


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    pass


class Hello(_Message, frozen=True):
    """First message of the client."""

    protocol: int
    nonce: Nonce


class Challenge(_Message, frozen=True):
    """Answer of the server to `Hello`. proof: of the secret, for the client's nonce."""

    nonce: Nonce
    proof: Proof


class Introduction(_Message, frozen=True):
    """Answer of the client to `Challenge`. proof: for the server's nonce. transport: that it has."""

    proof: Proof
    description: KVDescription
    transport: Annotated[str, Meta(max_length=32)]


class Welcome(_Message, frozen=True):
    """Answer of the server to `Introduction`. nixl_data: of its agent; empty: blocks are sent by the stream."""

    nixl_data: Annotated[bytes, Meta(max_length=1 << 16)] = b""


class Refused(_Message, frozen=True):
    """The connection, or the last pull on it, is refused."""

    why: Sentence


class Pull(_Message, frozen=True):
    """Request of the client for blocks of an export.

    Attributes:
        export: Its id.
        names: Of blocks, in the order in which they are wanted.
        groups: Of each block, as in `Transfer`; empty: all are of the first.
        patience: Milliseconds to wait for blocks that are not computed yet.
    """

    export: Annotated[str, Meta(max_length=256)]
    names: Annotated[list[Name], Meta(max_length=MAX_NAMES)]
    groups: Annotated[list[Count], Meta(max_length=MAX_NAMES)]
    patience: Count


class Blocks(_Message, frozen=True):
    """Next blocks of a pull, all of one size.

    Attributes:
        count: How many.
        first: Index of the first in the pull.
        start: First byte of each block.
        end: Byte behind the last of each block.
        at: Numbers of the blocks at the server, for NIXL; empty: their bytes follow this message.
    """

    count: Count
    first: Count
    start: Count
    end: Count
    at: Annotated[list[Count], Meta(max_length=MAX_NAMES)] = []


class Taken(_Message, frozen=True):
    """The client has all blocks of its pull; the export may end."""


class Released(_Message, frozen=True):
    """Answer of the server to `Taken`. were_held: until now, so that the right blocks were read."""

    were_held: bool


Message = Hello | Challenge | Introduction | Welcome | Refused | Pull | Blocks | Taken | Released


class PeerError(RuntimeError):
    """The peer is gone, too slow, or sends an invalid message; the error message says which."""


class Channel:
    """One end of a connection. Every call has a deadline."""

    def __init__(self, connected: socket.socket, peer: str):
        """peer: its name in error messages."""
        self._socket, self.peer = connected, peer
        # The system watches the time: otherwise each piece would take another call, to wait for it.
        connected.settimeout(None)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode: Callable[[bytes | bytearray], Message] = msgspec.msgpack.Decoder(Message).decode

    def send(self, message: Message, seconds: float, blocks: Sequence[memoryview] = ()) -> None:
        """Send a message, and the bytes of blocks behind it. Raises PeerError."""
        content = self._encode(message)
        self._send([memoryview(len(content).to_bytes(4, "big") + content), *blocks], time.monotonic() + seconds)

    def receive(self, seconds: float, max_bytes: int = MAX_BYTES) -> Message:
        """Return the next message, once all of it has arrived. Raises PeerError."""
        deadline = time.monotonic() + seconds
        head = bytearray(4)
        self._fill(memoryview(head), deadline)
        length = int.from_bytes(head, "big")
        if length > max_bytes:
            raise PeerError(f"{self.peer} announced a message of {length:,} bytes, where {max_bytes:,} are the most.")
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

    def is_quiet(self) -> bool:
        """Return whether the peer is connected and has sent nothing: a kept connection may be used again."""
        try:
            self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def close(self) -> None:
        with contextlib.suppress(OSError):  # the peer closed it first
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _send(self, views: list[memoryview], deadline: float) -> None:
        first = 0
        while first < len(views):
            self._set_timeout(deadline, socket.SO_SNDTIMEO)
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
            self._set_timeout(deadline, socket.SO_RCVTIMEO)
            try:
                got = self._socket.recv_into(view, 0, socket.MSG_WAITALL)
            except OSError as error:
                raise self._lost(error) from None
            if not got:
                raise PeerError(f"{self.peer} closed the connection.")
            view = view[got:]

    def _set_timeout(self, deadline: float, option: int) -> None:
        """Set the time limit of the next system call. option: of the socket, for receiving or for sending."""
        left = deadline - time.monotonic()
        if left <= 0:
            raise PeerError(f"{self.peer} took too long.")
        micros = max(1, int(1e6 * left))
        try:
            self._socket.setsockopt(
                socket.SOL_SOCKET, option, struct.pack("ll", micros // 1_000_000, micros % 1_000_000)
            )
        except OSError as error:
            raise self._lost(error) from None

    def _lost(self, error: OSError) -> PeerError:
        if isinstance(error, TimeoutError | BlockingIOError):
            return PeerError(f"{self.peer} took too long.")
        return PeerError(f"{self.peer} is lost ({error.strerror or error}).")
