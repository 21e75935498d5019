"""The models of a server: one, or several of which some are in memory; and a model that a call has acquired."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import Struct

from inflight.core.types.sampling import Adapter
from inflight.engine.protocols import EngineClient
from inflight.server.common.bodies import UnknownFields
from inflight.server.common.logprobs import TokenNames
from inflight.server.common.prepared import EndpointName
from inflight.server.errors import ApiError
from inflight.server.model_status import ModelStatus
from inflight.server.preprocessing.pool import SHORT_BYTES, PreprocessingPool
from inflight.server.registry import ENDPOINTS
from inflight.server.translating import RequestTranslator
from inflight.text import Tokenizer


@dataclass(frozen=True)
class ServedEngine:
    """An engine that is ready, as endpoints and batch jobs need it.

    Attributes:
        max_model_len: Tokens of prompt and answer together.
        keeps_grammars: It applies schemas and grammars.
        generates: It continues texts.
        device: That it computes on. path: Of its folder or file.
    """

    bridge: EngineClient
    preprocessing: PreprocessingPool
    translator: RequestTranslator
    tokenizer: Tokenizer | None
    max_model_len: int
    keeps_grammars: bool = False
    generates: bool = True
    device: str = "cpu"
    path: str = ""

    @cached_property
    def names(self) -> TokenNames:
        return TokenNames(self.tokenizer)

    @cached_property
    def id_names(self) -> TokenNames:
        """Return names of tokens that are their ids."""
        return TokenNames(self.tokenizer, as_ids=True)

    async def close(self) -> None:
        await self.preprocessing.close()
        await asyncio.to_thread(self.bridge.close)


class ModelLease:
    """A model that stays in memory until the lease is released; releasing twice does no harm."""

    __slots__ = ("_release", "served")

    def __init__(self, served: ServedEngine, release: Callable[[], None] | None = None):
        self.served = served
        self._release = release

    def release(self) -> None:
        release, self._release = self._release, None
        if release is not None:
            release()


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A name that requests may call. model: whose it is; adapter: that it stands for. served: None where the model is
    not in memory; status, path, is_found: of one of several, as `PooledModel` has them."""

    name: str
    model: str
    adapter: Adapter | None
    served: ServedEngine | None
    status: ModelStatus | None = None
    path: str = ""
    is_found: bool = False


class ModelResidency(Protocol):
    """Which of several models are in memory, as an operator wants it."""

    async def load(self, name: str) -> ModelStatus:
        """Load the model, and wait for it as long as a call may. Raises ApiError."""

    async def unload(self, name: str) -> ModelStatus:
        """Unload the model as soon as its calls have ended. Raises ApiError."""

    async def find(self) -> None: ...  # looks again which models are on this machine, where those are served


class ServedModels(Protocol):
    """All verbs are called in the server's event loop."""

    @property
    def residency(self) -> ModelResidency | None:
        """Return which of several models are loaded: a body has to name one then, and may wait. None: there is one."""

    @property
    def stopped(self) -> str | None:
        """Return why nothing is served any more; None while something is."""

    async def listed(self) -> Sequence[ListedModel]: ...

    async def acquire(self, name: str | None, keep_alive: float | None = None) -> ModelLease:
        """Acquire a model by any of its names, and wait until it is in memory, where it stays for `keep_alive` seconds
        after the call (None: as its settings say). The lease must be released. Raises ApiError."""

    def refuse(self, error: ApiError) -> None:
        """Refuse all calls from now on, and those that wait."""

    async def close(self) -> None: ...


class AdapterLoading(Protocol):
    """Loads and unloads adapters while the server runs."""

    async def load_adapter(self, name: str, path: Path) -> None:
        """Let requests name an adapter. Raises ApiError."""

    async def unload_adapter(self, name: str) -> None:
        """Let no request name an adapter any more; those in flight go on with it. Raises ApiError."""


class OneModel:
    """`ServedModels` of a server that has one, under whatever name it is called: bodies' names are checked where they
    are read."""

    residency = None

    def __init__(self, served: ServedEngine, adapter_loading: AdapterLoading | None = None):
        """adapter_loading: None where adapters are those of the start."""
        self.served, self.adapter_loading = served, adapter_loading

    @property
    def stopped(self) -> str | None:
        return self.served.bridge.stopped

    async def listed(self) -> Sequence[ListedModel]:
        translator, served = self.served.translator, self.served
        model = translator.models[0]
        adapters = translator.adapters
        names = [ListedModel(name, model, None, served) for name in translator.models]
        return [*names, *(ListedModel(name, model, adapters.named(name), served) for name in adapters.names)]

    async def acquire(self, name: str | None, keep_alive: float | None = None) -> ModelLease:
        return ModelLease(self.served)

    def refuse(self, error: ApiError) -> None:
        """Do nothing: no call waits for a model."""

    async def close(self) -> None:
        await self.served.close()


class _Named(Struct):
    model: str | None = None


_NAMED = msgspec.json.Decoder(_Named)


async def model_named(endpoint: EndpointName, body: bytes) -> str | None:
    """Return the model that a body names. Raises ApiError where it cannot be read."""
    if len(body) > SHORT_BYTES:
        return await asyncio.to_thread(lambda: _model_named(endpoint, body))
    return _model_named(endpoint, body)


def _model_named(endpoint: EndpointName, body: bytes) -> str | None:
    try:
        return _NAMED.decode(body).model or None
    except (msgspec.MsgspecError, ValueError, RecursionError):
        ENDPOINTS[endpoint].body.decode(body, UnknownFields())  # raises what is wrong with it
        raise
