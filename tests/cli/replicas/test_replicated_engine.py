"""An engine of many replicas, which are engines here: what is lost with one, and what is not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import pytest
from core.builders import request

from inflight.cli.replicas import replicated_engine
from inflight.cli.replicas.replicated_engine import TRIES, ReplicaLost, ReplicatedEngine
from inflight.cli.replicas.routed_frame import RoutedFrame
from inflight.cli.replicas.routing_board import RoutingBoard
from inflight.core.types.events import Event, Finish, FinishedEvent, TokensEvent
from inflight.core.types.request import Request, RequestRefused
from inflight.engine.event_stream import EngineStopped
from inflight.engine.remote.messages import Accepted, Happened, Open, Refused, Stopped, decode_to_engine, encode
from inflight.records.timings import Timings

TIMINGS = Timings(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, None, None, "interactive")


class Replica:
    """Answers with the prompt, token by token. dies_after: so many messages. refuses: everybody."""

    def __init__(self, dies_after: int | None = None, refuses: bool = False, says: bytes | None = None):
        self.dies_after, self.refuses, self.says = dies_after, refuses, says
        self.asked: list[Request] = []
        self.cancelled = 0

    async def answer(self, data: bytes) -> AsyncIterator[bytes]:
        message = decode_to_engine(data)
        assert isinstance(message, Open)
        (asked,) = message.requests
        self.asked.append(asked)
        for number, one in enumerate(self._messages(asked)):
            if number == self.dies_after:
                raise ReplicaLost("it was killed")
            await asyncio.sleep(0)
            yield one

    def _messages(self, asked: Request) -> list[bytes]:
        if self.says is not None:
            return [self.says]
        if self.refuses:
            return [encode(Refused(0, "The queue is full.", 3.0, None, "queue_full"))]
        tokens = [TokensEvent(asked.request_id, 0, (token,), None, None) for token in asked.prompt_token_ids]
        events: list[Event] = [*tokens, FinishedEvent(asked.request_id, (Finish("stop"),), TIMINGS)]
        return [encode(Accepted(0)), *(encode(Happened.of([event])) for event in events)]


class Answer:
    def __init__(self, replica: Replica, data: bytes):
        self._replica, self._data = replica, data

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._replica.answer(self._data)

    def cancel(self) -> None:
        self._replica.cancelled += 1


def run(replicas: dict[str, Replica], use: Callable[[ReplicatedEngine], object], board: RoutingBoard | None = None):  # type: ignore[no-untyped-def]
    """What `use`, a coroutine function, returns of an engine of these; they leave the board when they die."""
    board = board or RoutingBoard()
    board.use("round-robin")
    board.replicas(list(replicas))

    def ask(frame: RoutedFrame) -> Answer:
        name = board.choose(frame.routed, {name: {} for name in replicas})
        return Answer(replicas[name], frame.__reduce__()[1][0])

    async def main() -> object:
        return await use(ReplicatedEngine(ask, board, time.monotonic() - 5.0, lambda: None))  # type: ignore[misc]

    return asyncio.run(main())


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicated_engine, "PAUSE_SECONDS", 0.0)


async def tokens_of(engine: ReplicatedEngine, *requests: Request) -> list[int]:
    stream = await engine.open(*requests)
    return [
        token async for events in stream for one in events if isinstance(one, TokensEvent) for token in one.token_ids
    ]


def test_requests_are_spread_and_answered() -> None:
    replicas = {"a": Replica(), "b": Replica()}
    asked = [request(str(number), prompt=[number, 7], arrival=2.0) for number in range(4)]
    assert sorted(run(replicas, lambda engine: tokens_of(engine, *asked))) == [0, 1, 2, 3, 7, 7, 7, 7]
    assert [len(one.asked) for one in replicas.values()] == [2, 2]
    arrival = replicas["a"].asked[0].arrival
    assert -3.5 < arrival <= -3.0, "arrivals are told as seconds before now"


def test_what_had_no_token_goes_to_another_replica() -> None:
    board = RoutingBoard()
    for after in (0, 1):
        replicas = {"a": Replica(dies_after=after), "b": Replica()}
        assert run(replicas, lambda engine: tokens_of(engine, request(prompt=[5, 6])), board) == [5, 6]
        assert replicas["a"].asked == [] or replicas["b"].asked, "one took the other's place"
    assert board.queued() == {"a": 0, "b": 0}


def test_what_was_begun_ends_with_a_sentence() -> None:
    replicas = {"a": Replica(dies_after=2)}

    async def use(engine: ReplicatedEngine) -> list[int]:
        stream, tokens = await engine.open(request(prompt=[5, 6, 8])), []
        with pytest.raises(EngineStopped, match=r"lost while it answered \(it was killed\); ask again"):
            async for events in stream:
                tokens += [token for one in events if isinstance(one, TokensEvent) for token in one.token_ids]
        assert engine.stopped is None, "the others are there"
        return tokens

    assert run(replicas, use) == [5] and len(replicas["a"].asked) == 1


def test_tries_have_an_end() -> None:
    replicas = {"a": Replica(dies_after=0)}

    async def use(engine: ReplicatedEngine) -> None:
        with pytest.raises(EngineStopped, match=f"{TRIES} times before a token"):
            await engine.open(request())

    run(replicas, use)
    assert len(replicas["a"].asked) == TRIES


@pytest.mark.parametrize("says", [b"nonsense", encode(Stopped("It broke down.")), encode(Accepted(0))])
def test_a_replica_that_says_nonsense_or_stops_is_lost(says: bytes) -> None:
    replicas = {"a": Replica(says=says), "b": Replica()}
    for _ in range(2):
        assert run(replicas, lambda engine: tokens_of(engine, request(prompt=[9]))) == [9]


def test_a_mistake_on_the_way_is_told_too() -> None:
    async def use(engine: ReplicatedEngine) -> None:
        with pytest.raises(EngineStopped, match="No replica is there"):
            await engine.open(request())

    run({}, use)


def test_a_refusal_is_told_and_nothing_goes_on() -> None:
    replicas = {"a": Replica(refuses=True), "b": Replica()}

    async def use(engine: ReplicatedEngine) -> None:
        with pytest.raises(RequestRefused, match="The queue is full") as refused:
            await engine.open(request("1"), request("2"))
        assert refused.value.retry_after == 3.0 and refused.value.code == "queue_full"
        await asyncio.sleep(0.05)
        assert not engine._tasks

    board = RoutingBoard()
    run(replicas, use, board)
    assert board.queued() == {"a": 0, "b": 0}


def test_who_leaves_ends_the_replicas_work() -> None:
    replicas, board = {"a": Replica()}, RoutingBoard()

    async def use(engine: ReplicatedEngine) -> None:
        stream = await engine.open(request(prompt=range(500)))
        await stream.take()
        await stream.aclose()
        await asyncio.sleep(0.05)
        assert not engine._tasks and replicas["a"].cancelled == 1

    run(replicas, use, board)
    assert board.queued() == {"a": 0}


def test_a_closed_engine_tells_those_that_wait() -> None:
    async def use(engine: ReplicatedEngine) -> None:
        stream = await engine.open(request(prompt=range(500)))
        await stream.take()
        engine.close()
        with pytest.raises(EngineStopped, match="was closed"):
            async for _ in stream:
                pass
        with pytest.raises(EngineStopped):
            await engine.open(request())

    run({"a": Replica()}, use)


def test_an_engine_that_lost_everything_says_why() -> None:
    async def use(engine: ReplicatedEngine) -> None:
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

    run({"a": Replica()}, use)


def test_a_board_is_busy_while_something_is_under_way() -> None:
    board = RoutingBoard()
    assert not board.is_busy()

    async def use(engine: ReplicatedEngine) -> None:
        stream = await engine.open(request(prompt=[1, 2]))
        assert board.is_busy()
        async for _ in stream:
            pass

    run({"a": Replica()}, use, board)
    assert not board.is_busy()
