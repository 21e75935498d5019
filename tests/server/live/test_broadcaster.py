"""The broadcaster: one frame for all, a bounded past, and no query of the engine without viewers."""

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
def _leave_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broadcasters, "UNWATCHED_SECONDS", 0.05)


def hub_of(source: Source | None) -> FeedBroadcaster:
    return FeedBroadcaster(lambda: source, lambda: False)


def test_no_query_without_a_viewer() -> None:
    async def look() -> None:
        source = Source()
        broadcaster = hub_of(source)
        await asyncio.sleep(0.05)
        assert source.made == 0
        broadcaster.enter()
        assert [one["type"] for one in await take(broadcaster.stream(BOSS, None), 3)] == ["hello", "frame", "frame"]
        broadcaster.leave()
        await asyncio.sleep(0.3)
        made = source.made
        await asyncio.sleep(0.1)
        assert (source.made, source.left) == (made, 1)
        broadcaster.enter()
        assert (await take(broadcaster.stream(BOSS, None), 2))[1]["number"] > made, "another task makes them"
        broadcaster.leave()
        await asyncio.sleep(0.2)

    asyncio.run(look())


def test_a_viewer_before_the_first_frame_waits_where_another_viewer_starts_the_frames_again() -> None:
    async def look() -> None:
        source = Source(stops=0)
        broadcaster = hub_of(source)
        broadcaster.enter()
        first = asyncio.ensure_future(take(broadcaster.stream(BOSS, None), 2))
        await asyncio.sleep(0)
        broadcaster.enter()
        assert broadcaster._task is not None
        await broadcaster._task  # the engine has stopped, and the first viewer has not run since
        source._stops = None
        for seen in (await take(broadcaster.stream(BOSS, None), 2), await first):
            assert [one["type"] for one in seen] == ["hello", "frame"]

    asyncio.run(look())


def test_one_frame_is_made_for_all_who_look() -> None:
    async def look() -> None:
        source = Source()
        broadcaster = hub_of(source)
        for _ in range(10):
            broadcaster.enter()
        streams = [broadcaster.stream(BOSS if index % 2 else ACME, None) for index in range(10)]
        seen = await asyncio.gather(*(take(one, 6) for one in streams))
        last = max(message["number"] for one in seen for message in one[1:])
        assert source.made <= last + 2
        for index, one in enumerate(seen):
            infos = [info for message in one[1:] for info in message["requests"]]
            others = [info for info in infos if info.get("mine") is False]
            assert bool(others) == (index % 2 == 0), "a tenant's view has others without names"
            assert not any("request_id" in info for info in others)
        for _ in range(10):
            broadcaster.leave()
        await asyncio.sleep(0.2)

    asyncio.run(look())


def test_the_past_is_bounded_and_who_lags_gets_the_latest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broadcasters, "MAX_FRAMES", 50)

    async def look() -> None:
        source = Source()
        broadcaster = hub_of(source)
        broadcaster.enter()
        events = broadcaster.stream(BOSS, None)
        first = (await take(events, 3))[-1]
        while source.made < first["number"] + 4 * BEHIND:
            await asyncio.sleep(0.02)
        assert len(broadcaster._stored) <= 50
        stream = broadcaster.stream(BOSS, None)
        assert (await take(stream, 2))[1]["number"] >= source.made - 2
        back = broadcaster.stream(BOSS, f"{broadcaster._server}-{first['number']}")
        assert (await take(back, 2))[1]["number"] >= source.made - 52, "as far as it is kept"
        broadcaster.leave()
        await asyncio.sleep(0.2)

    asyncio.run(look())


def test_an_engine_that_stops_is_reported_and_ends_the_stream() -> None:
    async def look() -> None:
        broadcaster = hub_of(Source(stops=2))
        broadcaster.enter()
        events = await asyncio.wait_for(take(broadcaster.stream(BOSS, None), 100), 10)
        assert events[-1] == {"type": "problem", "sentence": "The engine stopped by a test."}
        broadcaster.leave()

    asyncio.run(look())


def test_too_many_and_too_early_are_refused() -> None:
    async def look() -> None:
        with pytest.raises(ApiError) as refused:
            hub_of(None).enter()
        assert refused.value.status == 503
        broadcaster = hub_of(Source())
        for _ in range(MAX_VIEWERS):
            broadcaster.enter()
        with pytest.raises(ApiError, match=f"{MAX_VIEWERS} viewers") as refused:
            broadcaster.enter()
        assert refused.value.status == 429

    asyncio.run(look())
