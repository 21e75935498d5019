"""What a model's process tells the server, and the server it, beside calls: what an API process and the engine's tell
each other too (`processes.messages`), and that there is an engine, or is none. The first message, which says what is to
be loaded, is the command line's (`cli.model_worker`). Knows shapes only."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from inflight.server.loaded_engine import Described
from inflight.server.processes.messages import AskFrames, AskPage, Model, Page, ShownFrames, typed


class Ready(Struct, frozen=True, tag=True):
    """There is an engine at that address. nbytes: of memory that it takes."""

    address: str
    engine: Described
    nbytes: int


class Failed(Struct, frozen=True, tag=True):
    """It could not be loaded, or works no more; the last message."""

    sentence: str


ToModel = AskPage | AskFrames
FromModel = Model | Ready | Failed | Page | ShownFrames

_from_model: msgspec.msgpack.Decoder[FromModel] = msgspec.msgpack.Decoder(FromModel, dec_hook=typed)
_to_model: msgspec.msgpack.Decoder[ToModel] = msgspec.msgpack.Decoder(ToModel)
decode_from_model, decode_to_model = _from_model.decode, _to_model.decode
