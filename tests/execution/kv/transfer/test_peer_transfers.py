"""Transfers with peers: blocks arrive as they were exported, an error fails its transfer alone, all holds end."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from inflight.core.types.kv_transfer import KVExportStats
from inflight.core.types.plan import Transferred
from inflight.execution.kv.transfer import nixl, peer_transfers
from inflight.execution.kv.transfer.description import KVDescription
from inflight.execution.kv.transfer.peer_transfers import KVTransferError

from .two_peers import Engine, options

TRANSPORTS = ["tcp", *(["nixl"] if nixl.installed() else [])]
Make = Callable[..., Engine]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[Engine] = []

    def make_one(*given: object, **described: object) -> Engine:
        made.append(Engine(*given, **described))  # type: ignore[arg-type]
        return made[-1]

    yield make_one
    for one in made:
        one.peer_transfers.close()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_blocks_arrive_as_they_are_given(make: Make, transport: str) -> None:
    prefill, decode = make(options(transport=transport)), make(options(transport=transport))
    names = [1000 + index for index in range(50)]
    given, taken = list(range(50)), list(range(60, 10, -1))
    sent = prefill.export("one", names, given)
    prefill.export("one", (), ())
    received = decode.pull(prefill, "one", names, taken)
    assert decode.ended() == Transferred(received)
    assert [decode.block(block) for block in taken] == [prefill.block(block) for block in given]
    assert {prefill.ended().transfer_id, prefill.ended().transfer_id} == {sent, sent + 1}
    assert prefill.peer_transfers.poll() is None and decode.peer_transfers.poll() is None
    assert decode.peer_transfers.counts.pulled_blocks == prefill.peer_transfers.counts.served_blocks == 50


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_blocks_of_several_groups_and_checkpoints_arrive(make: Make, transport: str) -> None:
    """Blocks of both KV groups are in one memory, checkpoints in another."""
    prefill = make(options(transport=transport), windows=(0, 32), states=4)
    decode = make(options(transport=transport), windows=(0, 32), states=4)
    names, groups = [10, 11, 12, 13, 14, 15], [0, 0, 2, 1, 1, 2]
    prefill.export("one", names, [1, 2, 3, 4, 5, 0], groups)
    decode.pull(prefill, "one", names, [9, 8, 1, 7, 6, 2], groups)
    assert decode.ended().error is None
    assert [decode.block(block) for block in (9, 8, 7, 6)] == [prefill.block(block) for block in (1, 2, 4, 5)]
    assert [decode.state(slot) for slot in (1, 2)] == [prefill.state(slot) for slot in (3, 0)]


def test_a_name_is_of_its_group(make: Make) -> None:
    prefill, decode = make(windows=(0, 32), states=4), make(windows=(0, 32), states=4)
    prefill.export("one", [1, 2], [1, 2], [1, 2])
    prefill.export("one", (), ())
    for groups in ([0], [2]):
        decode.pull(prefill, "one", [1], [1], groups)
        assert "No block of 'one' has the name" in str(decode.ended().error)
    with pytest.raises(IndexError, match="there is no group 3"):
        decode.pull(prefill, "one", [1], [1], [3])
    with pytest.raises(IndexError, match="blocks are 0 to 3"):
        decode.pull(prefill, "one", [2], [4], [2])


def test_no_more_than_half_of_the_checkpoints_are_held(make: Make) -> None:
    prefill = make(states=4)
    first = prefill.export("one", [1, 2], [1, 0], [0, 1])
    prefill.export("blocks alone", [3], [3])
    prefill.export("two", [1, 2], [1, 1], [0, 1])
    assert prefill.peer_transfers.poll() == ()
    prefill.export("three", [1, 2], [1, 2], [0, 1])
    assert prefill.ended() == Transferred(first)
    assert prefill.peer_transfers.export_stats == KVExportStats(held=5, displaced=2)


def test_only_what_is_asked_for_travels_and_a_connection_is_kept(make: Make) -> None:
    prefill, decode = make(), make()
    before, threads = decode.block(0), threading.active_count()
    for run in range(5):
        prefill.export(f"run {run}", [1, 2, 3], [1, 2, 3])
        decode.pull(prefill, f"run {run}", [3], [9])
        assert decode.ended().error is None
        assert decode.block(9) == prefill.block(3) and decode.block(0) == before
    assert threading.active_count() < threads + 5, "not some for each run"


def test_blocks_travel_while_the_next_are_computed(make: Make) -> None:
    """Pull before anything is computed, and get each chunk as it is computed."""
    prefill, decode = make(), make()
    decode.pull(prefill, "early", [1, 2, 3, 4], [11, 12, 13, 14])
    time.sleep(0.05)
    prefill.export("early", [1, 2], [1, 2])
    last = time.monotonic() + 5
    while decode.block(12) != prefill.block(2):
        assert time.monotonic() < last
        time.sleep(0.005)
    assert decode.peer_transfers.poll() == (), "two are still to come"
    prefill.export("early", [3, 4], [3, 4])
    assert decode.ended().error is None
    assert decode.block(14) == prefill.block(4)


def test_an_id_alone_opens_nothing(make: Make) -> None:
    """Names are made of salt, adapter and tokens: another tenant's request has others."""
    prefill, decode = make(), make()
    prefill.export("mine", [1, 2], [1, 2])
    prefill.export("mine", (), ())
    before = decode.block(5)
    decode.pull(prefill, "mine", [7, 8], [5, 6])
    error = decode.ended().error
    assert error is not None and "salt, adapter or tokens" in error
    assert decode.block(5) == before
    decode.pull(prefill, "mine", [1, 2], [5, 6])
    assert decode.ended().error is None, "and it is still there for its own request"


def test_what_was_taken_or_never_came_is_refused_at_once(make: Make) -> None:
    prefill, decode = make(), make(options(timeout=4.0))
    prefill.export("once", [1], [1])
    decode.pull(prefill, "once", [1], [1])
    assert decode.ended().error is None
    decode.pull(prefill, "once", [1], [1])
    assert "held no more" in str(decode.ended().error)
    decode.pull(prefill, "never", [1], [1])
    assert "Nothing is held for 'never'" in str(decode.ended().error)


def test_an_untaken_export_is_held_for_a_time(make: Make) -> None:
    prefill = make(options(hold=0.1))
    transfer_id = prefill.export("untaken", [1], [1])
    assert prefill.peer_transfers.poll() == ()
    assert prefill.ended(5.0) == Transferred(transfer_id)


def test_the_oldest_export_is_displaced_where_too_much_is_held(make: Make) -> None:
    prefill, decode = make(), make()
    first = prefill.export("first", range(20), range(20))
    prefill.export("second", range(20), range(20, 40))
    assert prefill.ended(1.0).transfer_id == first
    decode.pull(prefill, "second", [5], [0])
    assert decode.ended().error is None


def test_what_became_of_blocks_is_counted(make: Make) -> None:
    prefill, decode = make(options(hold=0.3)), make()
    prefill.export("taken", [1, 2, 3], [1, 2, 3])
    decode.pull(prefill, "taken", [2, 3], [2, 3])
    assert decode.ended().error is None
    prefill.export("dropped", range(4), range(4))
    prefill.peer_transfers.withdraw("dropped")
    prefill.peer_transfers.withdraw("never there")
    prefill.export("old", range(20), range(20))
    assert prefill.peer_transfers.export_stats.held == 20
    prefill.export("new", range(15), range(20, 35))
    for _ in range(4):
        assert prefill.ended(5.0).error is None
    assert prefill.peer_transfers.export_stats == KVExportStats(
        held=0, taken=2, cached=1, expired=15, displaced=20, withdrawn=4
    )


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"release": "1.3"}, "is version 1.2, the peer 1.3"),
        ({"model": "other", "weights": "def"}, "serves 'tiny', the peer 'other'"),
        ({"weights": "def"}, "the digest abc, the peer def"),
        ({"dtype": "float32"}, "computes in bfloat16, the peer float32"),
        ({"kv_format": "int8"}, "keys and values in bfloat16, the peer int8"),
        ({"block_size": 32}, "has the --block-size 16, the peer 32"),
        ({"windows": (0, 512)}, "KV groups with the windows (0,), the peer (0, 512)"),
        ({"kernels": "reference"}, "with the kernels native avx512_bf16, the peer reference"),
        ({"layers": "more"}, "has layers with the digest xyz, the peer more"),
        ({"block_bytes": 8192}, "4096, the peer 8192"),
        ({"kernels": "by modules", "weights": "def"}, "give both the same --backend"),
        ({"tensor_parallel": 2}, "over 1, the peer 2"),
        ({"adapters": {}}, "'french' is at this engine alone"),
        ({"adapters": {"french": "124"}}, "'french' has other files"),
    ],
)
def test_another_engine_is_refused_with_a_sentence(make: Make, changed: dict[str, object], says: str) -> None:
    prefill, decode = make(**changed), make()
    prefill.export("one", [1], [1])
    before = decode.block(1)
    decode.pull(prefill, "one", [1], [1])
    error = decode.ended().error
    assert error is not None and says in error, error
    assert decode.block(1) == before


def test_another_secret_is_refused_by_either_side(make: Make) -> None:
    prefill, decode = make(secret=b"one secret of many bytes"), make(secret=b"another secret, as long")
    prefill.export("one", [1], [1])
    decode.pull(prefill, "one", [1], [1])
    assert "does not know this engine's secret" in str(decode.ended().error)


def test_a_peer_that_is_gone_is_reported(make: Make) -> None:
    decode = make()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()[:2]
    decode.pull(address, "one", [1], [1])
    assert "cannot be reached" in str(decode.ended().error)


def test_a_peer_that_stops_half_way_costs_its_time_alone(make: Make) -> None:
    """The transfer never completes: its transfer ends by the time limit, and the next pull is as ever."""
    prefill, decode = make(), make(options(timeout=0.5))
    prefill.export("half", [1], [1])
    began = time.monotonic()
    decode.pull(prefill, "half", [1, 2], [1, 2])
    assert decode.ended().error is not None
    assert time.monotonic() - began < 4
    prefill.export("whole", [1], [1])
    decode.pull(prefill, "whole", [1], [1])
    assert decode.ended().error is None


def test_a_server_that_closes_ends_pulls_and_its_transfers(make: Make) -> None:
    prefill, decode = make(), make()
    transfer_id = prefill.export("one", [1], [1])
    decode.pull(prefill, "one", [1, 2], [1, 2])
    time.sleep(0.1)
    prefill.peer_transfers.close()
    assert decode.ended().error is not None
    assert prefill.ended() == Transferred(transfer_id)


def test_an_engine_that_ends_breaks_its_pulls_off(make: Make) -> None:
    prefill, decode = make(), make(options(timeout=600.0))
    transfer_ids = {decode.pull(prefill, "never", [1], [1]) for _ in range(12)}
    time.sleep(0.2)
    began = time.monotonic()
    decode.peer_transfers.close()
    assert time.monotonic() - began < 30
    assert {decode.ended().transfer_id for _ in transfer_ids} == transfer_ids


def test_a_pull_that_is_abandoned_while_it_connects_ends(make: Make) -> None:
    prefill, decode = make(), make(options(timeout=600.0))
    connects, goes_on = threading.Event(), threading.Event()

    def describe() -> KVDescription:
        connects.set()
        goes_on.wait(10)
        return decode.description

    decode.peer_transfers._client._connections._describe = describe
    decode.pull(prefill, "never", [1], [1])
    assert connects.wait(10)
    decode.peer_transfers.abandon()
    goes_on.set()
    assert "broken off" in str(decode.ended().error)


def test_many_pulls_at_once(make: Make) -> None:
    prefill, decode = make(), make()
    for run in range(24):
        prefill.export(f"run {run}", [run], [run])
    transfer_ids = {decode.pull(prefill, f"run {run}", [run], [63 - run]) for run in range(24)}
    ended = [decode.ended() for _ in transfer_ids]
    assert {one.transfer_id for one in ended} == transfer_ids and not any(one.error for one in ended)
    assert all(decode.block(63 - run) == prefill.block(run) for run in range(24))


def test_an_address_in_use_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(KVTransferError, match="--kv-transfer-port"):
        Engine(options(port=taken.getsockname()[1]))


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(("size", "count"), [(3 << 20, 20), (20 << 20, 2)])
def test_large_blocks_take_several_messages(make: Make, transport: str, size: int, count: int) -> None:
    prefill = make(options(transport=transport), block_bytes=size, blocks=2 * count)
    decode = make(options(transport=transport), block_bytes=size, blocks=2 * count)
    prefill.export("large", range(count), range(count))
    decode.pull(prefill, "large", range(count), range(count))
    assert decode.ended(30).error is None
    assert decode.bytes[: count * size] == prefill.bytes[: count * size]


def test_the_best_transport_of_both_ends_is_taken(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client has NIXL, and the server has not."""
    prefill = make()
    monkeypatch.setattr(peer_transfers, "_agent", lambda *given: object())
    decode, alone = make(options(transport="auto")), make(options(transport="nixl"))
    prefill.export("one", [1], [1])
    alone.pull(prefill, "one", [1], [2])
    assert "has no NIXL; install it there, too" in str(alone.ended().error)
    decode.pull(prefill, "one", [1], [2])
    assert decode.ended().error is None
    assert decode.block(2) == prefill.block(1)


def test_shared_memory_of_earlier_versions_means_tcp(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    prefill, decode = make(options(transport="shm")), make(options(transport="shm"))
    assert "--kv-transport shm means tcp now" in caplog.text
    prefill.export("one", [1], [1])
    decode.pull(prefill, "one", [1], [1])
    assert decode.ended().error is None
