"""The pool over models that are there at once, or not at all: no process, and an event loop of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest

from inflight.server.errors import ApiError
from inflight.server.metrics.pool_page import PoolMetrics
from inflight.server.model_pool import keeper
from inflight.server.model_pool.loading import LoadedModel, ModelLoader, PoolModel
from inflight.server.model_pool.pool import ModelPool
from inflight.server.model_pool.pool_engines import PoolEngines
from inflight.server.model_pool.resident import ModelNeeds
from inflight.server.processes.messages import Acquire, Acquired, Refused, Release
from inflight.server.processes.worker import WorkerError


class Model:
    """One that is loaded."""

    def __init__(self, name: str) -> None:
        self.name, self.serial = name, 7
        self.nbytes = 1
        self.clients_lost: list[str] = []
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.worker = SimpleNamespace(ended=self.ended, break_off=self._end, client_lost=self.clients_lost.append)
        self.lost_by: str | None = None
        self.fault: Exception | None = None

    def _end(self, why: str) -> None:
        self.ended.set_result(why)

    async def close(self) -> None:
        if self.fault is not None:
            raise self.fault

    def lose(self, sentence: str) -> None:
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

    def close(self) -> None:
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


def test_calls_that_waited_for_a_model_that_stays_have_it() -> None:
    """It was to be evicted for a call that has gone."""

    async def test(pool: ModelPool, loader: Loader) -> None:
        first = await pool.acquire("a")
        of_b = asyncio.ensure_future(pool.acquire("b"))
        await until(lambda: pool.status("a").state == "draining")
        of_a = asyncio.ensure_future(pool.acquire("a"))
        await until(lambda: pool.status("a").waiting == 1)
        of_b.cancel()
        lease = await asyncio.wait_for(of_a, 1)
        assert lease.name == first.name and pool.status("a").in_flight == 2
        assert loader.began == ["a"]
        lease.release()
        lease.release()
        first.release()
        assert pool.status("a").in_flight == 0

    run(test)


def test_a_call_that_lets_its_model_go_has_the_one_in_memory() -> None:
    async def test(pool: ModelPool, loader: Loader) -> None:
        (await pool.acquire("a")).release()
        (await pool.acquire("a", keep_alive=0.0)).release()
        assert loader.began == ["a"]
        await until(lambda: pool.status("a").state == "unloaded")

    run(test)


def test_a_model_whose_wait_is_too_long_is_loaded_all_the_same() -> None:
    async def test(pool: ModelPool, loader: Loader) -> None:
        with pytest.raises(ApiError) as refused:
            await pool.acquire("a")
        assert refused.value.status == 503 and refused.value.code == "model_loading"
        await until(lambda: pool.status("a").state == "loaded")
        (await pool.acquire("a")).release()
        assert loader.began == ["a"]

    run(test, max_wait=0.001)


def test_a_call_that_has_waited_for_too_long_has_its_model_loaded() -> None:
    async def test(pool: ModelPool, loader: Loader) -> None:
        loader.gate.clear()
        with pytest.raises(ApiError) as refused:
            await pool.acquire("a")
        assert refused.value.code == "model_loading" and pool.status("a").waiting == 0
        loader.gate.set()
        await until(lambda: pool.status("a").state == "loaded")

    run(test, max_wait=0.2)


def test_a_lease_of_a_call_that_has_gone_is_released() -> None:
    async def test(pool: ModelPool, loader: Loader) -> None:
        loader.gate.clear()
        asking = asyncio.ensure_future(pool.acquire("a"))
        await until(lambda: bool(loader.began))
        loader.gate.set()
        while pool.status("a").state != "loaded":
            await asyncio.sleep(0)
        assert not asking.done() and pool.status("a").in_flight == 1
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert pool.status("a").in_flight == 0 and pool.status("a").waiting == 0

    run(test)


def test_one_that_cannot_be_reached_is_ended_and_loaded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inflight.server.model_pool.residency.SHORT_LIFE", 0.0)

    async def test(pool: ModelPool, loader: Loader) -> None:
        (await pool.acquire("a")).release()
        broken = loader.models["a"]
        pool.break_off("a", 6, "An engine before this one.")
        assert not broken.ended.done()
        pool.break_off("a", 7, "It cannot be reached.")
        await until(lambda: pool.status("a").state == "unloaded" and broken.lost_by is not None)
        (await pool.acquire("a")).release()
        assert loader.began == ["a", "a"]

    run(test)


def test_a_load_that_hangs_is_given_up_and_others_have_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "LOAD_SECONDS", 0.1)

    async def test(pool: ModelPool, loader: Loader) -> None:
        loader.gate.clear()
        with pytest.raises(ApiError, match=r"not loaded within 0\.1 s") as refused:
            await pool.acquire("a")
        assert refused.value.code == "model_failed"
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


def test_one_that_is_being_unloaded_has_ended_when_the_pool_is_closed() -> None:
    async def test(pool: ModelPool, loader: Loader) -> None:
        (await pool.acquire("a")).release()
        ended: list[str] = []

        async def close() -> None:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            ended.append("a")

        loader.models["a"].close = close  # type: ignore[method-assign]
        pool.unload("a")
        await asyncio.sleep(0)
        await pool.close()
        assert ended == ["a"]

    run(test)


def test_all_that_wait_are_refused_by_a_failure() -> None:
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

    run(test, budget=2)


def engines(pool: ModelPool) -> PoolEngines:
    made = PoolEngines(lambda: pool, PoolMetrics(version="1"), lambda message: None)
    made._pool = pool
    return made


def test_leases_and_waiting_calls_of_an_api_process_that_ends_are_released() -> None:
    async def test(pool: ModelPool, loader: Loader) -> None:
        first = engines(pool)
        for client in ("0", "1"):
            assert await first.answer(client, Acquire(3, "a")) == Acquired(3, "a", 7)
        waiting = [asyncio.ensure_future(first.answer(client, Acquire(4, "b"))) for client in ("0", "1")]
        await until(lambda: pool.status("b").waiting == 2)
        first.client_lost("0")
        await until(lambda: pool.status("b").waiting == 1)
        assert pool.status("a").in_flight == 1 and loader.models["a"].clients_lost == ["0"]
        assert waiting[0].cancelled() and not waiting[1].done()
        first.heard("1", Release(3))
        assert await asyncio.wait_for(waiting[1], 5) == Acquired(4, "b", 7)

    run(test)


def test_a_call_that_is_released_while_it_waits_leaves() -> None:
    async def test(pool: ModelPool, loader: Loader) -> None:
        first = engines(pool)
        loader.gate.clear()
        waiting = asyncio.ensure_future(first.answer("0", Acquire(1, "a")))
        await until(lambda: pool.status("a").waiting == 1)
        first.heard("0", Release(1))
        await until(waiting.cancelled)
        assert pool.status("a").waiting == 0
        first.heard("0", Release(1))

    run(test)


def test_a_release_in_the_same_read_as_its_acquire_leaves_no_lease() -> None:
    async def test(pool: ModelPool, loader: Loader) -> None:
        first = engines(pool)
        answer = first.answer("0", Acquire(1, "a"))
        first.heard("0", Release(1))
        with pytest.raises(asyncio.CancelledError):
            await answer
        assert pool.status("a").in_flight == pool.status("a").waiting == 0

    run(test)


def test_refusals_reach_api_processes_whole() -> None:
    async def test(pool: ModelPool, loader: Loader) -> None:
        refused = await engines(pool).answer("0", Acquire(1, "c"))
        assert isinstance(refused, Refused)
        error = refused.error()
        assert (error.status, error.code, error.param) == (404, "model_not_found", "model")
        assert "this server has a, b" in error.message

    run(test)
