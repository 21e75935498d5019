"""What is asked of an engine in another process about what it does, and what it tells: frames behind those that are
known already, and the account of a request. Knows shapes; how they travel, whoever carries them knows.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from inflight.live.engine_feed import Living
from inflight.live.frames import Frame, Hello


class Asked(Struct, frozen=True):
    """behind: of each engine; one that is not named is new to whoever asks. request_id: whose account is wanted; then
    no frames are."""

    behind: dict[str, int] = {}
    request_id: str = ""


class Shown(Struct, frozen=True):
    """hello: where whoever asks is new, or knows frames of an engine that has begun anew since. None, and no frames:
    the engine shows itself to nobody."""

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
