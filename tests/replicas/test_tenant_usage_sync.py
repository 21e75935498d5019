"""Tenant usage is synchronized between two engines: a tenant served by one waits at the other."""

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
from inflight.core.types.executor import Pending
from inflight.core.types.plan import BatchPlan, Capacity
from inflight.engine.bridge import AsyncBridge
from inflight.engine.clock import MonotonicClock
from inflight.engine.loop import EngineLoop
from inflight.engine.remote.messages import MessageError
from inflight.ray import tenant_usage_sync
from inflight.ray.tenant_usage_sync import decode_usage, encode_usage, sync_periodically
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
    """Engines of one request slot with the policy fair, by name."""

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
        """Wait until usage from before the call has been synchronized."""
        end = self.rounds + 3
        while self.rounds < end:
            await asyncio.sleep(0.001)
            for bridge in self.bridges.values():  # a command sent just before a step waits for its end: for the gate
                bridge._commands.run()

    async def sync(self, usage: Mapping[str, TenantUsage]) -> Mapping[str, TenantUsage]:
        """Synchronize as `ReplicaHandle` does, without Ray."""
        self.rounds += 1
        usage = decode_usage(encode_usage(usage))
        return {name: await self._ask(name, usage) for name in self.bridges if name not in self.lost}

    async def _ask(self, name: str, usage: Mapping[str, TenantUsage]) -> TenantUsage:
        return await self.bridges[name].ask(lambda: self.loops[name].sync_tenant_usage(usage_of_others(usage, name)))

    async def ended(self, name: str, *tenants: str) -> list[str]:
        """Send requests of these tenants at once; return the tenants in the order in which requests end."""
        asked = [request(f"{name}{at}", [at % 8] * 4, 8, tenant=tenant) for at, tenant in enumerate(tenants)]
        of = {one.request_id: one.tenant for one in asked}
        stream = await self.bridges[name].open(*asked)
        return [of[one.request_id] async for events in stream for one in events if isinstance(one, FinishedEvent)]

    def close(self) -> None:
        for bridge in self.bridges.values():
            bridge.close()


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenant_usage_sync, "SYNC_PERIOD_S", 0.005)


def order_at_the_second(syncs: bool, loses: bool = False) -> str:
    """x is served by the first engine while x and y wait at the second: whose requests end there, one after the
    other."""

    async def main() -> str:
        engines = Engines("one", "two")
        rounds = asyncio.ensure_future(sync_periodically(engines.sync, lambda: syncs))
        try:
            if syncs:
                await engines.some_rounds()  # from the first one on usage is counted
            engines.gates["two"].clear()
            queue = asyncio.ensure_future(engines.ended("two", *"xy" * 150))
            await engines.ended("one", *"x" * 100)
            if syncs:
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


def test_a_tenant_with_an_engine_of_its_own_waits_at_the_other() -> None:
    alone, usage = order_at_the_second(syncs=False), order_at_the_second(syncs=True)
    assert "xxx" not in alone[:290] and "yyy" not in alone[:290], "in turns"
    assert "y" * 90 in usage and usage.count("x") == usage.count("y") == 150


def test_usage_of_a_lost_replica_still_counts() -> None:
    assert "y" * 90 in order_at_the_second(syncs=True, loses=True)


def test_no_round_is_made_while_no_request_is_in_flight() -> None:
    async def main() -> int:
        engines = Engines("one")
        rounds = asyncio.ensure_future(sync_periodically(engines.sync, lambda: False))
        await asyncio.sleep(0.05)
        rounds.cancel()
        engines.close()
        return engines.rounds

    assert asyncio.run(main()) == 0


def test_a_round_that_fails_is_followed_by_the_next(caplog: pytest.LogCaptureFixture) -> None:
    asked: list[Mapping[str, TenantUsage]] = []

    async def sync(usage: Mapping[str, TenantUsage]) -> Mapping[str, TenantUsage]:
        asked.append(usage)
        if len(asked) == 2:
            raise RuntimeError("no replica answers")
        return {"one": {"interactive": {"x": 1.0}}}

    async def main() -> None:
        rounds = asyncio.ensure_future(sync_periodically(sync, lambda: True))
        while len(asked) < 4:
            await asyncio.sleep(0.001)
        rounds.cancel()

    asyncio.run(main())
    usage = {"one": {"interactive": {"x": 1.0}}}
    assert asked[:4] == [{}, usage, {}, usage]
    assert "could not be synchronized" in caplog.text


@pytest.mark.parametrize("data", [b"", b"\x93", encode_usage({})[:0] + b"\x81\xa1a\x01"])
def test_damaged_usage_is_refused(data: bytes) -> None:
    with pytest.raises(MessageError, match="is damaged"):
        decode_usage(data)
