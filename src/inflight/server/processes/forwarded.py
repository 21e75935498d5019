"""A request about files and batch jobs on its way to the process that has them, and its answer on the way back: what
ASGI says of both, as frames of msgpack. Knows shapes only."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from inflight.server.preprocessing.wire import Refused

Headers = list[tuple[bytes, bytes]]
PATHS = ("/v1/files", "/v1/batches")


class Asked(Struct, frozen=True):
    """The first message; pieces of the body follow. tenant: who asks, by name, as whoever forwards it has found out."""

    method: str
    path: str
    query: bytes
    headers: Headers
    tenant: str
    request_id: str


class Begun(Struct, frozen=True, tag=True):
    """The answer's beginning; pieces follow. error: what the log is to say."""

    status: int
    headers: Headers
    error: Refused | None


class Piece(Struct, frozen=True, tag=True):
    """Of a body. more: it is not the last."""

    data: bytes
    more: bool


encode = msgspec.msgpack.Encoder().encode
decode_asked = msgspec.msgpack.Decoder(Asked).decode
decode_piece = msgspec.msgpack.Decoder(Piece).decode
_answer: msgspec.msgpack.Decoder[Begun | Piece] = msgspec.msgpack.Decoder(Begun | Piece)
decode_answer = _answer.decode


def is_about_jobs(path: str) -> bool:
    return any(path == one or path.startswith(f"{one}/") for one in PATHS)
