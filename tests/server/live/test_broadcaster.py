"""The hub: one frame for all, a bounded past, and nothing asked of the engine while nobody looks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from inflight.engine.event_stream import EngineStopped
from inflight.live.frames import Frame, Hello, RequestInfo
from inflight.server.errors import ApiError
from inflight.server.live import broadcaster as broadcasters
from inflight.server.live.broadcaster import BEHIND, MAX_VIEWERS, FeedBroadcaster
from inflight.server.tenants import Tenant

BOSS, ACME = Tenant(name="boss", operator=True), Tenant(name="acme")


class Source:
    """Frames without end, each as it is asked for. stops: after so many."""

    period = 0.0

    def __init__(self, stops: int | None = None):
        self.made = self.left = 0
        self._stops = stops

    def hellos(self) -> Sequence[Hello]:
        return (Hello("live", "m", sees_all=True),)

    async def news(self) -> Sequence[Frame]:
        if self.made == self._stops:
            raise EngineStopped("The engine stopped by a test.")
        self.made += 1
        info = RequestInfo(self.made, f"r{self.made}", tenant="acme" if self.made % 2 else "umbrella")
        return (Frame(self.made, float(self.made), self.made + 1.0, requests=[info]),)

    async def leave(self) -> None:
        self.left += 1

    async def living(self, request_id: str) -> None:
        return None


async def take(events: AsyncIterator[bytes], count: int) -> list[dict[str, Any]]:
    found = []
    async for event in events:
        found.append(json.loads(event.partition(b"data: ")[2]))
        if len(found) == count:
            break
    return found


@pytest.fixture(autouse=True)
def _no_lingering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broadcasters, "UNWATCHED_SECONDS", 0.05)


def hub_of(source: Source | None) -> FeedBroadcaster:
    return FeedBroadcaster(lambda: source, lambda: False)


def test_nothing_is_asked_before_and_after_somebody_looks() -> None:
    async def look() -> None:
        source = Source()
        hub = hub_of(source)
        await asyncio.sleep(0.05)
        assert source.made == 0
        hub.enter()
        assert [one["type"] for one in await take(hub.stream(BOSS, None), 3)] == ["hello", "frame", "frame"]
        hub.leave()
        await asyncio.sleep(0.3)
        made = source.made
        await asyncio.sleep(0.1)
        assert (source.made, source.left) == (made, 1)
        hub.enter()
        assert (await take(hub.stream(BOSS, None), 2))[1]["number"] > made, "it begins anew"
        hub.leave()
        await asyncio.sleep(0.2)

    asyncio.run(look())


def test_one_frame_is_made_for_all_who_look() -> None:
    async def look() -> None:
        source = Source()
        hub = hub_of(source)
        for _ in range(10):
            hub.enter()
        streams = [hub.stream(BOSS if index % 2 else ACME, None) for index in range(10)]
        seen = await asyncio.gather(*(take(one, 6) for one in streams))
        last = max(message["number"] for one in seen for message in one[1:])
        assert source.made <= last + 2
        for index, one in enumerate(seen):
            infos = [info for message in one[1:] for info in message["requests"]]
            others = [info for info in infos if info.get("mine") is False]
            assert bool(others) == (index % 2 == 0), "a tenant's view has others without names"
            assert not any("request_id" in info for info in others)
        for _ in range(10):
            hub.leave()
        await asyncio.sleep(0.2)

    asyncio.run(look())


def test_the_past_is_bounded_and_who_lags_gets_the_latest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broadcasters, "MAX_FRAMES", 50)

    async def look() -> None:
        source = Source()
        hub = hub_of(source)
        hub.enter()
        events = hub.stream(BOSS, None)
        first = (await take(events, 3))[-1]
        while source.made < first["number"] + 4 * BEHIND:
            await asyncio.sleep(0.02)
        assert len(hub._stored) <= 50
        stream = hub.stream(BOSS, None)
        assert (await take(stream, 2))[1]["number"] >= source.made - 2
        back = hub.stream(BOSS, f"{hub._server}-{first['number']}")
        assert (await take(back, 2))[1]["number"] >= source.made - 52, "as far as it is kept"
        hub.leave()
        await asyncio.sleep(0.2)

    asyncio.run(look())


def test_an_engine_that_stops_is_told_and_ends_the_stream() -> None:
    async def look() -> None:
        hub = hub_of(Source(stops=2))
        hub.enter()
        told = await asyncio.wait_for(take(hub.stream(BOSS, None), 100), 10)
        assert told[-1] == {"type": "problem", "sentence": "The engine stopped by a test."}
        hub.leave()

    asyncio.run(look())


def test_too_many_and_too_early_are_refused() -> None:
    async def look() -> None:
        with pytest.raises(ApiError) as refused:
            hub_of(None).enter()
        assert refused.value.status == 503
        hub = hub_of(Source())
        for _ in range(MAX_VIEWERS):
            hub.enter()
        with pytest.raises(ApiError, match=f"{MAX_VIEWERS} viewers") as refused:
            hub.enter()
        assert refused.value.status == 429

    asyncio.run(look())
