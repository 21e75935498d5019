"""The pool over models that are there at once, or not at all: no process, and an event loop of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest

from inflight.server.errors import ApiError
from inflight.server.model_pool import keeper
from inflight.server.model_pool.loading import LoadedModel, ModelLoader
from inflight.server.model_pool.pool import ModelPool
from inflight.server.model_pool.pool_model import PoolModel
from inflight.server.model_pool.resident import ModelNeeds
from inflight.server.model_pool.worker import WorkerError
from inflight.server.settings import ServerSettings


class Model:
    """One that is loaded."""

    def __init__(self, name: str) -> None:
        self.served = name
        self.nbytes = 1
        self.client = SimpleNamespace(stopped=None)
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.worker = SimpleNamespace(ended=self.ended, break_off=self._end)
        self.lost_by: str | None = None
        self.fault: Exception | None = None

    def _end(self, why: str) -> None:
        self.ended.set_result(why)

    async def close(self) -> None:
        if self.fault is not None:
            raise self.fault

    async def lost(self, sentence: str) -> None:
        self.lost_by = sentence


class Loader:
    """began, models: all loads so far. gate: which they wait for. fault: of the next ones."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.models: dict[str, Model] = {}
        self.gate = asyncio.Event()
        self.gate.set()
        self.fault: Exception | None = None

    async def load(self, model: PoolModel) -> LoadedModel:
        self.began.append(model.name)
        await self.gate.wait()
        if self.fault is not None:
            raise self.fault
        loaded = self.models[model.name] = Model(model.name)
        return cast(LoadedModel, loaded)

    def prepare(self) -> None:
        pass

    async def close(self) -> None:
        pass


Test = Callable[[ModelPool, Loader], Coroutine[Any, Any, None]]


def run(test: Test, budget: int = 1, max_wait: float = 60.0) -> None:
    """Over the models a and b, of which one fits."""

    async def main() -> None:
        loader = Loader()
        models = [
            PoolModel(
                names=(name,),
                adapters=(),
                needs=ModelNeeds(name=name, nbytes=1),
                settings=ServerSettings(),
                setup=lambda serial: b"",
            )
            for name in "ab"
        ]
        pool = ModelPool(models, budget, cast(ModelLoader, loader), max_wait=max_wait)
        await pool.open()
        try:
            await asyncio.wait_for(test(pool, loader), 20)
        finally:
            await pool.close()

    asyncio.run(main())


async def until(met: Callable[[], bool]) -> None:
    while not met():
        await asyncio.sleep(0.005)


@pytest.fixture(autouse=True)
def short_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a busy model stays for fractions of a second."""
    monkeypatch.setattr("inflight.server.model_pool.resident.STARTING_SECONDS", 0.05)


def test_those_that_waited_for_one_that_stays_have_it() -> None:
    """It was to give way to somebody who has gone."""

    async def test(pool: ModelPool, loader: Loader) -> None:
        first = await pool.acquire("a")
        of_b = asyncio.ensure_future(pool.acquire("b"))
        await until(lambda: pool.status("a").state == "draining")
        of_a = asyncio.ensure_future(pool.acquire("a"))
        await until(lambda: pool.status("a").waiting == 1)
        of_b.cancel()
        leased = await asyncio.wait_for(of_a, 1)
        assert leased.served == first.served and pool.status("a").under_way == 2
        assert loader.began == ["a"]
        leased.release()
        leased.release()
        first.release()
        assert pool.status("a").under_way == 0

    run(test)


def test_a_model_whose_wait_is_too_long_is_loaded_all_the_same() -> None:
    async def test(pool: ModelPool, loader: Loader) -> None:
        with pytest.raises(ApiError) as told:
            await pool.acquire("a")
        assert told.value.status == 503 and told.value.code == "model_loading"
        await until(lambda: pool.status("a").state == "loaded")
        (await pool.acquire("a")).release()
        assert loader.began == ["a"]

    run(test, max_wait=0.001)


def test_who_has_waited_for_too_long_leaves_a_wish() -> None:
    async def test(pool: ModelPool, loader: Loader) -> None:
        loader.gate.clear()
        with pytest.raises(ApiError) as told:
            await pool.acquire("a")
        assert told.value.code == "model_loading" and pool.status("a").waiting == 0
        loader.gate.set()
        await until(lambda: pool.status("a").state == "loaded")

    run(test, max_wait=0.2)


def test_what_is_lent_to_somebody_who_has_gone_comes_back() -> None:
    async def test(pool: ModelPool, loader: Loader) -> None:
        loader.gate.clear()
        asking = asyncio.ensure_future(pool.acquire("a"))
        await until(lambda: bool(loader.began))
        loader.gate.set()
        while pool.status("a").state != "loaded":
            await asyncio.sleep(0)
        assert not asking.done() and pool.status("a").under_way == 1
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert pool.status("a").under_way == 0 and pool.status("a").waiting == 0

    run(test)


def test_one_that_cannot_be_reached_is_ended_and_loaded_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inflight.server.model_pool.residency.SHORT_LIFE", 0.0)

    async def test(pool: ModelPool, loader: Loader) -> None:
        (await pool.acquire("a")).release()
        broken = loader.models["a"]
        broken.client.stopped = "It cannot be reached."
        with pytest.raises(ApiError, match="cannot be reached") as told:
            await pool.acquire("a")
        assert told.value.status == 503 and broken.ended.done()
        await until(lambda: pool.status("a").state == "unloaded" and broken.lost_by is not None)
        (await pool.acquire("a")).release()
        assert loader.began == ["a", "a"]

    run(test)


def test_a_load_that_hangs_is_given_up_and_others_have_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "LOAD_SECONDS", 0.1)

    async def test(pool: ModelPool, loader: Loader) -> None:
        loader.gate.clear()
        with pytest.raises(ApiError, match=r"not loaded within 0\.1 s") as told:
            await pool.acquire("a")
        assert told.value.code == "model_failed"
        loader.gate.set()
        (await pool.acquire("b")).release()

    run(test)


def test_one_that_does_not_end_as_it_should_is_unloaded_all_the_same() -> None:
    async def test(pool: ModelPool, loader: Loader) -> None:
        (await pool.acquire("a")).release()
        loader.models["a"].fault = OSError("it resists")
        pool.unload("a")
        await until(lambda: pool.status("a").state == "unloaded")
        (await pool.acquire("b")).release()

    run(test)


def test_all_that_wait_are_told_of_a_failure_and_of_the_end() -> None:
    async def test(pool: ModelPool, loader: Loader) -> None:
        loader.gate.clear()
        loader.fault = WorkerError("no such folder.")
        waiting = [asyncio.ensure_future(pool.acquire("a")) for _ in range(3)]
        await until(lambda: pool.status("a").waiting == 3)
        loader.gate.set()
        for one in waiting:
            with pytest.raises(ApiError, match="no such folder"):
                await one
        with pytest.raises(ApiError, match="no such folder"):
            await pool.acquire("a")
        loader.gate.clear()
        last = asyncio.ensure_future(pool.acquire("b"))
        await until(lambda: pool.status("b").waiting == 1)
        pool.refuse(ApiError(503, "The server ends."))
        for name in "ab":
            with pytest.raises(ApiError, match="The server ends"):
                await (last if name == "b" else pool.acquire(name))

    run(test, budget=2)
