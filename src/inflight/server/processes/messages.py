"""Messages between the server's first process and an API process, beside calls: frames of msgpack, both sides checking
types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw, Struct

from inflight.core.types.sampling import Adapter
from inflight.server.errors import ApiError
from inflight.server.logs import Format
from inflight.server.model_status import ModelStatus
from inflight.server.processes.counts import Count
from inflight.server.settings import ServerSettings
from inflight.server.tenants import Tenant
from inflight.text.text_files import TextFiles

# -- to an API process ------------------------------------------------------------------------------------------------


class PooledModel(Struct, frozen=True):
    """One of several models.

    Attributes:
        names: That requests may call it by; the first is its own.
        adapters: That requests may name instead.
        settings: Of its answers and limits.
        path: Of its folder or file; empty: it is not on this machine yet.
        is_found: It is served since it was found on this machine, and goes with its files.
    """

    names: tuple[str, ...]
    adapters: tuple[Adapter, ...]
    settings: ServerSettings
    path: str = ""
    is_found: bool = False

    @property
    def name(self) -> str:
        return self.names[0]


class ServerSetup(Struct, frozen=True, kw_only=True):
    """Settings that all API processes of a server share.

    Attributes:
        version: Of this package.
        record: The file that the engine writes its steps to.
        has_replicas: The engine is replicas, which the live page shows one by one.
        models: Of a server with several; empty: there is one.
    """

    settings: ServerSettings
    version: str
    log_format: Format
    log_level: str
    record: Path | None = None
    has_replicas: bool = False
    models: tuple[PooledModel, ...] = ()


class Setup(Struct, frozen=True, tag=True, kw_only=True):
    """The first message to an API process.

    Attributes:
        keys: Digests, and the tenant of each.
        tenants: Names in the order in which the table of calls has them.
        index: Of the process among those that serve at once.
        serial: Of the process; no other one, before or after it, has the same.
        early: Answer while there is no engine; else others do.
        listening: Descriptor of the socket that all listen on.
        counts: Descriptor of the table of calls in flight.
        certificate: Descriptors, see `CertificateInForce`; empty: connections are not encrypted.
        folder: Of the sockets between the processes.
    """

    server: ServerSetup
    keys: tuple[tuple[bytes, Tenant], ...]
    tenants: tuple[str, ...]
    index: int
    serial: int
    early: bool
    listening: int
    counts: int
    folder: Path
    certificate: tuple[int, ...] = ()


class Loading(Struct, frozen=True, tag=True):
    """The part of the start that has begun, before there is an engine."""

    doing: str


class DataReady(Struct, frozen=True, tag=True):
    """The data directory is claimed, checked and up to date: it may be opened."""


class Model(Struct, frozen=True, tag=True):
    """The tokenizer and template of an engine that is being loaded.

    Attributes:
        name: The model's, where there are several.
        serial: Of the engine's process; no other one has the same.
    """

    text: TextFiles
    name: str = ""
    serial: int = 0


class Ready(Struct, frozen=True, tag=True):
    """An engine serves at an address.

    Attributes:
        engine: An encoded `EngineDescription`.
        adapters: All that requests may name.
        name: As `Model` has it.
    """

    address: str
    engine: Raw
    adapters: tuple[Adapter, ...]
    name: str = ""


class Lost(Struct, frozen=True, tag=True):
    """An engine has ended; a single one is started again.

    Attributes:
        sentence: The reason, for clients whose calls end with it.
        name: As `Model` has it.
    """

    sentence: str
    name: str = ""


class PoolReady(Struct, frozen=True, tag=True):
    """The pinned ones of several models are in memory."""


class PoolChanged(Struct, frozen=True, tag=True):
    """All models of the pool, to which some have come, or of which some have gone."""

    models: tuple[PooledModel, ...]


class Acquired(Struct, frozen=True, tag=True):
    """The model of `Acquire` is in memory, and stays there until `Release`.

    Attributes:
        name: The model's own.
        serial: Of its engine's process.
    """

    question: int
    name: str
    serial: int


class ModelStatuses(Struct, frozen=True, tag=True):
    """The models that were asked for: all, or the one that is to be loaded or unloaded."""

    question: int
    statuses: tuple[ModelStatus, ...]


class Refused(Struct, frozen=True, tag=True):
    """An `ApiError`, with its attributes, instead of `Acquired` or `ModelStatuses`."""

    question: int
    status: int
    message: str
    error_type: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None
    retry_after: float | None = None

    def error(self) -> ApiError:
        return ApiError(
            self.status,
            self.message,
            type=self.error_type,
            param=self.param,
            code=self.code,
            retry_after=self.retry_after,
        )


class Adapters(Struct, frozen=True, tag=True):
    """All adapters that requests may name from now on."""

    adapters: tuple[Adapter, ...]


class AdapterChanged(Struct, frozen=True, tag=True):
    """The answer to `LoadAdapter` or `UnloadAdapter`.

    Attributes:
        adapters: All that there are now.
        param: The field that an error is about; None: there is no engine now.
        is_fault: An error of the server.
    """

    question: int
    adapters: tuple[Adapter, ...] = ()
    error: str | None = None
    param: str | None = None
    is_fault: bool = False


class Signal(Struct, frozen=True, tag=True):
    """The engine's process was sent it: the first asks what runs to finish, the second does not wait for it."""

    number: int


class Reload(Struct, frozen=True, tag=True):
    """Keys that are in force from now on, as `Setup` has them; the certificate is to be read again."""

    keys: tuple[tuple[bytes, Tenant], ...]
    tenants: tuple[str, ...]


class Page(Struct, frozen=True, tag=True):
    """The page of metrics. text: None if it could not be made."""

    question: int
    text: bytes | None
    content_type: str


class ShownFrames(Struct, frozen=True, tag=True):
    """Frames of engines, by their names, as `live.distant` writes them."""

    question: int
    frames: dict[str, bytes]


class PrefixCacheReset(Struct, frozen=True, tag=True):
    """The answer to `ResetPrefixCache`.

    Attributes:
        blocks: That had content.
        error: Why nothing was dropped.
        is_busy: It may be asked for again.
    """

    question: int
    blocks: int = 0
    error: str | None = None
    is_busy: bool = False


# -- from an API process ----------------------------------------------------------------------------------------------


class Up(Struct, frozen=True, tag=True):
    """It takes calls. serial: of the only engine, as `Model` has it; None: there are several models."""

    serial: int | None = None


class AskPage(Struct, frozen=True, tag=True):
    question: int


class AskFrames(Struct, frozen=True, tag=True):
    """Asks for frames of what engines do. data: as `live.distant` writes it. name: of the engine, where it is asked."""

    question: int
    data: bytes
    name: str = ""


class Acquire(Struct, frozen=True, tag=True):
    """A call needs one of several models.

    Attributes:
        name: Any of the model's; None: the body names none.
        keep_alive: Seconds for which the model stays afterwards; None: as its settings say.
    """

    question: int
    name: str | None
    keep_alive: float | None = None


class Release(Struct, frozen=True, tag=True):
    """The call has ended that had, or waited for, what `Acquire` asked for. question: its number."""

    question: int


class EngineBroken(Struct, frozen=True, tag=True):
    """An engine answers no more. name, serial: as `Model` has them."""

    name: str
    serial: int
    sentence: str


class AskModels(Struct, frozen=True, tag=True):
    question: int


class FindModels(Struct, frozen=True, tag=True):
    """Look again which models are on this machine, where the pool serves those."""

    question: int


class LoadModel(Struct, frozen=True, tag=True):
    """Load one of several models; the answer comes when it is in memory."""

    question: int
    name: str


class UnloadModel(Struct, frozen=True, tag=True):
    """Unload one of several models as soon as its calls have ended; the answer comes at once."""

    question: int
    name: str


class LoadAdapter(Struct, frozen=True, tag=True):
    """Let requests name an adapter of these files."""

    question: int
    name: str
    path: Path


class UnloadAdapter(Struct, frozen=True, tag=True):
    """Let no request name an adapter from now on."""

    question: int
    name: str


class ResetPrefixCache(Struct, frozen=True, tag=True):
    question: int


Notice = Count | Release | EngineBroken
OfModels = Acquire | AskModels | FindModels | LoadModel | UnloadModel
Question = AskPage | AskFrames | LoadAdapter | UnloadAdapter | ResetPrefixCache | OfModels
Answer = Page | ShownFrames | AdapterChanged | PrefixCacheReset | Acquired | ModelStatuses | Refused
OfPool = PoolReady | PoolChanged | Acquired | ModelStatuses | Refused
OfEngines = Model | Ready | Lost | Adapters | AdapterChanged | OfPool
ToChild = Setup | Loading | DataReady | OfEngines | Signal | Reload | Page | ShownFrames | PrefixCacheReset
FromChild = Up | Notice | Question

NO_SUCCESSOR = 3  # exit code of a process that cannot serve, and whose successor could not, either


def _plain(value: Any) -> str:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(f"{type(value).__name__} does not travel between processes")


def typed(kind: type, value: Any) -> Any:
    """Return a value that was written as text, in its type."""
    return kind(value)


encode = msgspec.msgpack.Encoder(enc_hook=_plain).encode
_to_child: msgspec.msgpack.Decoder[ToChild] = msgspec.msgpack.Decoder(ToChild, dec_hook=typed)
_from_child: msgspec.msgpack.Decoder[FromChild] = msgspec.msgpack.Decoder(FromChild, dec_hook=typed)
decode_to_child, decode_from_child = _to_child.decode, _from_child.decode
