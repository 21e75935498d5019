"""A peer that sends or answers nonsense is refused, and costs its connection alone."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from random import Random

import msgspec
import pytest

from inflight.execution.kv.transfer import transports
from inflight.execution.kv.transfer.handshake import introduce
from inflight.execution.kv.transfer.server import MAX_CONNECTIONS
from inflight.execution.kv.transfer.wire import (
    PROTOCOL,
    Blocks,
    Challenge,
    Channel,
    Hello,
    Introduction,
    PeerError,
    Pull,
    Released,
    Welcome,
)
from inflight.peer_secret import SERVER, PeerSecret

from .two_peers import BLOCK_BYTES, DESCRIPTION, SECRET, Engine, options


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine(options(timeout=1.0))
    yield made
    made.peer_transfers.close()


def frame(message: msgspec.Struct) -> bytes:
    content = msgspec.msgpack.encode(message)
    return len(content).to_bytes(4, "big") + content


def works(engine: Engine) -> None:
    """Blocks of the engine's own arrive, by a connection like any other."""
    other = Engine()
    engine.export("still", [1], [1])
    other.pull(engine, "still", [1], [1])
    assert other.ended().error is None
    other.peer_transfers.close()
    assert engine.ended().error is None


def _nonsense() -> list[bytes]:
    random, hello = Random(5), frame(Hello(PROTOCOL, bytes(32)))
    found = [b"", b"\0", b"\xff" * 4, b"\0\0\0\0", b"GET / HTTP/1.1\r\n\r\n", frame(Hello(99, bytes(32)))]
    found += [hello[:5], hello + b"\0\0\0\5hello", frame(Introduction(bytes(32), DESCRIPTION, "stream"))]
    found += [hello + frame(Introduction(bytes(32), DESCRIPTION, "stream")) + frame(Pull("still", [bytes(16)], [], 5))]
    found += [
        hello + frame(Pull("x", [bytes(16)], [], 1)),
        (5000).to_bytes(4, "big") + bytes(5000),
        b"\0\0\0\x80" + b"\x91" * 128,
    ]
    return found + [random.randbytes(random.randrange(1, 200)) for _ in range(60)]


def test_nonsense_is_not_answered_with_blocks(engine: Engine) -> None:
    for sent in _nonsense():
        with socket.create_connection(engine.peer_transfers.address, timeout=5) as connected:
            answered = b""
            try:
                connected.sendall(sent)
                connected.shutdown(socket.SHUT_WR)
                while more := connected.recv(4096):
                    answered += more
            except OSError:  # it was closed first
                pass
            assert engine.block(1)[:64] not in answered
    works(engine)


def test_a_proof_of_the_listener_is_none_of_the_caller(engine: Engine) -> None:
    """Replay one connection's proof on another, in vain: nonces and sides are in the proof."""
    nonce = os.urandom(32)
    with socket.create_connection(engine.peer_transfers.address, timeout=5) as connected:
        connected.sendall(frame(Hello(PROTOCOL, nonce)))
        length = int.from_bytes(connected.recv(4, socket.MSG_WAITALL), "big")
        challenge = msgspec.msgpack.decode(connected.recv(length, socket.MSG_WAITALL), type=Challenge)
        assert PeerSecret(SECRET).proves(challenge.proof, SERVER, nonce, challenge.nonce)
        connected.sendall(frame(Introduction(challenge.proof, DESCRIPTION, "stream")))
        assert b"secrets differ" in connected.recv(4096)


def test_another_version_of_the_protocol_is_refused_with_a_sentence(engine: Engine) -> None:
    with socket.create_connection(engine.peer_transfers.address, timeout=5) as connected:
        connected.sendall(frame(Hello(2, bytes(32))))
        assert b"speaks version 3 of the exchange, not 2; run one version" in connected.recv(4096)


@pytest.mark.parametrize(("names", "groups"), [(0, 0), (1, 2), (2, 1), (2, 2)])
def test_a_pull_names_each_block_once_and_its_group(engine: Engine, names: int, groups: int) -> None:
    engine.export("one", [0, 1], [1, 2])
    with socket.create_connection(engine.peer_transfers.address, timeout=5) as connected:
        channel = Channel(connected, "the server")
        introduce(channel, PeerSecret(SECRET), DESCRIPTION, "stream")
        channel.send(Pull("one", [bytes(16)] * names, [0] * groups, 100), 5.0)
        with pytest.raises(PeerError, match="closed"):
            channel.receive(5.0)
    assert engine.peer_transfers.export_stats.held == 2, "nothing is taken"
    works(engine)


def test_a_transport_that_the_server_lacks_is_refused(engine: Engine) -> None:
    with socket.create_connection(engine.peer_transfers.address, timeout=5) as connected:
        channel = Channel(connected, "the server")
        with pytest.raises(PeerError, match="closed"):
            introduce(channel, PeerSecret(SECRET), DESCRIPTION, "shared memory")
    works(engine)


def test_a_peer_that_stops_within_a_block_is_too_slow(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transports, "PROGRESS", 0.2)
    over = threading.Event()
    half = _welcomed(frame(Blocks(1, 0, 0, BLOCK_BYTES)) + bytes(100))

    def stops(connected: socket.socket) -> None:
        half(connected)
        over.wait(20)

    with _listener(stops) as listener:
        engine.pull(listener.getsockname()[:2], "one", [1], [7])
        ended = engine.ended()
        over.set()
    assert "took too long" in str(ended.error)
    monkeypatch.undo()
    works(engine)


def test_many_that_say_nothing_keep_no_other_out(engine: Engine) -> None:
    silent = [socket.create_connection(engine.peer_transfers.address, timeout=5) for _ in range(MAX_CONNECTIONS + 5)]
    works(engine)
    for one in silent:
        one.close()


Answer = Callable[[socket.socket], None]


def _listener(answer: Answer) -> socket.socket:
    """Answers all peers so."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connected, _ = listener.accept()
                with connected:
                    answer(connected)
            except OSError:
                return

    threading.Thread(target=serve, daemon=True).start()
    return listener


def _welcomed(then: bytes) -> Answer:
    """Answer as a peer that knows the secret and sends `then` instead of blocks."""

    def answer(connected: socket.socket) -> None:
        def read() -> bytes:
            return connected.recv(int.from_bytes(connected.recv(4, socket.MSG_WAITALL), "big"), socket.MSG_WAITALL)

        hello = msgspec.msgpack.decode(read(), type=Hello)
        nonce = bytes(32)
        proof = PeerSecret(SECRET).proof(SERVER, hello.nonce, nonce)
        connected.sendall(frame(Challenge(nonce, proof)))
        read()
        connected.sendall(frame(Welcome()))
        read()
        connected.sendall(then)
        time.sleep(0.1)

    return answer


def _random(seed: int) -> Answer:
    return lambda connected: connected.sendall(Random(seed).randbytes(500))


ANSWERS: dict[str, Answer] = {
    "nothing": lambda connected: None,
    "random": _random(1),
    "huge": lambda connected: connected.sendall(b"\xff\xff\xff\xff"),
    "blocks before a challenge": lambda connected: connected.sendall(
        frame(Blocks(1, 0, 0, BLOCK_BYTES)) + bytes(BLOCK_BYTES)
    ),
    "a false proof": lambda connected: connected.sendall(frame(Challenge(bytes(32), bytes(32)))),
    "more blocks than were asked for": _welcomed(frame(Blocks(7, 0, 0, BLOCK_BYTES)) + bytes(7 * BLOCK_BYTES)),
    "no blocks": _welcomed(frame(Blocks(0, 0, 0, BLOCK_BYTES))),
    "half a block": _welcomed(frame(Blocks(1, 0, 0, BLOCK_BYTES)) + bytes(100)),
    "a block of more bytes": _welcomed(frame(Blocks(1, 0, 0, 2 * BLOCK_BYTES)) + bytes(2 * BLOCK_BYTES)),
    "no bytes": _welcomed(frame(Blocks(1, 0, 0, 0))),
    "released at once": _welcomed(frame(Released(True))),
    "nonsense": _welcomed(b"\0\0\0\3abc"),
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_a_faulty_peer_fails_a_pull_and_no_more(engine: Engine, kind: str) -> None:
    listener = _listener(ANSWERS[kind])
    beside = engine.block(9)
    with listener:
        transfer_id = engine.pull(listener.getsockname()[:2], "one", [1, 2], [7, 8])
        ended = engine.ended()
    assert (
        ended.transfer_id == transfer_id and ended.error is not None and ended.error.startswith("The peer at 127.0.0.1")
    )
    assert engine.block(9) == beside, "no byte goes beside the blocks that were asked for"
    works(engine)
