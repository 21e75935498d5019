"""Requests that wait for their grammars: visible, counted, and removed at once when they are cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

import pytest
from msgspec import structs

from inflight.core.types.events import Event, FinishedEvent
from inflight.core.types.request import Request, RequestRefused
from inflight.core.types.sampling import Grammar, GrammarStats, SamplingParams
from inflight.engine.bridge import AsyncBridge
from inflight.engine.event_stream import EngineStopped, EventStream
from inflight.engine.observers import EngineObserver
from inflight.testing.null import NullExecutor

from .test_bridge import CAPACITY, loop_over


class Compiling:
    cancelled = False

    def __init__(self, is_ready: bool = False) -> None:
        self.is_ready = is_ready

    def cancel(self) -> None:
        self.cancelled = True


class Gate:
    """Compiles on demand."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []
        self.compiling: list[Compiling] = []

    def warm_up(self) -> None:
        """Do nothing."""

    def prepare(self, grammars: Sequence[Grammar], then: Callable[[], None], tenant: str = "") -> Compiling:
        if grammars[0].source == "there":
            self.compiling.append(Compiling(is_ready=True))
            return self.compiling[-1]
        if grammars[0].source == "one too many":
            raise RequestRefused("256 grammars wait", 1.0, field="grammar")
        self.waiting.append(then)
        self.compiling.append(Compiling())
        return self.compiling[-1]

    def check(self, grammar: Grammar) -> None:
        """All are sound, and kept until their requests are taken in."""
        assert not self.compiling[-1].cancelled

    def stats(self) -> GrammarStats:
        return GrammarStats(0, 0, 0.0, 0, 0, 0.0, 0.0)

    def open(self) -> None:
        while self.waiting:
            self.waiting.pop()()


class Heard(EngineObserver):
    def __init__(self) -> None:
        self.names: list[str] = []

    def added(self, request: Request, now: float) -> None:
        self.names.append(request.request_id)


class Rig:
    def __init__(self) -> None:
        self.gate, self.heard = Gate(), Heard()
        self.loop = loop_over(NullExecutor(CAPACITY), observers=[self.heard], grammars=self.gate)
        self.bridge = AsyncBridge(self.loop)

    def request(self, name: str, n: int = 1, source: str = "a") -> Request:
        params = SamplingParams(max_tokens=3, ignore_eos=True, n=n)
        arrival, grammar = self.loop.clock.now() - 1.0, Grammar("regex", source)
        return Request(request_id=name, prompt_token_ids=(1, 2), params=params, arrival=arrival, grammar=grammar)

    async def assert_never_added(self) -> None:
        assert (await self.bridge.stats()).compiling == 0 and self.gate.compiling[0].cancelled
        self.gate.open()
        await asyncio.sleep(0)
        assert self.heard.names == []

    async def opening(self, *requests: Request) -> asyncio.Task[EventStream]:
        """Until they wait for their grammars."""
        task = asyncio.create_task(self.bridge.open(*requests))
        while not self.gate.waiting:
            await asyncio.sleep(0)
        return task


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.bridge.close()


async def all_of(stream: EventStream) -> list[Event]:
    return [event async for events in stream for event in events]


async def test_they_are_counted_and_their_account_says_so(rig: Rig) -> None:
    opening = await rig.opening(rig.request("a", n=2), rig.request("b"))
    stats = await rig.bridge.stats()
    assert (stats.compiling, stats.waiting, rig.heard.names) == (3, 0, [])
    rig.gate.open()
    events = await all_of(await opening)
    assert (await rig.bridge.stats()).compiling == 0
    ends = [event for event in events if isinstance(event, FinishedEvent)]
    assert len(ends) == 2
    for end in ends:
        timings = end.timings
        assert 0 < timings.queued_by["grammar"] <= timings.queue_ms
        assert sum(timings.queued_by.values()) == pytest.approx(timings.queue_ms)
        assert timings.ttft_ms is not None and timings.ttft_ms > 1000  # from the arrival on, a second before
    end = (await all_of(await rig.bridge.open(rig.request("c", source="there"))))[-1]
    assert isinstance(end, FinishedEvent) and end.timings.queued_by["grammar"] == 0
    assert all(one.cancelled for one in rig.gate.compiling)


async def test_one_that_is_aborted_ends_at_once_and_is_never_added(rig: Rig) -> None:
    opening = await rig.opening(rig.request("a", n=2))
    rig.bridge.abort("a")
    (end,) = await all_of(await opening)
    assert isinstance(end, FinishedEvent) and [one.reason for one in end.finishes] == ["abort"] * 2
    timings = end.timings
    assert timings.total_ms > 1000 and 0 < timings.queued_by["grammar"] == timings.queue_ms
    await rig.assert_never_added()


async def test_one_of_two_that_is_aborted_lets_the_other_answer(rig: Rig) -> None:
    opening = await rig.opening(
        rig.request("a"), structs.replace(rig.request("b"), params=SamplingParams(max_tokens=90))
    )
    rig.bridge.abort("b")
    rig.gate.open()
    ends = {event.request_id: event for event in await all_of(await opening) if isinstance(event, FinishedEvent)}
    assert [ends[name].finishes[0].reason for name in "ab"] == ["length", "abort"]


async def test_one_whose_client_leaves_is_never_added(rig: Rig) -> None:
    opening = await rig.opening(rig.request("a"))
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await rig.assert_never_added()


async def test_an_engine_that_stops_does_not_let_them_wait(rig: Rig) -> None:
    opening = await rig.opening(rig.request("a"))
    await asyncio.to_thread(rig.bridge.close)
    with pytest.raises(EngineStopped):
        await opening
    rig.gate.open()


async def test_one_that_finds_too_many_before_it_is_refused(rig: Rig) -> None:
    with pytest.raises(RequestRefused, match="256 grammars wait"):
        await rig.bridge.open(rig.request("a", source="one too many"))
    assert (await rig.bridge.stats()).compiling == 0
