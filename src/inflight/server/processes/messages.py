"""What the engine's process and an API process tell each other beside calls: frames of msgpack, both sides checking
types. Knows shapes only."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Raw, Struct

from inflight.core.types.sampling import Adapter
from inflight.server.logs import Format
from inflight.server.settings import ServerSettings
from inflight.server.tenants import Tenant

# -- to an API process ------------------------------------------------------------------------------------------------


class Setup(Struct, frozen=True, tag=True):
    """The first message. keys: digests, and whose they are. tenants: names in the order in which
    the table has them. place: which of the processes it is; serial: no other one,
    before or after it, has the same. early: answer while there is no engine; else others do. listening, counts:
    descriptors of the socket that all listen on and of the table of calls in flight. folder: of the sockets between the
    processes. version: of this package. record: file that the engine writes its steps to."""

    settings: ServerSettings
    keys: tuple[tuple[bytes, Tenant], ...]
    tenants: tuple[str, ...]
    place: int
    serial: int
    early: bool
    listening: int
    counts: int
    folder: Path
    version: str
    log_format: Format
    log_level: str
    record: Path | None = None


class Loading(Struct, frozen=True, tag=True):
    """What is being done before there is an engine."""

    doing: str


class DataReady(Struct, frozen=True, tag=True):
    """The data directory is claimed, checked and up to date: it may be opened."""


class Model(Struct, frozen=True, tag=True):
    """The folder of tokenizer and template of an engine that is being loaded."""

    folder: Path


class Ready(Struct, frozen=True, tag=True):
    """An engine serves at an address. engine: an encoded `EngineDescription`. adapters: all that requests may name."""

    address: str
    engine: Raw
    adapters: tuple[Adapter, ...]


class Lost(Struct, frozen=True, tag=True):
    """The engine has ended, and another one is started. sentence: why, for clients whose calls end with it."""

    sentence: str


class Adapters(Struct, frozen=True, tag=True):
    """All adapters that requests may name from now on."""

    adapters: tuple[Adapter, ...]


class AdapterChanged(Struct, frozen=True, tag=True):
    """The answer to `LoadAdapter` or `UnloadAdapter`. adapters: all that there are now. param: the field that is to
    blame for an error."""

    question: int
    adapters: tuple[Adapter, ...] = ()
    error: str | None = None
    param: str | None = None


class Signal(Struct, frozen=True, tag=True):
    """The engine's process was sent it: the first asks what runs to finish, the second does not wait for it."""

    number: int


class Reload(Struct, frozen=True, tag=True):
    """Keys that are in force from now on, as `Setup` has them; the certificate is to be read again."""

    keys: tuple[tuple[bytes, Tenant], ...]
    tenants: tuple[str, ...]


class Page(Struct, frozen=True, tag=True):
    """The metrics that were asked for. text: None where they could not be told."""

    question: int
    text: bytes | None
    content_type: str


class ShownFrames(Struct, frozen=True, tag=True):
    """What the engine does, as `live.distant` writes it, where it was asked."""

    question: int
    data: bytes


# -- from an API process ----------------------------------------------------------------------------------------------


class Up(Struct, frozen=True, tag=True):
    """It takes calls."""


class Answered(Struct, frozen=True, tag=True):
    """An HTTP request was; for the metrics, which outlive the process."""

    route: str
    status: int
    seconds: float


class NotAsked(Struct, frozen=True, tag=True):
    """A call was refused before it reached the engine."""

    code: str


class JobsCounted(Struct, frozen=True, tag=True):
    """How many batch jobs there are now, by status."""

    by_status: dict[str, int]


class JobEnded(Struct, frozen=True, tag=True):
    status: str


class LinesAnswered(Struct, frozen=True, tag=True):
    """Of batch jobs."""

    outcome: Literal["completed", "failed"]
    count: int


class AskPage(Struct, frozen=True, tag=True):
    question: int


class AskFrames(Struct, frozen=True, tag=True):
    """data: as `live.distant` writes it. name: that whoever asks has for the engine."""

    question: int
    data: bytes
    name: str = ""


class LoadAdapter(Struct, frozen=True, tag=True):
    """Let requests name an adapter of these files."""

    question: int
    name: str
    path: Path


class UnloadAdapter(Struct, frozen=True, tag=True):
    """Let no request name an adapter from now on."""

    question: int
    name: str


Count = Answered | NotAsked | JobsCounted | JobEnded | LinesAnswered  # for the metrics, which the engine's process has
_More = AdapterChanged | Signal | Reload | Page | ShownFrames
ToChild = Setup | Loading | DataReady | Model | Ready | Lost | Adapters | _More
FromChild = Up | Count | AskPage | AskFrames | LoadAdapter | UnloadAdapter

NO_SUCCESSOR = 3  # exit code of a process that cannot serve, and whose successor could not, either


def _plain(value: Any) -> str:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(f"{type(value).__name__} does not travel between processes")


def typed(kind: type, value: Any) -> Any:
    """What was written as text, as the type that stands there."""
    return kind(value)


encode = msgspec.msgpack.Encoder(enc_hook=_plain).encode
_to_child: msgspec.msgpack.Decoder[ToChild] = msgspec.msgpack.Decoder(ToChild, dec_hook=typed)
_from_child: msgspec.msgpack.Decoder[FromChild] = msgspec.msgpack.Decoder(FromChild, dec_hook=typed)
decode_to_child, decode_from_child = _to_child.decode, _from_child.decode
