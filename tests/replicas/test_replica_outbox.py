"""Outboxes of a replica: the events of a step for all requests are one item."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from core.builders import request

from inflight.config.scheduling import SchedulingSettings
from inflight.core.policies.fcfs import Fcfs
from inflight.core.scheduling.config import SchedulerConfig
from inflight.core.scheduling.scheduler import Scheduler
from inflight.core.strategies.chunked import Chunked
from inflight.core.types.events import FinishedEvent, TokensEvent
from inflight.core.types.executor import Pending
from inflight.core.types.plan import BatchPlan, Capacity
from inflight.core.types.request import Request
from inflight.engine.bridge import AsyncBridge
from inflight.engine.clock import MonotonicClock
from inflight.engine.loop import EngineLoop
from inflight.engine.remote.messages import Accepted, Happened, Refused, Stopped, decode_from_engine
from inflight.ray import replica_outbox
from inflight.ray.replica_load import ReplicaLoad
from inflight.ray.replica_outbox import Outboxes
from inflight.testing.null import NullExecutor

CAPACITY = Capacity(num_blocks=1024, block_size=16, max_rows=4, max_model_len=4096, vocab_size=100)


class Gated(NullExecutor):
    """Computes while its gate is open."""

    def __init__(self, gate: threading.Event):
        super().__init__(CAPACITY)
        self._gate = gate

    def submit(self, plan: BatchPlan) -> Pending:
        self._gate.wait()
        time.sleep(0.0005)  # others have their turn in this process, long before an answer is whole
        return super().submit(plan)


class Replica:
    def __init__(self) -> None:
        self.gate, self.load = threading.Event(), ReplicaLoad(SchedulingSettings())
        loop = EngineLoop(Scheduler(SchedulerConfig(CAPACITY, Chunked(40), Fcfs())), Gated(self.gate), MonotonicClock())
        self.bridge = AsyncBridge(loop)
        self.outboxes = Outboxes(self.bridge, self.load)

    async def ask(self, link: str, asked: Request) -> object:
        return await self.outboxes.open(link, (asked,))


def run(use: Callable[[Replica], Awaitable[None]]) -> None:
    async def main() -> None:
        replica = Replica()
        try:
            await asyncio.wait_for(use(replica), 20)
        finally:
            replica.gate.set()
            await asyncio.to_thread(replica.bridge.close)

    asyncio.run(main())


async def happened(items: AsyncIterator[bytes]) -> AsyncIterator[Happened]:
    async for item in items:
        message = decode_from_engine(item)
        assert isinstance(message, Happened)
        yield message


def of(number: int, tokens: int = 5) -> Request:
    return request(str(number), [number, 2, 3], tokens)


def test_the_events_of_a_step_are_one_item(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_outbox, "BEAT_SECONDS", 0.02)
    monkeypatch.setattr(replica_outbox, "IDLE_SECONDS", 0.05)

    async def use(replica: Replica) -> None:
        for number in range(4):
            assert await replica.ask("link", of(number)) == Accepted(0)
        replica.gate.set()
        items = [one async for one in happened(replica.outboxes.follow("link")) if one.events()]
        tokens = [event for one in items for event in one.events() if isinstance(event, TokensEvent)]
        ended = [event.request_id for one in items for event in one.events() if isinstance(event, FinishedEvent)]
        assert len(tokens) == 20 and sorted(ended) == ["0", "1", "2", "3"]
        assert len(items) <= 7, "one a step, not one a request and step"

    run(use)


def test_links_receive_only_their_own_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_outbox, "BEAT_SECONDS", 0.02)
    monkeypatch.setattr(replica_outbox, "IDLE_SECONDS", 0.05)

    async def use(replica: Replica) -> None:
        replica.gate.set()
        for number, link in enumerate(("one", "other")):
            await replica.ask(link, of(number))
        for number, link in enumerate(("one", "other")):
            items = [one async for one in happened(replica.outboxes.follow(link))]
            assert {event.request_id for one in items for event in one.events()} == {str(number)}

    run(use)


def test_a_broken_stream_aborts_its_requests() -> None:
    async def use(replica: Replica) -> None:
        await replica.ask("link", of(0, tokens=3000))
        await replica.ask("other", of(1, tokens=3000))
        replica.gate.set()
        items = replica.outboxes.follow("link")
        await anext(items)
        await items.aclose()  # type: ignore[attr-defined]
        while (await replica.bridge.stats()).running != 1:
            await asyncio.sleep(0.01)

    run(use)


def test_leaving_aborts_the_named_requests_only() -> None:
    async def use(replica: Replica) -> None:
        for number in range(2):
            await replica.ask("link", of(number, tokens=50 + 2000 * number))
        replica.outboxes.leave("link", ["1", "missing"])
        replica.outboxes.leave("unknown", ["0"])
        replica.gate.set()
        ended = set[str]()
        async for one in happened(replica.outboxes.follow("link")):
            ended |= {event.request_id for event in one.events() if isinstance(event, FinishedEvent)}
            if ended:
                break
        assert ended == {"0"}
        while (await replica.bridge.stats()).running:
            await asyncio.sleep(0.01)

    run(use)


def test_a_link_that_is_not_followed_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_outbox, "UNFOLLOWED_SECONDS", 0.1)

    async def use(replica: Replica) -> None:
        await replica.ask("link", of(0, tokens=3000))
        while (await replica.bridge.stats()).waiting:
            await asyncio.sleep(0.01)

    run(use)


def test_refusals_and_the_end_of_the_engine_are_sent() -> None:
    async def use(replica: Replica) -> None:
        refused = await replica.ask("link", request("long", [1] * 5000))
        assert isinstance(refused, Refused) and "5000 tokens" in refused.sentence
        await replica.ask("link", of(0, tokens=3000))
        closing = asyncio.create_task(asyncio.to_thread(replica.bridge.close))
        await asyncio.sleep(0.5)  # until that is the next thing which the engine does, in the middle of an answer
        replica.gate.set()
        items = replica.outboxes.follow("link")
        messages = [decode_from_engine(item) async for item in items]
        await closing
        assert isinstance(messages[-1], Stopped) and "closed" in messages[-1].sentence
        assert isinstance(await replica.ask("link", of(1)), Stopped)

    run(use)
