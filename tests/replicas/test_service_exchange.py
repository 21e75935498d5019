"""Two engines of their own, told of each other as replicas are: who was served by one waits at the other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping

import pytest
from core.builders import request

from inflight.core.policies.fair import Fair
from inflight.core.scheduling.config import SchedulerConfig
from inflight.core.scheduling.scheduler import Scheduler
from inflight.core.strategies.chunked import Chunked
from inflight.core.tenants import TenantUsage, usage_of_others
from inflight.core.types.events import FinishedEvent
from inflight.core.types.plan import BatchPlan, Capacity, Pending
from inflight.engine.bridge import AsyncBridge
from inflight.engine.clock import MonotonicClock
from inflight.engine.loop import EngineLoop
from inflight.engine.remote.messages import MessageError
from inflight.ray import service_exchange
from inflight.ray.service_exchange import decode_given, encode_given, exchange_for_ever
from inflight.testing.null import NullExecutor


class Gated(NullExecutor):
    """Computes while its gate is open."""

    def __init__(self, capacity: Capacity, gate: threading.Event):
        super().__init__(capacity)
        self._gate = gate

    def submit(self, plan: BatchPlan) -> Pending:
        self._gate.wait()
        return super().submit(plan)


class Engines:
    """Fair ones, of one row each, by name."""

    def __init__(self, *names: str):
        capacity = Capacity(400, 2, 1, 70, 8)
        self.gates = {name: threading.Event() for name in names}
        self.loops = {
            name: EngineLoop(
                Scheduler(SchedulerConfig(capacity, Chunked(40), Fair())), Gated(capacity, gate), MonotonicClock()
            )
            for name, gate in self.gates.items()
        }
        self.bridges = {name: AsyncBridge(loop) for name, loop in self.loops.items()}
        self.rounds = 0
        self.lost: set[str] = set()
        for gate in self.gates.values():
            gate.set()

    async def some_rounds(self) -> None:
        """What was given before them has been told when they are over."""
        end = self.rounds + 3
        while self.rounds < end:
            await asyncio.sleep(0.001)

    async def exchange(self, given: Mapping[str, TenantUsage]) -> Mapping[str, TenantUsage]:
        """As `ReplicaHandle` has it, without Ray between them."""
        self.rounds += 1
        told = decode_given(encode_given(given))
        return {name: await self._ask(name, told) for name in self.bridges if name not in self.lost}

    async def _ask(self, name: str, told: Mapping[str, TenantUsage]) -> TenantUsage:
        return await self.bridges[name].ask(lambda: self.loops[name].sync_tenant_usage(usage_of_others(told, name)))

    async def ended(self, name: str, *tenants: str) -> list[str]:
        """Whose requests end, in their order, which come together and in this order."""
        asked = [request(f"{name}{at}", [at % 8] * 4, 8, tenant=tenant) for at, tenant in enumerate(tenants)]
        of = {one.request_id: one.tenant for one in asked}
        stream = await self.bridges[name].open(*asked)
        return [of[one.request_id] async for events in stream for one in events if isinstance(one, FinishedEvent)]

    def close(self) -> None:
        for bridge in self.bridges.values():
            bridge.close()


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_exchange, "SYNC_PERIOD_S", 0.005)


def order_at_the_second(tells: bool, loses: bool = False) -> str:
    """x is served by the first engine while x and y wait at the second: whose requests end there, one after the
    other."""

    async def main() -> str:
        engines = Engines("one", "two")
        rounds = asyncio.ensure_future(exchange_for_ever(engines.exchange, lambda: tells))
        try:
            if tells:
                await engines.some_rounds()  # from the first one on it is counted who gets what
            engines.gates["two"].clear()
            queue = asyncio.ensure_future(engines.ended("two", *"xy" * 150))
            await engines.ended("one", *"x" * 100)
            if tells:
                await engines.some_rounds()
            if loses:
                engines.lost.add("one")
                await engines.some_rounds()
            engines.gates["two"].set()
            return "".join(await queue)
        finally:
            rounds.cancel()
            engines.close()

    return asyncio.run(main())


def test_who_has_an_engine_for_itself_goes_behind_at_the_other() -> None:
    alone, told = order_at_the_second(tells=False), order_at_the_second(tells=True)
    assert "xxx" not in alone[:290] and "yyy" not in alone[:290], "in turns"
    assert "y" * 90 in told and told.count("x") == told.count("y") == 150


def test_what_a_replica_gave_counts_when_it_is_lost() -> None:
    assert "y" * 90 in order_at_the_second(tells=True, loses=True)


def test_nobody_is_asked_while_nothing_is_under_way() -> None:
    async def main() -> int:
        engines = Engines("one")
        rounds = asyncio.ensure_future(exchange_for_ever(engines.exchange, lambda: False))
        await asyncio.sleep(0.05)
        rounds.cancel()
        engines.close()
        return engines.rounds

    assert asyncio.run(main()) == 0


def test_a_round_that_fails_is_followed_by_the_next(caplog: pytest.LogCaptureFixture) -> None:
    asked: list[Mapping[str, TenantUsage]] = []

    async def exchange(given: Mapping[str, TenantUsage]) -> Mapping[str, TenantUsage]:
        asked.append(given)
        if len(asked) == 2:
            raise RuntimeError("nobody is there")
        return {"one": {"interactive": {"x": 1.0}}}

    async def main() -> None:
        rounds = asyncio.ensure_future(exchange_for_ever(exchange, lambda: True))
        while len(asked) < 4:
            await asyncio.sleep(0.001)
        rounds.cancel()

    asyncio.run(main())
    given = {"one": {"interactive": {"x": 1.0}}}
    assert asked[:4] == [{}, given, {}, given]
    assert "could not be told" in caplog.text


@pytest.mark.parametrize("data", [b"", b"\x93", encode_given({})[:0] + b"\x81\xa1a\x01"])
def test_what_is_damaged_is_told(data: bytes) -> None:
    with pytest.raises(MessageError, match="is damaged"):
        decode_given(data)
