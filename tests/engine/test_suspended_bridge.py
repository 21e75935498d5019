"""A request that another thread sends while a step is computed suspends it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from inflight.core.policies.fcfs import Fcfs
from inflight.core.scheduling.config import SchedulerConfig
from inflight.core.scheduling.scheduler import Scheduler
from inflight.core.strategies.chunked import Chunked
from inflight.core.types.events import Event, TokensEvent
from inflight.core.types.plan import Capacity
from inflight.core.types.request import Request
from inflight.core.types.sampling import SamplingParams
from inflight.engine.bridge import AsyncBridge
from inflight.engine.clock import MonotonicClock
from inflight.engine.event_stream import EngineStopped, EventStream
from inflight.engine.loop import EngineLoop
from inflight.testing import NullExecutor

CAPACITY = Capacity(num_blocks=100, block_size=4, max_rows=4, max_model_len=300, vocab_size=50)


class Slow(NullExecutor):
    """Between the layers of its first step it waits until it may go on."""

    def __init__(self) -> None:
        super().__init__(CAPACITY)
        self.computes, self.goes_on = threading.Event(), threading.Event()

    def suspend_when(self, is_due: Callable[[float], bool]) -> None:
        def asked(seconds: float) -> bool:
            self.computes.set()
            assert self.goes_on.wait(60)
            return is_due(seconds)

        super().suspend_when(asked)


def bridge_of(executor: Slow) -> AsyncBridge:
    scheduler = Scheduler(SchedulerConfig(CAPACITY, Chunked(64), Fcfs(), prefill_suspension=1.0))
    return AsyncBridge(EngineLoop(scheduler, executor, MonotonicClock(), suspender=executor))


def request(name: str, prompt: int, output: int) -> Request:
    params = SamplingParams(temperature=0, max_tokens=output, ignore_eos=True)
    return Request(request_id=name, prompt_token_ids=(len(name),) * prompt, params=params)


async def tokens(stream: EventStream, order: list[str]) -> list[Event]:
    events: list[Event] = []
    async for several in stream:
        order += [event.request_id for event in several if isinstance(event, TokensEvent)]
        events += several
    return events


def test_a_short_prompt_overtakes_the_step_of_a_long_one() -> None:
    async def run() -> list[str]:
        executor, order = Slow(), list[str]()
        bridge = bridge_of(executor)
        long = asyncio.create_task(tokens(await bridge.open(request("long", 60, 1)), order))
        await asyncio.to_thread(executor.computes.wait)
        short = asyncio.create_task(tokens(await bridge.open(request("short", 8, 1)), order))
        executor.goes_on.set()
        await asyncio.gather(long, short)
        bridge.close()
        return order

    assert asyncio.run(run()) == ["short", "long"]


def test_an_engine_is_closed_while_a_step_is_suspended() -> None:
    async def run() -> None:
        executor = Slow()
        bridge = bridge_of(executor)
        stream = await bridge.open(request("long", 60, 1))
        await asyncio.to_thread(executor.computes.wait)
        other = await bridge.open(request("short", 8, 1))
        closing = asyncio.create_task(asyncio.to_thread(bridge.close))
        while bridge.stopped is None:
            await asyncio.sleep(0.001)
        executor.goes_on.set()
        await closing
        for one in (stream, other):
            with pytest.raises(EngineStopped):
                await tokens(one, [])

    asyncio.run(run())
