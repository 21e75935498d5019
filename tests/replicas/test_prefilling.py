"""Prompts sent to prefill replicas, which wait there until their blocks are requested, and the fallback on failure."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from core.builders import request

from inflight.core.types.events import Finish, FinishedEvent
from inflight.core.types.request import Request
from inflight.core.types.sampling import PoolingParams
from inflight.core.types.timings import Timings
from inflight.engine.remote.messages import Accepted, Happened, Open, Refused, decode_to_engine, encode
from inflight.ray import prefilling, replica_links
from inflight.ray.prefilling import Prefilling, WantedPrompts
from inflight.ray.replica_links import Links, ReplicaLost
from inflight.ray.routing_board import RoutedFrame, RoutingBoard

TIMINGS = Timings(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, None, None, "interactive")
STATS = {"kv_tokens": 1600, "fair": False, "costs": None}
PROMPT = range(50)


class Prefill:
    """One prefill replica. answer: to each request; None: lost. computes: whether it finishes accepted prompts."""

    def __init__(self, peer: tuple[str, int] | None = ("host", 7), answer: object = Accepted(0), computes: bool = True):
        self.board = RoutingBoard()
        self.board.use("least-work")
        self.board.set_replicas(["p"])
        self.stats = {**STATS, "peer": peer}
        self.answer, self.computes = answer, computes
        self.asked: list[Request] = []
        self.left: list[str] = []
        self.items: asyncio.Queue[bytes] = asyncio.Queue()
        self.hangs = False

    async def open(self, frame: RoutedFrame) -> bytes:
        if self.hangs:
            await asyncio.Event().wait()
        self.board.route(frame.routed, {"p": self.stats})
        frame.route_to("p")
        if self.answer is None:
            raise ReplicaLost("it was killed")
        message = decode_to_engine(frame.data)
        assert isinstance(message, Open)
        self.asked += message.requests
        if self.answer == Accepted(0) and self.computes:
            ended = FinishedEvent(message.requests[0].request_id, (Finish("length"),), TIMINGS)
            self.items.put_nowait(encode(Happened.of([ended])))
        return encode(self.answer)  # type: ignore[arg-type]

    def follow(self, replica: str, link: str) -> Prefill:
        return self

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            yield await self.items.get()

    def cancel(self) -> None: ...

    async def leave(self, replica: str, link: str, request_ids: list[str]) -> None:
        self.left += request_ids

    def is_routed(self, replica: str) -> bool:
        return True


def run(make: Callable[[], Prefill], use: Any) -> None:
    async def main() -> None:
        prefill = make()
        links = Links(prefill)
        try:
            await asyncio.wait_for(use(Prefilling(links, prefill.board, block_size=16), prefill), 20)
            assert prefill.board.queued() == {"p": 0}, "nothing counts there any more"
        finally:
            links.close()

    asyncio.run(main())


def test_a_prompt_is_computed_by_the_replica_that_is_chosen() -> None:
    async def use(here: Prefilling, prefill: Prefill) -> None:
        asked = request("r", PROMPT, cache_salt="tenant", tenant="t", seed=3)
        taken = await here.start(asked, age=1.5)
        await asyncio.sleep(0.01)
        (prompt,) = prefill.asked
        assert taken.kv_transfer is not None and taken.kv_transfer.take is not None
        assert taken.kv_transfer.take == ("host", 7, prompt.request_id) and prompt.kv_transfer is not None
        assert prompt.kv_transfer.give == prompt.request_id != "r"
        assert (prompt.prompt_token_ids, prompt.cache_salt, prompt.tenant) == (tuple(PROMPT), "tenant", "t")
        assert (prompt.params.max_tokens, prompt.arrival) == (0, -1.5)
        assert (taken.params, taken.prompt_token_ids) == (asked.params, asked.prompt_token_ids)
        here.end("r")
        await asyncio.sleep(0.01)
        assert not prefill.left, "it had ended"

    run(Prefill, use)


def test_export_ids_of_two_decode_replicas_differ() -> None:
    async def use(here: Prefilling, prefill: Prefill) -> None:
        there = Prefilling(Links(prefill), prefill.board, 16)
        for one in (here, there, here):
            await one.start(request("r", PROMPT), 0.0)
            await asyncio.sleep(0.01)
            one.end("r")
        assert len({one.request_id for one in prefill.asked}) == 3

    run(Prefill, use)


def test_a_prompt_that_cannot_be_transferred_is_computed_here() -> None:
    async def use(here: Prefilling, prefill: Prefill) -> None:
        for asked in (
            request("short", range(16)),
            request("scored", PROMPT, prompt_logprobs=0),
            request("pooled", PROMPT, pooling=PoolingParams()),
        ):
            assert await here.start(asked, 0.0) is asked
        prefill.board.set_replicas([])
        asked = request("alone", PROMPT)
        assert await here.start(asked, 0.0) is asked
        prefill.board.set_replicas(["p"])
        assert not prefill.asked

    run(Prefill, use)


@pytest.mark.parametrize("make", [lambda: Prefill(peer=None), lambda: Prefill(computes=False, peer=None)])
def test_a_replica_that_exports_no_blocks_is_left(make: Callable[[], Prefill]) -> None:
    async def use(here: Prefilling, prefill: Prefill) -> None:
        asked = request("r", PROMPT)
        assert await here.start(asked, 0.0) is asked
        await asyncio.sleep(0.05)

    run(make, use)


def test_a_refused_or_lost_prefill_is_not_counted() -> None:
    async def use(here: Prefilling, prefill: Prefill) -> None:
        await here.start(request("r", PROMPT), 0.0)
        await asyncio.sleep(0.01)
        assert prefill.board.queued() == {"p": 0}
        here.end("r")

    for answer in (Refused(0, "The queue is full.", 3.0, None, "queue_full"), None):
        run(lambda answer=answer: Prefill(answer=answer), use)  # type: ignore[misc]


def test_a_choice_that_takes_long_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefilling, "CHOICE_SECONDS", 0.02)

    async def use(here: Prefilling, prefill: Prefill) -> None:
        prefill.hangs = True
        asked = request("r", PROMPT)
        assert await here.start(asked, 0.0) is asked

    run(Prefill, use)


def test_ending_a_prefill_aborts_it_at_its_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_links, "LATE_SECONDS", 0.0)

    async def use(here: Prefilling, prefill: Prefill) -> None:
        await here.start(request("r", PROMPT), 0.0)
        await asyncio.sleep(0.01)
        here.end("r")
        here.end("r")
        await asyncio.sleep(0.01)
        assert prefill.left == [one.request_id for one in prefill.asked]

    run(lambda: Prefill(computes=False), use)


class PeerExports:
    """Requests exports in a thread of its own, as a peer does."""

    def when_wanted(self, callback: Callable[[str], None]) -> None:
        self._callback = callback

    def ask(self, export_id: str) -> None:
        thread = threading.Thread(target=self._callback, args=(export_id,))
        thread.start()
        thread.join()


def wait_for(use: Callable[[WantedPrompts, PeerExports], Awaitable[None]]) -> None:
    async def main() -> None:
        await asyncio.wait_for(use(prompts, exports), 20)

    exports = PeerExports()
    prompts = WantedPrompts(exports)  # before there is an event loop
    asyncio.run(main())


def test_an_export_requested_before_or_after_is_started() -> None:
    async def use(prompts: WantedPrompts, exports: PeerExports) -> None:
        exports.ask("early")
        await asyncio.sleep(0.01)
        assert await prompts.wait("early", 5)
        waits = asyncio.create_task(prompts.wait("late", 5))
        other = asyncio.create_task(prompts.wait("other", 5))
        await asyncio.sleep(0.01)
        exports.ask("late")
        assert await waits and not other.done()
        prompts.abandon("other")
        prompts.abandon("unknown")
        assert not await other

    wait_for(use)


def test_a_request_counts_for_one_prompt() -> None:
    async def use(prompts: WantedPrompts, exports: PeerExports) -> None:
        exports.ask("one")
        await asyncio.sleep(0.01)
        assert await prompts.wait("one", 5)
        assert not await prompts.wait("one", 0.02)

    wait_for(use)
