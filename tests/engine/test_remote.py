"""Messages between an engine and API processes: each comes out as it went in, and invalid bytes are an error."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from msgspec import structs

from inflight.core.types.events import Finish, FinishedEvent, PooledEvent, PromptScoredEvent, TokensEvent
from inflight.core.types.request import SLO, Request
from inflight.core.types.sampling import SamplingParams, TokenLogprob, TopLogprobs
from inflight.engine.event_stream import EngineStopped
from inflight.engine.remote.channel import MAX_QUEUED, make_socket
from inflight.engine.remote.client import RemoteClient
from inflight.engine.remote.messages import (
    Accepted,
    Cancel,
    Failed,
    Happened,
    MessageError,
    Open,
    Refused,
    Scored,
    Stopped,
    decode_from_engine,
    decode_to_engine,
    encode,
)

from .test_bridge import THIRTY, RemoteRig, Rig, empty
from .test_bridge import request as request_of

REQUEST = Request(
    request_id="cmpl-é",
    prompt_token_ids=(1, 2**31, 0),
    params=SamplingParams(
        n=3,
        logit_bias={5: -1.5},
        allowed_token_ids=(1, 2),
        bad_words=("no",),
        stop=("\n",),
        seed=2**64 - 1,
        logprobs=20,
    ),
    seed=2**64 - 1,
    arrival=1.25,
    lane="batch",
    tenant="acme",
    priority=-3,
    slo=SLO(0.5, None),
    bad_token_ids=((1, 2), (3,)),
    call_marks=((4,), (5, 6)),
    cache_salt="4:acme:",
    forced_output_tokens=7,
)
TOP = TopLogprobs.of_bytes(b"\x01\0\0\0\x02\0\0\0", b"\0\0\x80\xbf\0\0\0\xc0")
LOGPROBS = (TokenLogprob(1, -1.0, TOP), TokenLogprob(2**17, -0.1234567890123456789))


@pytest.fixture(scope="module")
def ended() -> Any:
    """A request's end, as an engine reports it."""
    rig = Rig()
    events = asyncio.run(rig.collect("one", params=SamplingParams(max_tokens=3)))
    rig.close()
    return events[-1]


@pytest.mark.parametrize(
    "message", [Open(3, (REQUEST, structs.replace(REQUEST, request_id="b"))), Cancel(3), Cancel(2**40)]
)
def test_messages_to_the_engine_come_out_as_they_went_in(message: Any) -> None:
    assert decode_to_engine(encode(message)) == message


def test_messages_from_the_engine_come_out_as_they_went_in(ended: Any) -> None:
    events = [
        PromptScoredEvent("a", LOGPROBS),
        TokensEvent("a", 0, (1, 2), LOGPROBS, None, 16),
        TokensEvent("b", 127, (2**31,), None, Finish("stop", "\n", "why")),
        TokensEvent("c", 0, (), None, Finish("stop", 17)),
        ended,
        FinishedEvent("a", (Finish("error", detail="a sentence"), Finish("length")), ended.timings),
    ]
    for message in (
        Accepted(1),
        Failed(1, "A replica was lost."),
        Refused(1, "The queue is full.", 0.5, "prompt", "rate_limit_exceeded"),
        Refused(1, "No.", None, None, None),
        Stopped("It stopped."),
    ):
        assert decode_from_engine(encode(message)) == message
    happened = decode_from_engine(encode(Happened.of(events)))
    assert isinstance(happened, Happened) and happened.events() == events
    top = happened.events()[0].logprobs[0].top  # type: ignore[union-attr, index]
    assert isinstance(top, TopLogprobs), "twenty alternatives to a token stay numbers side by side"


def test_vectors_and_empty_log_probabilities_travel_too() -> None:
    events = [PooledEvent("a", (0.5, -1.0)), PromptScoredEvent("b", ())]
    happened = decode_from_engine(encode(Happened.of(events)))
    assert isinstance(happened, Happened) and sorted(happened.events(), key=repr) == sorted(events, key=repr)


def test_order_within_a_request_is_kept_when_kinds_are_mixed(ended: Any) -> None:
    last = structs.replace(ended, request_id="a")
    mixed = [TokensEvent("a", 0, (1,), None, None), last, PromptScoredEvent("b", LOGPROBS)]
    mixed += [TokensEvent("b", 0, (2,), None, None), TokensEvent("b", 0, (3,), None, None)]
    events = Happened.of(mixed).events()
    for name in ("a", "b"):
        assert [one for one in events if one.request_id == name] == [one for one in mixed if one.request_id == name]


@pytest.mark.parametrize("cut", [0, 1, 7, -1])
def test_damaged_bytes_are_a_sentence(cut: int) -> None:
    for message, decode in (
        (Open(3, (REQUEST,)), decode_to_engine),
        (Refused(1, "No.", None, None, None), decode_from_engine),
    ):
        whole = encode(message)
        for damaged in (whole[:cut], b"\xc1" + whole, whole + b"x", msgspec.msgpack.encode({"type": "Open"})):
            with pytest.raises(MessageError, match=r"is damaged: .*\.$"):
                decode(damaged)  # type: ignore[operator]


def test_settings_that_cannot_be_meant_are_damage_too() -> None:
    body = msgspec.msgpack.decode(encode(Open(3, (REQUEST,))))
    body["requests"][0]["params"]["temperature"] = -1.0
    with pytest.raises(MessageError, match="temperature is -1"):
        decode_to_engine(msgspec.msgpack.encode(body))


@pytest.mark.parametrize("tops", [[(b"123", b"1234")], [], [(b"", b"")] * 3])
def test_log_probabilities_that_do_not_fit_each_other_are_damage(tops: Any) -> None:
    body = msgspec.msgpack.decode(encode(Happened.of([PromptScoredEvent("a", LOGPROBS)])))
    body["scored"][0][1][2] = tops
    happened = decode_from_engine(msgspec.msgpack.encode(body))
    assert isinstance(happened, Happened) and isinstance(happened.scored[0], Scored)
    with pytest.raises(MessageError, match="is damaged"):
        happened.events()


@pytest.fixture
def rig(tmp_path: Path) -> Any:
    rig = RemoteRig(tmp_path)
    yield rig
    rig.close()


async def test_a_client_with_invalid_messages_is_dropped_alone(rig: RemoteRig) -> None:
    dropped: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    rig.server._dropped = lambda name: loop.call_soon_threadsafe(dropped.put_nowait, name)  # type: ignore[assignment]
    good, unknown = await rig.started("good"), RemoteClient(rig._address, "unknown")
    await (await unknown.open(request_of("theirs"))).take()
    unknown._channel.send(b"\xc1")
    assert await asyncio.wait_for(dropped.get(), 20) == "unknown"
    await rig.settled(lambda counts: counts.running == 1)
    await anext(good)
    await good.aclose()
    unknown._channel.close()
    assert dropped.empty()


async def test_invalid_messages_of_an_engine_end_the_streams(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/engine"
    engine = make_socket(zmq.ROUTER)
    engine.bind(address)
    ends: list[bool] = []
    client = RemoteClient(address, "one", lambda sentence, is_broken: ends.append(is_broken))
    opening = asyncio.ensure_future(client.open(request_of("a")))
    name, _ = await asyncio.to_thread(engine.recv_multipart)
    engine.send_multipart([name, b"nonsense"])
    with pytest.raises(EngineStopped, match="is damaged"):
        await asyncio.wait_for(opening, 20)
    assert client.stopped is not None and ends == [True]
    client.close()
    engine.close()


async def test_an_engine_that_reads_nothing_cannot_be_reached(tmp_path: Path) -> None:
    ends: list[bool] = []
    client = RemoteClient(f"ipc://{tmp_path}/engine", "one", lambda sentence, is_broken: ends.append(is_broken))
    with pytest.raises(EngineStopped, match="cannot be reached"):
        for number in range(MAX_QUEUED + 1):
            client._send(Cancel(number))
    assert ends == [True]
    client.close()


async def test_a_lost_client_loses_its_requests_only(rig: RemoteRig) -> None:
    good = await rig.started("good")
    other = RemoteClient(rig._address, "other")
    for name in ("x", "y"):
        await (await other.open(request_of(name))).take()
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    rig._serving.call_soon_threadsafe(lambda: loop.call_soon_threadsafe(ended.set_result, rig.server.lost("other")))
    assert await ended == 2
    await rig.settled(lambda counts: counts.running == 1)
    await good.aclose()
    other._channel.close()


async def test_closing_a_client_aborts_its_requests_and_ends_its_streams(rig: RemoteRig) -> None:
    client = RemoteClient(rig._address, "other")
    stream = await client.open(request_of("a"))
    await stream.take()
    await asyncio.to_thread(client.close)
    for left in (stream.take, lambda: client.open(request_of("b"))):
        with pytest.raises(EngineStopped, match="The engine was closed"):
            while True:
                await left()
    await rig.settled(empty)


async def test_a_step_is_one_message_to_each_client(rig: RemoteRig, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Happened] = []
    plain = Happened.of.__func__  # type: ignore[attr-defined]
    monkeypatch.setattr(Happened, "of", classmethod(lambda cls, events: sent.append(plain(cls, events)) or sent[-1]))
    lists = await asyncio.gather(*(rig.collect(f"r{n}", params=THIRTY) for n in range(8)))
    assert sum(len(events) for events in lists) == 8 * 31
    assert sum(len(one.tokens) for one in sent) == 8 * 30 and len(sent) <= rig.loop._scheduler.stats().step


async def test_a_stream_that_ended_leaves_nothing_behind(rig: RemoteRig) -> None:
    await asyncio.gather(*(rig.collect(f"r{n}", params=SamplingParams(max_tokens=2)) for n in range(5)))
    with pytest.raises(Exception, match="context length"):
        await rig.collect("long", prompt=25_000)
    await (await rig.client.open(request_of("left"))).aclose()
    await rig.settled(empty)
    assert not (rig.client._streams or rig.client._accepted)
    [client] = rig.server._clients.values()
    assert not client.streams
