"""What is asked about files, batch jobs and stored responses, on its way to the process that has them, and the answer
on the way back: what ASGI says of requests, and what is stored of answers, as frames of msgpack. Knows shapes only."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from inflight.server.preprocessing.wire import Refused

Headers = list[tuple[bytes, bytes]]
PATHS = ("/v1/files", "/v1/batches")
_RESPONSES = "/v1/responses/"  # stored ones; new ones are made where they are asked for


class Asked(Struct, frozen=True, tag=True):
    """A request: the first message; pieces of the body follow. tenant: who asks, by name, as whoever forwards it has
    found out."""

    method: str
    path: str
    query: bytes
    headers: Headers
    tenant: str
    request_id: str


class Keep(Struct, frozen=True, tag=True):
    """A response is to be stored, for a tenant. response, input_items: JSON."""

    tenant: str
    response_id: str
    response: bytes
    input_items: bytes


class Previous(Struct, frozen=True, tag=True):
    """What comes before a response that goes on from this one."""

    tenant: str
    response_id: str


class Settled(Struct, frozen=True):
    """Of one of these two: the history, or what is wrong."""

    history: bytes = b""
    error: Refused | None = None


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
_asked: msgspec.msgpack.Decoder[Asked | Keep | Previous] = msgspec.msgpack.Decoder(Asked | Keep | Previous)
decode_asked = _asked.decode
decode_settled = msgspec.msgpack.Decoder(Settled).decode
decode_piece = msgspec.msgpack.Decoder(Piece).decode
_answer: msgspec.msgpack.Decoder[Begun | Piece] = msgspec.msgpack.Decoder(Begun | Piece)
decode_answer = _answer.decode


def is_about_stored(path: str) -> bool:
    return path.startswith(_RESPONSES) or any(path == one or path.startswith(f"{one}/") for one in PATHS)
