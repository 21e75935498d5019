"""Define the messages that request frames, or a request's account, from an engine in another process."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from inflight.live.engine_feed import Living, SlotInfo
from inflight.live.frames import Frame, Hello


class FeedQuery(Struct, frozen=True):
    """A query.

    Attributes:
        behind: Number of the last frame received of each engine; an engine without an entry is new to the receiver.
        request_id: If set, the account of this request is returned instead of frames.
        slots: If set, the request slots in use and the engine's settings are returned instead of frames.
    """

    behind: dict[str, int] = {}
    request_id: str = ""
    slots: bool = False


class FeedAnswer(Struct, frozen=True):
    """The answer to a query. An engine without a live page answers with an empty one.

    Attributes:
        hello: If the engine is new to the receiver, or has restarted since the last query; with slots always.
    """

    hello: Hello | None = None
    frames: list[Frame] = []
    living: Living | None = None
    slots: list[SlotInfo] | None = None


NO_ANSWER = FeedAnswer()
_encoder = msgspec.json.Encoder()
_query: msgspec.json.Decoder[FeedQuery] = msgspec.json.Decoder(FeedQuery)
_answer: msgspec.json.Decoder[FeedAnswer] = msgspec.json.Decoder(FeedAnswer)


def encode(message: FeedQuery | FeedAnswer) -> bytes:
    return _encoder.encode(message)


decode_query = _query.decode


def decode_answer(data: bytes) -> FeedAnswer | None:
    """Return the answer; None where an engine of another version sends one that is not understood."""
    try:
        return _answer.decode(data)
    except (msgspec.MsgspecError, ValueError):
        return None
