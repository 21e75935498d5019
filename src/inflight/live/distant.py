"""Define the messages that request frames, or a request's account, from an engine in another process."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from inflight.live.engine_feed import Living
from inflight.live.frames import Frame, Hello


class Asked(Struct, frozen=True):
    """A query.

    Attributes:
        behind: Number of the last frame received of each engine; an engine without an entry is new to the receiver.
        request_id: If set, the account of this request is returned instead of frames.
    """

    behind: dict[str, int] = {}
    request_id: str = ""


class Shown(Struct, frozen=True):
    """The answer to a query. An engine without a live page answers with an empty one.

    Attributes:
        hello: If the engine is new to the receiver, or has restarted since the last query.
    """

    hello: Hello | None = None
    frames: list[Frame] = []
    living: Living | None = None


NOTHING = Shown()
_encoder = msgspec.json.Encoder()
_asked: msgspec.json.Decoder[Asked] = msgspec.json.Decoder(Asked)
_shown: msgspec.json.Decoder[Shown] = msgspec.json.Decoder(Shown)


def encode(message: Asked | Shown) -> bytes:
    return _encoder.encode(message)


decode_asked, decode_shown = _asked.decode, _shown.decode
