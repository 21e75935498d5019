"""The publisher over real sockets: numbered messages, replay behind a gap, subscribers that fall behind, its end."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from inflight.core.kv.prefix_cache import KVEventQueue
from inflight.core.types.kv_blocks import BlockDropped, BlockPublished, CacheChange, CacheCleared, SharedRoot
from inflight.engine.kv_events import KVEventOptions
from inflight.engine.kv_events import publisher as replaying
from inflight.engine.kv_events.publisher import KVEventObserver, KVEventPublisher
from inflight.engine.kv_events.sockets import KVEventAddressError

from .subscriber import Mirror, Subscriber, decode

ROOT = SharedRoot("", None)
Open, Subscribe = Callable[..., KVEventPublisher], Callable[..., Subscriber]


@pytest.fixture
def open_publisher() -> Iterator[Open]:
    opened: list[KVEventPublisher] = []

    def open_one(**options: object) -> KVEventPublisher:
        given = {"endpoint": "tcp://*:*", "replay_endpoint": "tcp://127.0.0.1:*", **options}
        opened.append(KVEventPublisher(KVEventOptions(**given)))  # type: ignore[arg-type]
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


@pytest.fixture
def subscribe() -> Iterator[Subscribe]:
    opened: list[Subscriber] = []

    def subscribe_one(publisher: KVEventPublisher, topic: bytes = b"") -> Subscriber:
        opened.append(Subscriber(publisher.published.replace("0.0.0.0", "127.0.0.1"), publisher.replayed, topic))
        return opened[-1]

    yield subscribe_one
    for one in opened:
        one.close()


def block(node: int) -> list[CacheChange]:
    """A block with a chain of its own."""
    return [BlockPublished(node, ROOT, (node, node))]


def heard(subscriber: Subscriber, publisher: KVEventPublisher) -> None:
    """Messages from now on are received: subscribing takes a moment."""
    found = None
    while found is None:
        publisher.publish([CacheCleared()])
        found = subscriber.hear(0.1)
    last = subscriber.ask(0)[-1][0]
    while found is not None and found[1] < last:
        found = subscriber.hear()


def test_messages_have_the_topic_and_rising_numbers(open_publisher: Open, subscribe: Subscribe) -> None:
    publisher = open_publisher(topic="kv@10.0.0.1@model")
    publisher.begin()
    subscriber = subscribe(publisher, b"kv@")
    heard(subscriber, publisher)
    before = time.time()
    for node in (1, 2, 3):
        publisher.publish(block(node))
    publisher.publish([BlockDropped(9)])  # of a block that was not sent: no message
    publisher.publish([BlockDropped(1)])
    found = [subscriber.hear() for _ in range(4)]
    messages = [one for one in found if one is not None]
    first = messages[0][1]
    assert [number for _, number, _ in messages] == list(range(first, first + 4))
    assert {topic for topic, _, _ in messages} == {b"kv@10.0.0.1@model"}
    assert all(before <= decode(payload).ts <= time.time() for _, _, payload in messages)
    assert subscriber.ask(first) == [(number, payload) for _, number, payload in messages]


def test_a_gap_is_closed_by_replay_and_what_is_kept_no_more_shows(open_publisher: Open, subscribe: Subscribe) -> None:
    publisher = open_publisher(buffer_steps=200)
    publisher.begin()
    for node in range(1, 301):
        publisher.publish(block(node))
    publisher.publish([BlockDropped(300)])
    subscriber = subscribe(publisher)
    found = subscriber.ask(0)
    assert [number for number, _ in found] == list(range(101, 301))
    assert subscriber.ask(299) == found[-2:] and subscriber.ask(301) == [] and subscriber.ask(2**64 - 2) == []
    mirror = Mirror()
    for _, payload in found:
        mirror.hear(payload)
    assert {tokens for (_, _, tokens), _ in mirror.contents} == {(node, node) for node in range(102, 300)}


def test_a_request_is_understood_as_vllms_clients_send_it(open_publisher: Open) -> None:
    publisher = open_publisher()
    publisher.begin()
    publisher.publish(block(1))
    with zmq.Context() as context:
        for kind in (zmq.REQ, zmq.DEALER):
            asking = context.socket(kind)
            asking.connect(publisher.replayed or "")
            if kind == zmq.DEALER:  # nonsense is passed over
                for frames in ([b"", b"1"], [b"x"], [b"", bytes(8)]):
                    asking.send_multipart(frames)
            else:
                asking.send(bytes(8))
            assert asking.poll(5000)
            frames = asking.recv_multipart()
            assert frames[-2] == bytes(8) and len(decode(frames[-1]).events) == 1
            asking.close(linger=0)


def test_a_subscriber_that_does_not_read_delays_no_other(
    open_publisher: Open, subscribe: Subscribe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replaying, "PATIENCE", 0.5)
    publisher = open_publisher(buffer_steps=20_000)
    publisher.begin()
    for node in range(1, 201):
        publisher.publish([BlockPublished(node, ROOT, tuple(range(node, node + 4096)))])
    context = zmq.Context()
    silent = context.socket(zmq.DEALER)
    silent.setsockopt(zmq.RCVHWM, 1)
    silent.connect(publisher.replayed or "")
    for _ in range(20):
        silent.send_multipart([b"", bytes(8)])
    subscriber = subscribe(publisher)
    assert [number for number, _ in subscriber.ask(0)] == list(range(200))
    publisher.publish(block(999))
    assert subscriber.ask(200) and not context.destroy(linger=0)


def test_a_subscriber_that_falls_behind_loses_messages_and_finds_them_again(
    open_publisher: Open, subscribe: Subscribe
) -> None:
    publisher = open_publisher(hwm=1)
    publisher.begin()
    subscriber = subscribe(publisher)
    heard(subscriber, publisher)
    size = 40_000  # tokens a message: more than the system keeps on its own
    for node in range(1, 301):
        publisher.publish([BlockPublished(node, ROOT, tuple(range(node, node + size)))])  # none waits for it to read
    numbers = []
    while (message := subscriber.hear(0.5)) is not None:
        numbers.append(message[1])
    kept = [number for number, _ in subscriber.ask(numbers[0])]
    assert len(numbers) < 300 and set(numbers) <= set(kept), "nothing was lost: no gap to close"
    assert kept == list(range(numbers[0], kept[-1] + 1))


def test_steps_share_a_message_where_too_many_wait(open_publisher: Open, subscribe: Subscribe) -> None:
    publisher = open_publisher(max_queue_size=2)
    for node in range(1, 6):
        publisher.publish(block(node))
    publisher.begin()
    found = subscribe(publisher).ask(0)
    assert [len(decode(payload).events) for _, payload in found] == [1, 4]


def test_addresses_that_cannot_be_used_are_an_error() -> None:
    with socket.socket() as other:
        other.bind(("0.0.0.0", 0))
        other.listen()
        taken = f"tcp://*:{other.getsockname()[1]}"
        with pytest.raises(KVEventAddressError, match=r"endpoint is tcp://.*something listens there already"):
            KVEventPublisher(KVEventOptions(endpoint=taken))
        with pytest.raises(KVEventAddressError, match=r": replay_endpoint is tcp://.*give another port"):
            KVEventPublisher(KVEventOptions(endpoint="tcp://*:*", replay_endpoint=taken))
    for nonsense in ("5557", "nats://*:1", "tcp://host", "tcp://*"):
        with pytest.raises(KVEventAddressError, match=r"which cannot be used .*write it like"):
            KVEventPublisher(KVEventOptions(endpoint=nonsense))


def test_it_calls_where_the_router_listens(open_publisher: Open) -> None:
    """Without a mark of listening, as vLLM has it."""
    with zmq.Context() as context, context.socket(zmq.SUB) as router:
        router.setsockopt(zmq.SUBSCRIBE, b"")
        port = router.bind_to_random_port("tcp://127.0.0.1")
        publisher = open_publisher(endpoint=f"tcp://127.0.0.1:{port}", replay_endpoint=None)
        publisher.begin()
        while not router.poll(100):
            publisher.publish([CacheCleared()])
        assert len(router.recv_multipart(zmq.NOBLOCK)) == 3


def test_the_end_sends_what_is_left_and_frees_the_addresses(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/events"  # a port might be anybody's in the next moment
    publisher = KVEventPublisher(KVEventOptions(endpoint=address, replay_endpoint="tcp://*:*"))
    journal = KVEventQueue()
    observer = KVEventObserver(journal, publisher)
    for change in block(1):
        journal.append(change)
    observer.close()
    publisher.close()
    publisher.publish(block(2))  # too late
    assert not any(thread.name == "inflight-kv-events" for thread in threading.enumerate())
    again = KVEventPublisher(KVEventOptions(endpoint=address))
    assert again.published == address
    again.close()  # though it has not begun
