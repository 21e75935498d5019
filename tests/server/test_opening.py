"""Calls that the engine has not accepted yet, since their grammars are compiled first, end like any others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from inflight.core.types.request import Request
from inflight.core.types.sampling import Grammar
from inflight.engine.event_stream import EventStream
from inflight.server.common.prepared import Call
from inflight.server.errors import ApiError
from inflight.server.generating import GONE
from inflight.server.sending import ClientGone, until_gone
from inflight.server.service import Ended, Service
from inflight.server.settings import ServerSettings
from inflight.server.tenants import ANYONE

REQUEST = Request(request_id="r", prompt_token_ids=(1,), grammar=Grammar("regex", "a"))
CALL = Call(
    kind="completion", call_id="c", created=0, model="m", requests=(REQUEST,), prompts=(None,), n=1, tier="default",
    tenant=ANYONE,
)  # fmt: skip


class Compiling:
    """A bridge that accepts nothing; counts who has left it."""

    def __init__(self) -> None:
        self.left = 0

    async def open(self, *requests: Request) -> EventStream:
        try:
            await asyncio.Event().wait()
        finally:
            self.left += 1
        raise AssertionError


class Accepting(Compiling):
    """Accepts calls, and has something happen right behind that; counts whose streams were closed."""

    def __init__(self, then: Callable[[], object]) -> None:
        super().__init__()
        self.then = then

    async def open(self, *requests: Request) -> EventStream:
        asyncio.get_running_loop().call_soon(self.then)
        return EventStream(requests, self.leave)

    def leave(self, _: EventStream) -> None:
        self.left += 1


class Rig:
    def __init__(self, bridge: Compiling | None = None, **settings: Any) -> None:
        self.bridge, self.ended, self.released = bridge or Compiling(), list[Ended](), 0
        self.service = Service(ServerSettings(**settings), self.ended.append)
        self.service.ready(cast(Any, SimpleNamespace(stopped=None, residency=None, refuse=lambda _: None)))
        served = SimpleNamespace(bridge=self.bridge, tokenizer=None, names=None, id_names=None)
        self.model_lease = cast(Any, SimpleNamespace(served=served, release=self.release))

    def release(self) -> None:
        self.released += 1

    def check_all_is_over(self, status: int) -> None:
        assert [one.status for one in self.ended] == [status]
        assert (self.bridge.left, self.released, self.service.in_flight) == (1, 1, 0)


async def is_opening(rig: Rig) -> None:
    while not rig.service.in_flight:
        await asyncio.sleep(0)
    await asyncio.sleep(0)


def test_a_client_that_leaves_waits_for_no_grammar() -> None:
    async def main() -> None:
        rig, leaves = Rig(), asyncio.Event()

        async def receive() -> dict[str, Any]:
            await leaves.wait()
            return {"type": "http.disconnect"}

        opening = rig.service.open(CALL, rig.model_lease)
        task = asyncio.ensure_future(until_gone(cast(Any, receive), opening, asyncio.Event()))
        await is_opening(rig)
        leaves.set()
        with pytest.raises(ClientGone):
            await task
        rig.check_all_is_over(GONE)

    asyncio.run(main())


def test_the_time_limit_counts_while_a_grammar_compiles() -> None:
    async def main() -> None:
        rig = Rig(request_timeout=0.01)
        with pytest.raises(ApiError, match="--request-timeout") as refused:
            await rig.service.open(CALL, rig.model_lease)
        assert refused.value.status == 408
        rig.check_all_is_over(408)

    asyncio.run(main())


def test_a_server_that_shuts_down_waits_for_no_grammar() -> None:
    async def main() -> None:
        rig = Rig(drain_timeout=0.01)
        task = asyncio.ensure_future(rig.service.open(CALL, rig.model_lease))
        await is_opening(rig)
        assert await rig.service.drain() == 1
        with pytest.raises(ApiError, match="shut down"):
            await task
        rig.check_all_is_over(503)

    asyncio.run(main())


def test_a_client_that_leaves_as_its_call_is_accepted_leaves_nothing_in_the_engine() -> None:
    async def main() -> None:
        rig = Rig(Accepting(lambda: task.cancel()))
        task = asyncio.ensure_future(rig.service.open(CALL, rig.model_lease))
        with pytest.raises(asyncio.CancelledError):
            await task
        rig.check_all_is_over(GONE)

    asyncio.run(main())


def test_a_call_that_is_ended_as_it_is_accepted_leaves_nothing_in_the_engine() -> None:
    async def main() -> None:
        refusal = ApiError(503, "The server was shut down.", type="server_error", code="draining")
        rig = Rig(Accepting(lambda: [one.end(refusal) for one in rig.service._open]))
        with pytest.raises(ApiError, match="shut down"):
            await rig.service.open(CALL, rig.model_lease)
        rig.check_all_is_over(503)

    asyncio.run(main())
