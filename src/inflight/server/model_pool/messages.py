"""What a model's process tells the server, and the server it, beside calls: frames of msgpack, both sides checking
types. Knows shapes only. The first message, which says what is to be loaded, is the command line's
(`cli.model_worker`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from inflight.server.loading import Described

# -- to the model's process -------------------------------------------------------------------------------------------


class AskMetrics(Struct, frozen=True, tag=True):
    question: int


# -- from it ----------------------------------------------------------------------------------------------------------


class Found(Struct, frozen=True, tag=True):
    """Where tokenizer and template are."""

    folder: Path


class Ready(Struct, frozen=True, tag=True):
    """There is an engine at that address. nbytes: of memory that it takes."""

    address: str
    engine: Described
    nbytes: int


class Failed(Struct, frozen=True, tag=True):
    """It could not be loaded, or works no more; the last message."""

    sentence: str


class MetricsPage(Struct, frozen=True, tag=True):
    """That was asked for; None where it could not be told."""

    question: int
    text: bytes | None


FromModel = Found | Ready | Failed | MetricsPage


def _typed(kind: type, value: Any) -> Any:
    return kind(value)


_from_model: msgspec.msgpack.Decoder[FromModel] = msgspec.msgpack.Decoder(FromModel, dec_hook=_typed)
_to_model: msgspec.msgpack.Decoder[AskMetrics] = msgspec.msgpack.Decoder(AskMetrics)
decode_from_model, decode_to_model = _from_model.decode, _to_model.decode
