"""Sources of frames of engines in other processes: their counts once a second, by their metrics, and their own frames.

Clocks of engines are brought together: the first frame that comes from an engine is taken to end when it comes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from inflight.engine.event_stream import EngineStopped
from inflight.live.distant import FeedAnswer, FeedQuery, decode_answer, encode
from inflight.live.engine_feed import Living
from inflight.live.frames import Frame, Hello, Member, Rates
from inflight.server.errors import ApiError
from inflight.server.live.sources import IDLE_PERIOD, PERIOD

COUNTS_PERIOD = 1.0
FRAMES_PERIOD = 0.2

Page = Callable[[], Awaitable[tuple[bytes, str]]]
Ask = Callable[[bytes], Awaitable[Mapping[str, bytes]]]  # `FeedQuery` → `FeedAnswer`s by engine


class _Known:
    """An engine that has sent frames. last: the number of the last one."""

    def __init__(self, hello: Hello, last: int):
        self.hello, self.last = hello, last

    def follow(self, frames: Sequence[Frame]) -> None:
        """Keep the requests that are alive behind these frames."""
        self.last = frames[-1].number
        every = (*self.hello.requests, *(one for frame in frames for one in frame.requests))
        seen = {one.number: one for one in every}
        ended = {one.info.request_id for frame in frames for one in frame.ended}
        alive = [one for one in seen.values() if one.request_id not in ended]
        self.hello = replace(self.hello, requests=alive)


class RemoteEngineSource:
    """The only engine, in another process: a `FeedSource` of its frames as they are."""

    def __init__(self, ask: Ask):
        self._ask = ask
        self._known: _Known | None = None
        self._is_idle = False

    @property
    def period(self) -> float:
        return IDLE_PERIOD if self._is_idle else PERIOD

    def hellos(self) -> Sequence[Hello]:
        return () if self._known is None else (self._known.hello,)

    async def news(self) -> Sequence[Hello | Frame]:
        behind = {} if self._known is None else {"": self._known.last}
        data = (await self._ask(encode(FeedQuery(behind)))).get("")
        shown = None if data is None else await asyncio.to_thread(decode_answer, data)
        if shown is None or not shown.frames:
            return ()
        self._is_idle = not any(one.steps or one.requests for one in shown.frames)
        if shown.hello is None and self._known is not None:
            self._known.follow(shown.frames)
            return shown.frames
        if shown.hello is None:
            return ()
        is_first, self._known = self._known is None, _Known(shown.hello, shown.frames[-1].number)
        return shown.frames if is_first else (shown.hello, *shown.frames)

    async def leave(self) -> None:
        self._known = None

    async def living(self, request_id: str) -> Living | None:
        data = (await self._ask(encode(FeedQuery(request_id=request_id)))).get("")
        shown = None if data is None else decode_answer(data)
        return None if shown is None else shown.living


class RemoteEnginesSource:
    """A `FeedSource` of several engines, or of one that has only metrics."""

    period = FRAMES_PERIOD

    def __init__(self, page: Page, label: str, title: str, ask: Ask):
        """page: the metrics. label: names the engine of each sample; "": there is one engine, whose name is ""."""
        self._page, self._label, self._title, self._ask = page, label, title, ask
        self._zero = time.monotonic()
        self._counted: tuple[float, dict[str, float]] | None = None  # when, and output tokens so far
        self._number = 0
        self._known: dict[str, _Known] = {}

    def hellos(self) -> Sequence[Hello]:
        every = Hello("live", self._title, period=COUNTS_PERIOD, sees_all=True, members_only=True)
        return (every, *(one.hello for one in self._known.values()))

    async def news(self) -> Sequence[Hello | Frame]:
        asked = encode(FeedQuery({name: one.last for name, one in self._known.items()}))
        due = self._counted is None or self._now() - self._counted[0] >= COUNTS_PERIOD
        answers, counts = await asyncio.gather(self._ask(asked), self._counts() if due else _nothing())
        found: list[Hello | Frame] = [] if counts is None else [counts]
        for name, data in answers.items():
            if (shown := await asyncio.to_thread(partial(decode_answer, data))) is not None:
                found += self._taken(name, shown)
        for name in self._known.keys() - answers.keys():
            del self._known[name]
        return found

    async def leave(self) -> None:
        """Forget the engines; their processes leave them when no reader asks."""
        self._counted = None
        self._known.clear()

    async def living(self, request_id: str) -> Living | None:
        for data in (await self._ask(encode(FeedQuery(request_id=request_id)))).values():
            shown = decode_answer(data)
            if shown is not None and shown.living is not None:
                return shown.living
        return None

    def _taken(self, name: str, shown: FeedAnswer) -> list[Hello | Frame]:
        engine = name or self._title
        frames = [replace(one, engine=engine) for one in shown.frames]
        if shown.hello is not None and frames:
            clock = round(self._now() - frames[-1].end, 4)
            title = shown.hello.title if not name or name == shown.hello.title else f"{shown.hello.title} · {name}"
            hello = replace(shown.hello, engine=engine, clock=clock, title=title)
            self._known[name] = _Known(hello, frames[-1].number)
            return [hello, *frames]
        known = self._known.get(name)
        if known is None or not frames:
            return []
        known.follow(frames)
        return list(frames)

    async def _counts(self) -> Frame:
        try:
            text, _ = await self._page()
        except (ApiError, RuntimeError) as error:  # no engine now, or one that does not answer
            raise EngineStopped(str(error)) from None
        counted = await asyncio.to_thread(lambda: _counted(text.decode(), self._label))
        now, before = self._now(), self._counted
        tokens = {name: one.output_tokens for name, one in counted.items()}
        self._counted = now, tokens
        start, earlier = (now, {}) if before is None else before
        seconds = max(now - start, 1e-9)
        members = []
        for name, one in counted.items():
            rate = max(0.0, one.output_tokens - earlier.get(name, one.output_tokens)) / seconds
            counts = (one.running, one.waiting, one.blocks, one.held_blocks, round(rate, 1))
            members.append(Member(name or self._title, one.state, *counts))
        self._number += 1
        rates = Rates(round(seconds, 3), output_tokens=sum(one.output_tokens_per_s for one in members))
        return Frame(self._number, round(start, 4), round(now, 4), members=members, rates=rates)

    def _now(self) -> float:
        return time.monotonic() - self._zero


async def _nothing() -> None:
    return None


class _Counts:
    def __init__(self) -> None:
        self.state = ""
        self.running = self.waiting = self.blocks = self.held_blocks = 0
        self.output_tokens = 0.0


def _counted(page: str, label: str) -> dict[str, _Counts]:
    """Return the counts by engine."""
    from prometheus_client.parser import text_string_to_metric_families  # 4 MB, for servers with several engines

    found: dict[str, _Counts] = {}
    for family in text_string_to_metric_families(page):
        if not family.name.startswith("inflight_"):
            continue
        for sample in family.samples:
            if label and label not in sample.labels:
                continue
            name, value = sample.labels.get(label, ""), sample.value
            one = found.setdefault(name, _Counts())
            match sample.name:
                case "inflight_sequences_running":
                    one.running += int(value)
                case "inflight_sequences_waiting":
                    one.waiting += int(value)
                case "inflight_model_waiting_calls":
                    one.waiting += int(value)
                case "inflight_kv_blocks":
                    one.blocks += int(value)
                    one.held_blocks += int(value) if sample.labels.get("state") == "held" else 0
                case "inflight_output_tokens_total":
                    one.output_tokens += value
                case "inflight_model_loaded":
                    one.state = "in memory" if value else "not loaded"
    return found
