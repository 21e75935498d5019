"""Several models as an API process sees them: no engine, and an event loop of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from inflight.server.errors import ApiError
from inflight.server.preprocessing.pool import PreprocessingError, PreprocessingPool
from inflight.server.processes import pooled_models
from inflight.server.processes.engine_link import EngineLink
from inflight.server.processes.messages import (
    Acquire,
    Acquired,
    EngineBroken,
    FromChild,
    Lost,
    Model,
    PooledModel,
    PoolReady,
    Ready,
    Refused,
    Release,
    ServerSetup,
    Setup,
)
from inflight.server.processes.pooled_models import PooledModels
from inflight.server.settings import ServerSettings
from inflight.text import TextFiles

SERVER = ServerSetup(
    settings=ServerSettings(),
    version="1.0",
    log_format="json",
    log_level="info",
    models=tuple(PooledModel((name,), (), ServerSettings()) for name in "ab"),
)
SETUP = Setup(
    server=SERVER,
    keys=(),
    tenants=("",),
    index=0,
    serial=1,
    early=True,
    listening=8,
    counts=9,
    folder=Path("/t"),
)
READY = Ready("ipc://x", msgspec.Raw(b"\x80"), (), "a")


class Rig:
    """sent: messages to the first process. fault: of connections from now on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[FromChild] = []
        self.fault: Exception | None = None
        self.models = PooledModels(
            SETUP, cast(PreprocessingPool, None), self.sent.append, cast(Any, None), cast(Any, None)
        )
        self.engines: list[SimpleNamespace] = []
        monkeypatch.setattr(self.models, "_connect", self._connect)
        monkeypatch.setattr(EngineLink, "lose", self._lose)

    async def _connect(self, model: PooledModel, message: Model, ready: asyncio.Future[Ready]) -> Any:
        await ready
        if self.fault is not None:
            raise self.fault
        self.engines.append(SimpleNamespace(bridge=SimpleNamespace(stopped=None), close=asyncio.Event().wait))
        return self.engines[-1]

    @staticmethod
    def _lose(link: EngineLink, sentence: str) -> None:
        link._is_lost = True
        link._connecting.cancel()

    def load(self, serial: int = 1) -> None:
        self.models.heard(Model(TextFiles("/m"), "a", serial))
        self.models.heard(READY)

    def acquire(self, name: str = "a") -> asyncio.Task[Any]:
        return asyncio.ensure_future(self.models.acquire(name))

    async def asked(self) -> int:
        """Wait for the next question that is not answered, and return its number."""
        known = len(self.sent)
        while len(self.sent) == known or not isinstance(self.sent[-1], Acquire):
            await asyncio.sleep(0)
        return self.sent[-1].question


def run(monkeypatch: pytest.MonkeyPatch, test: Callable[[Rig], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        await asyncio.wait_for(test(Rig(monkeypatch)), 20)

    asyncio.run(main())


def test_a_call_acquires_and_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(rig: Rig) -> None:
        rig.load()
        call = rig.acquire()
        number = await rig.asked()
        rig.models.heard(Acquired(number, "a", 1))
        lease = await call
        assert lease.served is rig.engines[0] and rig.sent == [Acquire(number, "a")]
        lease.release()
        lease.release()
        assert rig.sent == [Acquire(number, "a"), Release(number)]

    run(monkeypatch, test)


def test_a_call_that_goes_or_is_refused_leaves_no_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(rig: Rig) -> None:
        going = rig.acquire()
        number = await rig.asked()
        going.cancel()
        await asyncio.wait([going])
        assert rig.sent[-1] == Release(number)
        refused = rig.acquire()
        rig.models.heard(Refused(await rig.asked(), 503, "Later.", "server_error", None, "model_loading", 3.0))
        with pytest.raises(ApiError, match="Later") as error:
            await refused
        assert (error.value.status, error.value.code, error.value.retry_after) == (503, "model_loading", 3.0)

    run(monkeypatch, test)


def test_calls_that_wait_are_refused_when_the_server_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(rig: Rig) -> None:
        waiting = rig.acquire()
        number = await rig.asked()
        rig.models.refuse(ApiError(503, "The server ends."))
        for call in (waiting, rig.acquire()):
            with pytest.raises(ApiError, match="The server ends"):
                await call
        assert rig.sent == [Acquire(number, "a"), Release(number)]

    run(monkeypatch, test)


def test_a_call_waits_for_this_process_to_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(rig: Rig) -> None:
        rig.models.heard(Model(TextFiles("/m"), "a", 1))
        call = rig.acquire()
        rig.models.heard(Acquired(await rig.asked(), "a", 1))
        await asyncio.sleep(0.01)
        assert not call.done()
        rig.models.heard(READY)
        assert (await call).served is rig.engines[0]

    run(monkeypatch, test)


async def refused_as_broken(rig: Rig, call: asyncio.Task[Any]) -> None:
    with pytest.raises(ApiError, match="has crashed") as error:
        await call
    assert error.value.code == "model_failed" and isinstance(rig.sent[-1], Release)


def test_an_engine_that_has_ended_meanwhile_costs_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(rig: Rig) -> None:
        rig.models.heard(Model(TextFiles("/m"), "a", 1))
        call = rig.acquire()
        rig.models.heard(Acquired(await rig.asked(), "a", 1))
        await asyncio.sleep(0)
        rig.models.heard(Lost("It crashed.", "a"))
        await refused_as_broken(rig, call)
        rig.load(2)
        call = rig.acquire()
        rig.models.heard(Acquired(await rig.asked(), "a", 1))
        await refused_as_broken(rig, call)

    run(monkeypatch, test)


def test_an_engine_that_answers_no_more_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(rig: Rig) -> None:
        rig.load()
        call = rig.acquire()
        number = await rig.asked()
        await asyncio.sleep(0.01)
        rig.engines[0].bridge.stopped = "It cannot be reached."
        rig.models.heard(Acquired(number, "a", 1))
        with pytest.raises(ApiError, match="cannot be reached"):
            await call
        assert rig.sent[1:] == [EngineBroken("a", 1, "It cannot be reached."), Release(number)]

    run(monkeypatch, test)


def test_a_connection_that_failed_is_tried_again_by_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(rig: Rig) -> None:
        rig.fault = PreprocessingError("No memory.")
        rig.load()
        first = rig.acquire()
        rig.models.heard(Acquired(await rig.asked(), "a", 1))
        with pytest.raises(ApiError, match="No memory") as error:
            await first
        assert error.value.code == "model_failed" and error.value.retry_after == 1.0
        rig.fault = None
        second = rig.acquire()
        rig.models.heard(Acquired(await rig.asked(), "a", 1))
        assert (await second).served is rig.engines[0]

    run(monkeypatch, test)


def test_it_opens_when_the_pinned_models_are_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(rig: Rig) -> None:
        opening = asyncio.ensure_future(rig.models.open())
        rig.models.heard(Model(TextFiles("/m"), "a", 1))
        rig.models.heard(PoolReady())
        await asyncio.sleep(0.01)
        assert not opening.done()
        rig.models.heard(READY)
        assert await opening is rig.models

    run(monkeypatch, test)


def test_preprocessing_is_started_ahead_while_a_model_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(rig: Rig) -> None:
        monkeypatch.setattr(pooled_models, "PreprocessingPool", lambda: "ahead")
        rig.load()
        rig.models._prepare()
        assert cast(Any, rig.models._spare) == "ahead"

    run(monkeypatch, test)
