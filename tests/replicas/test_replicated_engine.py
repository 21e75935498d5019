"""ReplicatedEngine: requests that are lost with a replica, and requests that are not."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from core.builders import request

from inflight.core.types.events import Event, Finish, FinishedEvent, TokensEvent
from inflight.core.types.request import Request, RequestRefused
from inflight.core.types.timings import Timings
from inflight.engine.event_stream import EngineStopped, EventStream, RequestsLost
from inflight.engine.remote.client import RemoteClient
from inflight.engine.remote.messages import Accepted, Happened, Open, Refused, Stopped, decode_to_engine, encode
from inflight.engine.remote.server import EngineServer
from inflight.ray import replica_links, replicated_engine
from inflight.ray.replica_links import Links, ReplicaLost
from inflight.ray.replicated_engine import TRIES, ReplicatedEngine
from inflight.ray.routing_board import RoutedFrame, RoutingBoard

TIMINGS = Timings(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, None, None, "interactive")


class Replica:
    """A replica that answers with the prompt, token by token.

    Attributes:
        dies_after: Number of messages of all requests after which the replica is lost.
        refuses: Whether it refuses every request.
        says: Sent in place of an answer.
    """

    def __init__(self, dies_after: int | None = None, refuses: bool = False, says: bytes | None = None):
        self.dies_after, self.refuses, self.says = dies_after, refuses, says
        self.asked: list[Request] = []
        self.left: list[str] = []
        self.followed = 0
        self.items: asyncio.Queue[bytes] = asyncio.Queue()
        self.is_dead = False

    def open(self, data: bytes) -> bytes:
        if self.is_dead or self.dies_after == 0:
            self.is_dead = True
            raise ReplicaLost("it was killed")
        message = decode_to_engine(data)
        assert isinstance(message, Open)
        (asked,) = message.requests
        if self.says is not None:
            self.is_dead = True
            return self.says
        if self.refuses:
            return encode(Refused(0, "The queue is full.", 3.0, None, "queue_full"))
        self.asked.append(asked)
        events: list[Event] = [
            TokensEvent(asked.request_id, 0, (token,), None, None) for token in asked.prompt_token_ids
        ]
        for event in (*events, FinishedEvent(asked.request_id, (Finish("stop"),), TIMINGS)):
            self.items.put_nowait(encode(Happened.of([event])))
        return encode(Accepted(0))


class Followed:
    def __init__(self, replica: Replica):
        self._replica, self._ended = replica, asyncio.Event()
        replica.followed += 1

    async def __aiter__(self) -> AsyncIterator[bytes]:
        replica = self._replica
        for number in itertools.count(1):
            if replica.is_dead or number == replica.dies_after:
                replica.is_dead = True
                raise ReplicaLost("it was killed")
            item, ended = asyncio.ensure_future(replica.items.get()), asyncio.ensure_future(self._ended.wait())
            await asyncio.wait((item, ended), return_when=asyncio.FIRST_COMPLETED)
            ended.cancel()
            if not item.done():
                item.cancel()
                raise ReplicaLost("it was cancelled")
            yield item.result()

    def cancel(self) -> None:
        self._ended.set()


class Transport:
    def __init__(self, replicas: dict[str, Replica], board: RoutingBoard):
        self._replicas, self._board = replicas, board

    async def open(self, frame: RoutedFrame) -> bytes:
        name = self._board.route(frame.routed, {name: {} for name in self._replicas})
        frame.route_to(name)
        data, link = frame.__reduce__()[1][0]
        assert link
        return self._replicas[name].open(data)

    def follow(self, replica: str, link: str) -> Followed:
        return Followed(self._replicas[replica])

    async def leave(self, replica: str, link: str, request_ids: list[str]) -> None:
        self._replicas[replica].left += request_ids

    def is_routed(self, replica: str) -> bool:
        return not self._replicas[replica].is_dead


def run(make: Callable[[], dict[str, Replica]], use: Callable[..., object], board: RoutingBoard | None = None):  # type: ignore[no-untyped-def]
    """Run `use`, a coroutine function, with an engine of these replicas; return its result."""
    board = board or RoutingBoard()
    board.use("round-robin")

    async def main() -> object:
        replicas = make()
        board.set_replicas(list(replicas))
        links = Links(Transport(replicas, board))
        return await use(ReplicatedEngine(links, board, time.monotonic() - 5.0, lambda: None), replicas)  # type: ignore[misc]

    return asyncio.run(main())


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicated_engine, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(replica_links, "LATE_SECONDS", 0.0)


async def tokens_of(engine: ReplicatedEngine, *requests: Request) -> list[int]:
    stream = await engine.open(*requests)
    return [
        token async for events in stream for one in events if isinstance(one, TokensEvent) for token in one.token_ids
    ]


def test_requests_are_spread_and_answered() -> None:
    asked = [request(str(number), prompt=[number, 7], arrival=2.0) for number in range(4)]

    async def use(engine: ReplicatedEngine, replicas: dict[str, Replica]) -> None:
        assert sorted(await tokens_of(engine, *asked)) == [0, 1, 2, 3, 7, 7, 7, 7]
        assert [len(one.asked) for one in replicas.values()] == [2, 2]
        assert [one.followed for one in replicas.values()] == [1, 1], "one stream a replica"
        arrival = replicas["a"].asked[0].arrival
        assert -3.5 < arrival <= -3.0, "arrivals are sent as seconds before now"

    run(lambda: {"a": Replica(), "b": Replica()}, use)


def test_one_stream_brings_what_happens_to_all() -> None:
    async def use(engine: ReplicatedEngine, replicas: dict[str, Replica]) -> None:
        streams = [await engine.open(request(str(number), prompt=range(number + 1, 60))) for number in range(8)]
        got = [[token async for token in _tokens(stream)] for stream in streams]
        assert got == [list(range(number + 1, 60)) for number in range(8)]
        assert replicas["a"].followed == 1

    run(lambda: {"a": Replica()}, use)


async def _tokens(stream: EventStream) -> AsyncIterator[int]:
    async for events in stream:
        for one in events:
            for token in one.token_ids if isinstance(one, TokensEvent) else ():
                yield token


def test_what_had_no_token_goes_to_another_replica() -> None:
    board = RoutingBoard()

    async def use(engine: ReplicatedEngine, replicas: dict[str, Replica]) -> None:
        assert await tokens_of(engine, request(prompt=[5, 6])) == [5, 6]
        assert replicas["b"].asked, "it took the other's place"

    for after in (0, 1):
        run(lambda after=after: {"a": Replica(dies_after=after), "b": Replica()}, use, board)  # type: ignore[misc]
    assert board.queued() == {"a": 0, "b": 0}


def test_a_lost_replica_fails_all_requests_it_had_begun() -> None:
    async def use(engine: ReplicatedEngine, replicas: dict[str, Replica]) -> None:
        streams = [await engine.open(request(str(number), prompt=[5 + number])) for number in range(3)]
        assert [[token async for token in _tokens(streams[0])]] == [[5]]
        for stream in streams[1:]:
            with pytest.raises(EngineStopped, match=r"A replica was lost .*\(it was killed\); send the request again"):
                async for _ in stream:
                    pass
        assert engine.stopped is None, "the others are there"

    run(lambda: {"a": Replica(dies_after=4)}, use)


def test_tries_have_an_end() -> None:
    async def use(engine: ReplicatedEngine, replicas: dict[str, Replica]) -> None:
        with pytest.raises(EngineStopped, match=f"{TRIES} times before the first token"):
            await engine.open(request())

    run(lambda: {"a": Replica(dies_after=0)}, use)


@pytest.mark.parametrize("says", [b"nonsense", encode(Stopped("It broke down.")), encode(Happened([], [], [], []))])
def test_a_replica_that_says_nonsense_or_stops_is_lost(says: bytes) -> None:
    async def use(engine: ReplicatedEngine, replicas: dict[str, Replica]) -> None:
        for _ in range(2):
            assert await tokens_of(engine, request(prompt=[9])) == [9]

    run(lambda: {"a": Replica(says=says), "b": Replica()}, use)


def test_an_internal_error_while_sending_ends_the_request() -> None:
    async def use(engine: ReplicatedEngine, replicas: dict[str, Replica]) -> None:
        with pytest.raises(EngineStopped, match="No replica is there"):
            await engine.open(request())

    run(dict, use)


def test_a_refusal_reaches_the_client_and_leaves_no_request_behind() -> None:
    board = RoutingBoard()

    async def use(engine: ReplicatedEngine, replicas: dict[str, Replica]) -> None:
        with pytest.raises(RequestRefused, match="The queue is full") as refused:
            await engine.open(request("1", prompt=range(500)), request("2", prompt=range(500)))
        assert refused.value.retry_after == 3.0 and refused.value.code == "queue_full"
        await asyncio.sleep(0.05)
        assert len(replicas["b"].left) == 1 and board.queued() == {"a": 0, "b": 0}

    run(lambda: {"a": Replica(refuses=True), "b": Replica()}, use, board)


@pytest.mark.parametrize("for_good", [False, True])
def test_what_was_lost_waits_for_room_at_the_others(monkeypatch: pytest.MonkeyPatch, for_good: bool) -> None:
    monkeypatch.setattr(replicated_engine, "FULL_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(replicated_engine, "FULL_SECONDS", 0.1)

    async def use(engine: ReplicatedEngine, replicas: dict[str, Replica]) -> None:
        first, other = replicas["a"], replicas["b"]
        engine.board.set_replicas(["a"])
        stream = await engine.open(request(prompt=[5, 6]))
        engine.board.set_replicas(["b"])
        first.is_dead, other.refuses = True, True
        if for_good:
            with pytest.raises(EngineStopped, match=r"lost before it answered, .* accepts the request: The queue is"):
                await stream.take()
        else:
            asyncio.get_running_loop().call_later(0.05, setattr, other, "refuses", False)
            assert [token async for token in _tokens(stream)] == [5, 6]

    run(lambda: {"a": Replica(dies_after=1), "b": Replica()}, use)


def test_leaving_a_stream_aborts_its_request_at_the_replica_and_no_other() -> None:
    board = RoutingBoard()

    async def use(engine: ReplicatedEngine, replicas: dict[str, Replica]) -> None:
        left = [await engine.open(request(str(number), prompt=range(500))) for number in range(3)]
        stays = await engine.open(request("stays", prompt=range(500)))
        for stream in left:
            await stream.take()
            await stream.aclose()
        await asyncio.sleep(0.05)
        assert sorted(replicas["a"].left) == ["0", "1", "2"]
        assert [token async for token in _tokens(stays)] == list(range(500))

    run(lambda: {"a": Replica()}, use, board)
    assert board.queued() == {"a": 0}


def test_the_last_one_that_leaves_a_replica_which_is_drained_ends_its_stream() -> None:
    async def use(engine: ReplicatedEngine, replicas: dict[str, Replica]) -> None:
        stream = await engine.open(request(prompt=range(500)))
        await stream.take()
        replicas["a"].is_dead = True  # to whom Ray sends nothing
        await stream.aclose()
        await asyncio.sleep(0.05)
        assert not engine.links._links and not replicas["a"].left

    run(lambda: {"a": Replica()}, use)


def test_closing_fails_open_streams() -> None:
    async def use(engine: ReplicatedEngine, replicas: dict[str, Replica]) -> None:
        stream = await engine.open(request(prompt=range(500)))
        await stream.take()
        engine.close()
        with pytest.raises(EngineStopped, match="was closed"):
            async for _ in stream:
                pass
        with pytest.raises(EngineStopped):
            await engine.open(request())

    run(lambda: {"a": Replica()}, use)


def test_an_engine_that_lost_everything_says_why() -> None:
    async def use(engine: ReplicatedEngine, replicas: dict[str, Replica]) -> None:
        stream = await engine.open(request(prompt=range(500)))
        await stream.take()
        engine.stop("The head is gone.")
        assert engine.stopped == "The head is gone."
        with pytest.raises(EngineStopped, match="The head is gone"):
            async for _ in stream:
                pass
        with pytest.raises(EngineStopped, match="The head is gone"):
            await engine.open(request())
        engine.close()
        assert engine.stopped == "The head is gone.", "the first reason is the cause"

    run(lambda: {"a": Replica()}, use)


def test_a_board_is_busy_while_a_request_is_in_flight() -> None:
    board = RoutingBoard()
    assert not board.is_busy()

    async def use(engine: ReplicatedEngine, replicas: dict[str, Replica]) -> None:
        stream = await engine.open(request(prompt=[1, 2]))
        assert board.is_busy()
        async for _ in stream:
            pass

    run(lambda: {"a": Replica()}, use, board)
    assert not board.is_busy()


def test_a_client_in_another_process_sees_the_same_and_goes_on(tmp_path: Path) -> None:
    async def use(engine: ReplicatedEngine, replicas: dict[str, Replica]) -> None:
        server = EngineServer(engine, f"ipc://{tmp_path}/engine")
        client = RemoteClient(f"ipc://{tmp_path}/engine", "1")
        engine.board.set_replicas(["a"])
        begun = await client.open(request("begun", prompt=[1, 2, 3]))
        engine.board.set_replicas(["b"])
        left = await client.open(request("left", prompt=range(500)))
        with pytest.raises(RequestsLost, match="A replica was lost while it answered"):
            async for _ in begun:
                pass
        await left.take()
        await left.aclose()
        assert [token async for token in _tokens(await client.open(request("after", prompt=[4, 5])))] == [4, 5]
        assert replicas["b"].left == ["left"] and client.stopped is None
        replicas["b"].refuses = True
        with pytest.raises(RequestRefused, match="queue is full") as refused:
            await client.open(request("refused"))
        assert refused.value.code == "queue_full"
        engine.stop("The head is gone.")
        with pytest.raises(EngineStopped, match="The head is gone"):
            await client.open(request("late"))
        client.close()
        server.close()

    run(lambda: {"a": Replica(dies_after=2), "b": Replica()}, use)
