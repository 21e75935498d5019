"""Messages between the server's first process and an engine's, beside calls and the setup (`launch.engine_setup`)."""

from __future__ import annotations

import msgspec
from msgspec import Raw, Struct

from inflight.core.types.sampling import Adapter
from inflight.server.processes.counts import Count
from inflight.server.processes.messages import (
    AdapterChanged,
    AskFrames,
    AskPage,
    LoadAdapter,
    Loading,
    Model,
    Page,
    PrefixCacheReset,
    ResetPrefixCache,
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
    """It could not be loaded, or the engine has stopped; the last message. exit_code: 2 for a setting's value."""

    sentence: str
    exit_code: int = 1


ToWorker = AskPage | AskFrames | Count | LoadAdapter | UnloadAdapter | ResetPrefixCache | ClientLost
OfWork = Page | ShownFrames | AdapterChanged | PrefixCacheReset
FromWorker = Loading | Model | EngineReady | ClientDropped | Failed | OfWork

_from_worker: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker, dec_hook=typed)
_to_worker: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker, dec_hook=typed)
decode_from_worker, decode_to_worker = _from_worker.decode, _to_worker.decode
