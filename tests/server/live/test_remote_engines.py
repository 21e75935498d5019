"""Engines of other processes: asked for what they do, each in its own time, and shown as one stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import pytest

from inflight.engine.event_stream import EngineStopped
from inflight.live.distant import FeedAnswer, FeedQuery, decode_answer, encode
from inflight.live.engine_feed import Living
from inflight.live.frames import Ended, Frame, Hello, RequestInfo
from inflight.server.live import sources
from inflight.server.live.remote_engines import RemoteEnginesSource
from inflight.server.live.sources import EngineSource, FrameCache

COUNTS = 'inflight_sequences_running{lane="interactive",replica="%s"} 2.0\n'


class Engine:
    """In place of an `EngineSource`: a frame each time that it is asked."""

    def __init__(self) -> None:
        self.made = self.left = 0
        self.stopped = False

    def hello(self) -> Hello:
        return Hello("live", "m", max_rows=8)

    async def frame(self) -> Frame:
        if self.stopped:
            raise EngineStopped("The engine stopped by a test.")
        self.made += 1
        return Frame(self.made - 1, self.made - 1.0, float(self.made))

    async def leave(self) -> None:
        self.left += 1

    async def living(self, request_id: str) -> Living | None:
        return None


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MIN_SECONDS", 0.0)
    monkeypatch.setattr(sources, "UNREAD_SECONDS", 0.05)


def cache_of(engine: Engine) -> FrameCache:
    return FrameCache(cast(EngineSource, engine))


def test_who_asks_gets_what_is_behind_what_he_knows(at_once: None) -> None:
    async def ask() -> None:
        engine = Engine()
        cache = cache_of(engine)
        first = await cache.shown(FeedQuery())
        assert first.hello is not None and [one.number for one in first.frames] == [0]
        assert [one.number for one in (await cache.shown(FeedQuery({"": 0}))).frames] == [1]
        other = await cache.shown(FeedQuery({"a": 0}), "a")
        assert other.hello is None and [one.number for one in other.frames] == [1, 2], "all see the same"
        for unknown in (99, -1):
            anew = await cache.shown(FeedQuery({"": unknown}))
            assert anew.hello is not None and len(anew.frames) == 1, "of an engine that has begun anew"
        await asyncio.sleep(0.15)
        assert engine.left == 1, "no reader asks any more"

    asyncio.run(ask())


def test_of_those_who_ask_at_once_one_has_the_frame_made() -> None:
    async def ask() -> None:
        engine = Engine()
        cache = cache_of(engine)
        answers = await asyncio.gather(*(cache.shown(FeedQuery()) for _ in range(5)))
        assert engine.made == 1 and all([one.number for one in shown.frames] == [0] for shown in answers)

    asyncio.run(ask())


def test_an_engine_that_stopped_or_has_no_live_page_shows_nothing(at_once: None) -> None:
    async def ask() -> None:
        engine = Engine()
        engine.stopped = True
        assert await cache_of(engine).shown(FeedQuery()) == FeedAnswer()
        assert decode_answer(await FrameCache(None).answer(encode(FeedQuery()))) == FeedAnswer()

    asyncio.run(ask())


class Replicas:
    """Engines by name, asked as processes are."""

    def __init__(self, *names: str):
        self.shelves = {name: cache_of(Engine()) for name in names}
        self.garbled: set[str] = set()

    async def page(self) -> tuple[bytes, str]:
        return "".join(COUNTS % name for name in self.shelves).encode(), ""

    async def ask(self, asked: bytes) -> Mapping[str, bytes]:
        return {
            name: b"{" if name in self.garbled else await cache.answer(asked, name)
            for name, cache in self.shelves.items()
        }


def described(news: Sequence[Hello | Frame]) -> list[tuple[str, str, int]]:
    return [
        ("hello", one.engine, 0) if isinstance(one, Hello) else ("frame", one.engine, one.number)
        for one in news
        if not (isinstance(one, Frame) and one.members)
    ]


def running(source: Callable[[], Any]) -> Any:
    return asyncio.run(source())


def test_each_engine_is_greeted_once_and_shown_in_its_own_frames(at_once: None) -> None:
    async def look() -> None:
        replicas = Replicas("a", "b")
        source = RemoteEnginesSource(replicas.page, "replica", "replicas", replicas.ask)
        [every] = source.hellos()
        assert every.members_only and not every.engine
        news = await source.news()
        [counts] = [one for one in news if isinstance(one, Frame) and one.members]
        assert [(one.name, one.running) for one in counts.members] == [("a", 2), ("b", 2)]
        assert described(news) == [("hello", "a", 0), ("frame", "a", 0), ("hello", "b", 0), ("frame", "b", 0)]
        assert described(await source.news()) == [("frame", "a", 1), ("frame", "b", 1)]
        assert [one.engine for one in source.hellos()] == ["", "a", "b"]
        clocks = [one.clock for one in source.hellos()[1:]]
        assert all(-1.1 < clock < 0 for clock in clocks), "its frame that ends at 1 s happened just now"
        replicas.shelves["b"] = cache_of(Engine())  # has been started anew
        assert described(await source.news()) == [("frame", "a", 2), ("hello", "b", 0), ("frame", "b", 0)]

    running(look)


def test_one_that_is_gone_is_forgotten_and_one_that_is_not_understood_is_counted(at_once: None) -> None:
    async def look() -> None:
        replicas = Replicas("a", "b", "c")
        replicas.garbled.add("c")
        source = RemoteEnginesSource(replicas.page, "replica", "replicas", replicas.ask)
        news = await source.news()
        assert {name for _, name, _ in described(news)} == {"a", "b"}
        assert [len(one.members) for one in news if isinstance(one, Frame) and one.members] == [3]
        del replicas.shelves["b"]
        await source.news()
        assert [one.engine for one in source.hellos()] == ["", "a"]

    running(look)


def test_who_joins_late_knows_the_requests_that_live() -> None:
    infos = [RequestInfo(number, f"r{number // 2}") for number in range(6)]
    shown = iter(
        [
            FeedAnswer(Hello("live", "m", requests=infos[:2]), [Frame(1, 0.0, 1.0)]),
            FeedAnswer(None, [Frame(2, 1.0, 2.0, requests=infos[2:])]),
            FeedAnswer(None, [Frame(3, 2.0, 3.0, ended=[Ended(infos[2], "stop", 2.5)])]),
        ]
    )

    async def page() -> tuple[bytes, str]:
        return b"", ""

    async def ask(asked: bytes) -> Mapping[str, bytes]:
        return {"a": encode(next(shown))}

    async def look() -> None:
        source = RemoteEnginesSource(page, "replica", "replicas", ask)
        for _ in range(3):
            await source.news()
        assert [one.number for one in source.hellos()[1].requests] == [0, 1, 4, 5]

    running(look)
