"""Where a server's frames come from: its own engine, or the counts of engines that are elsewhere.

Knows how each is asked; what frames are, `inflight.live` knows.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from inflight.engine.bridge import AsyncBridge
from inflight.live.engine_feed import EngineFeed, Living
from inflight.live.frames import Frame, Hello, Member, Rates
from inflight.server.offload import offload

PERIOD, IDLE_PERIOD = 0.1, 0.5  # seconds between two frames; where nothing happens
MEMBERS_PERIOD = 1.0


class FeedSource(Protocol):
    """All verbs are called in the server's event loop, one after the other."""

    def hello(self) -> Hello:
        """With the requests that frames so far have told of. `server` is filled in by who sends it."""

    async def frame(self) -> Frame:
        """What has happened since the last one. Raises EngineStopped."""

    @property
    def period(self) -> float:
        """Seconds until it makes sense to ask for the next one."""

    async def leave(self) -> None:
        """Nobody looks any more: nothing is kept until the next frame is asked for."""

    async def living(self, request_id: str) -> Living | None:
        """How it is with a request; None: it does not live here. Raises EngineStopped."""


class EngineSource:
    """An engine of this process."""

    def __init__(self, bridge: AsyncBridge, feed: EngineFeed, about: Hello):
        self._bridge, self._feed, self._about = bridge, feed, about
        self._is_idle = False

    def hello(self) -> Hello:
        return replace(self._about, requests=self._feed.told)

    @property
    def period(self) -> float:
        return IDLE_PERIOD if self._is_idle else PERIOD

    async def frame(self) -> Frame:
        look = await self._bridge.ask(self._feed.look)
        self._is_idle = not look.told and not look.census.running
        return await offload(lambda: self._feed.frame(look))

    async def leave(self) -> None:
        await self._bridge.ask(self._feed.leave)

    async def living(self, request_id: str) -> Living | None:
        return await self._bridge.ask(lambda: self._feed.living(request_id))


class MembersSource:
    """Engines of other processes, as their metrics tell of them."""

    period = MEMBERS_PERIOD

    def __init__(self, page: Callable[[], Awaitable[tuple[bytes, str]]], label: str, title: str):
        """page: the metrics, with a label that names the engine of each sample; "": there is one."""
        self._page, self._label, self._title = page, label, title
        self._zero = time.monotonic()
        self._before: tuple[float, dict[str, float]] | None = None  # when, and output tokens so far
        self._number = 0

    def hello(self) -> Hello:
        return Hello(source="live", title=self._title, period=self.period, sees_all=True, members_only=True)

    async def frame(self) -> Frame:
        text, _ = await self._page()
        counted = await offload(lambda: _counted(text.decode(), self._label))
        now = time.monotonic() - self._zero
        before, tokens = self._before, {name: one.output_tokens for name, one in counted.items()}
        self._before = now, tokens
        start = now if before is None else before[0]
        seconds = max(now - start, 1e-9)
        earlier = {} if before is None else before[1]
        members = []
        for name, one in counted.items():
            rate = max(0.0, one.output_tokens - earlier.get(name, one.output_tokens)) / seconds
            members.append(
                Member(name, one.state, one.running, one.waiting, one.blocks, one.held_blocks, round(rate, 1))
            )
        self._number += 1
        rates = Rates(round(seconds, 3), output_tokens=sum(one.output_tokens_per_s for one in members))
        return Frame(self._number, round(start, 4), round(now, 4), members=members, rates=rates)

    async def leave(self) -> None:
        self._before = None

    async def living(self, request_id: str) -> Living | None:
        """Of what other processes compute, the counts are known and no more."""
        return None


class _Counts:
    def __init__(self) -> None:
        self.state = ""
        self.running = self.waiting = self.blocks = self.held_blocks = 0
        self.output_tokens = 0.0


def _counted(page: str, label: str) -> dict[str, _Counts]:
    """By engine."""
    found: dict[str, _Counts] = {}
    for family in text_string_to_metric_families(page):
        if not family.name.startswith("inflight_"):
            continue
        for sample in family.samples:
            if label and label not in sample.labels:
                continue
            name, value = sample.labels.get(label, "engine"), sample.value
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
