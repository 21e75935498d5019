"""Messages between an engine's process and the server, beside calls: frames of msgpack, both sides checking types. The
first one, which says what to load, is the command line's (`launch.engine_process`)."""

from __future__ import annotations

import msgspec
from msgspec import Raw, Struct

from inflight.core.types.sampling import Adapter
from inflight.server.processes.messages import (
    AdapterChanged,
    AskFrames,
    AskPage,
    Count,
    LoadAdapter,
    Loading,
    Model,
    Page,
    ShownFrames,
    UnloadAdapter,
    typed,
)


class EngineReady(Struct, frozen=True, tag=True):
    """The engine serves at an address.

    Attributes:
        engine: Encoded `EngineDescription`: the processes in between pass it on unread.
        adapters: All that requests may name.
        nbytes: Memory that it takes.
        parts: Of its start, with their seconds.
        cpu_seconds: Of all threads of its process, until now.
    """

    address: str
    engine: Raw
    adapters: tuple[Adapter, ...]
    nbytes: int
    parts: tuple[tuple[str, float], ...] = ()
    cpu_seconds: float = 0.0


class ClientDropped(Struct, frozen=True, tag=True):
    """A client sent what is no message, or has read no answers for long: its requests are aborted."""

    name: str


class ClientLost(Struct, frozen=True, tag=True):
    """A client's process has ended."""

    name: str


class Failed(Struct, frozen=True, tag=True):
    """It could not be loaded, or works no more; the last message."""

    sentence: str


ToModel = AskPage | AskFrames | Count | LoadAdapter | UnloadAdapter | ClientLost
FromModel = Loading | Model | EngineReady | ClientDropped | Failed | Page | ShownFrames | AdapterChanged

_from_model: msgspec.msgpack.Decoder[FromModel] = msgspec.msgpack.Decoder(FromModel, dec_hook=typed)
_to_model: msgspec.msgpack.Decoder[ToModel] = msgspec.msgpack.Decoder(ToModel, dec_hook=typed)
decode_from_model, decode_to_model = _from_model.decode, _to_model.decode
