"""Blocks that travel while a step computes them: layer by layer, and used only where the step came to its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from inflight.core.types.kv_transfer import export_tier
from inflight.core.types.plan import EarlySend
from inflight.execution.kv.block_memory import BlockMemory
from inflight.execution.kv.transfer import nixl
from inflight.execution.kv.transfer.client import Arrivals
from inflight.execution.kv.transfer.wire import Blocks

from .two_peers import BLOCK_BYTES, Engine, options

TRANSPORTS = ["tcp", *(["nixl"] if nixl.installed() else [])]
QUARTER = BLOCK_BYTES // 4


@pytest.fixture
def pair() -> Iterator[Callable[[str], tuple[Engine, Engine]]]:
    made: list[Engine] = []

    def make(transport: str) -> tuple[Engine, Engine]:
        made.extend((Engine(options(transport=transport)), Engine(options(transport=transport))))
        return made[-2], made[-1]

    yield make
    for one in made:
        one.peer_transfers.close()


def computing(engine: Engine, export_id: str, names: list[int], blocks: list[int]) -> None:
    engine.peer_transfers.begin_step([EarlySend(export_tier(export_id), tuple(blocks), tuple(names))])


def eventually(is_so: Callable[[], bool], seconds: float = 5.0) -> None:
    last = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < last
        time.sleep(0.002)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_layers_travel_while_the_next_are_computed(
    pair: Callable[[str], tuple[Engine, Engine]], transport: str
) -> None:
    prefill, decode = pair(transport)
    blocks, into = list(range(40)), list(range(60, 20, -1))
    decode.pull(prefill, "one", range(100, 140), into)
    before = [decode.block(block) for block in into]
    computing(prefill, "one", list(range(100, 140)), blocks)
    for done in (QUARTER, 3 * QUARTER, BLOCK_BYTES):
        prefill.peer_transfers.advance(done)
        expected = [prefill.block(block)[:done] for block in blocks]
        eventually(lambda done=done, expected=expected: [decode.block(one)[:done] for one in into] == expected)  # type: ignore[misc]
        assert [decode.block(one)[done:] for one in into] == [one[done:] for one in before]
    time.sleep(0.05)
    assert decode.peer_transfers.poll() == (), "the step has not ended"
    prefill.export("one", range(100, 140), blocks)
    assert decode.ended().error is None
    assert decode.peer_transfers.counts.pulled_blocks == prefill.peer_transfers.counts.served_blocks == 40


def test_what_is_computed_comes_first_and_another_step_goes_on(pair: Callable[[str], tuple[Engine, Engine]]) -> None:
    prefill, decode = pair("tcp")
    prefill.export("one", [1, 2], [1, 2])
    computing(prefill, "one", [3, 4], [3, 4])
    prefill.peer_transfers.advance(QUARTER)
    decode.pull(prefill, "one", [1, 2, 3, 4, 5], [11, 12, 13, 14, 15])
    eventually(lambda: decode.block(14)[:QUARTER] == prefill.block(4)[:QUARTER])
    prefill.peer_transfers.advance(BLOCK_BYTES)
    prefill.export("one", [3, 4], [3, 4])
    computing(prefill, "one", [5], [5])
    prefill.peer_transfers.advance(BLOCK_BYTES)
    prefill.export("one", [5], [5])
    assert decode.ended().error is None
    assert [decode.block(10 + block) for block in range(1, 6)] == [prefill.block(block) for block in range(1, 6)]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_step_that_is_broken_off_transfers_nothing(
    pair: Callable[[str], tuple[Engine, Engine]], transport: str
) -> None:
    prefill, decode = pair(transport)
    decode.pull(prefill, "one", [1, 2], [1, 2])
    computing(prefill, "one", [1, 2], [1, 2])
    prefill.peer_transfers.advance(QUARTER)
    eventually(lambda: decode.block(2)[:QUARTER] == prefill.block(2)[:QUARTER])
    prefill.peer_transfers.fail_step()
    assert "not computed to its end" in str(decode.ended().error)
    prefill.export("two", [1], [1])
    decode.pull(prefill, "two", [1], [5])
    assert decode.ended().error is None, "and the connection is as good as before"


@pytest.mark.parametrize("held", [{}, {"names": [1, 2], "blocks": [2, 1]}, {"names": [1], "blocks": [1]}])
def test_what_was_read_and_is_not_held_afterwards_counts_for_nothing(
    pair: Callable[[str], tuple[Engine, Engine]], held: dict[str, list[int]]
) -> None:
    """The request was aborted beside its step, or its blocks are others by now."""
    prefill, decode = pair("tcp")
    decode.pull(prefill, "one", [1, 2], [1, 2])
    computing(prefill, "one", [1, 2], [1, 2])
    prefill.peer_transfers.advance(BLOCK_BYTES)
    eventually(lambda: decode.block(2) == prefill.block(2))
    if held:
        prefill.export("one", **held)
    prefill.export("one", (), ())
    assert "not computed to its end" in str(decode.ended().error)


def test_nothing_of_a_step_is_held_by_itself(pair: Callable[[str], tuple[Engine, Engine]]) -> None:
    prefill, _ = pair("tcp")
    computing(prefill, "one", [1], [1])
    prefill.peer_transfers.advance(BLOCK_BYTES)
    assert prefill.peer_transfers.poll() is None


@pytest.mark.parametrize(
    ("message", "fits"),
    [
        (Blocks(4, 0, 0, BLOCK_BYTES), True),
        (Blocks(2, 2, 0, BLOCK_BYTES), True),
        (Blocks(1, 0, 0, 100), True),
        (Blocks(1, 4, 0, 2 * BLOCK_BYTES), True),
        (Blocks(0, 0, 0, BLOCK_BYTES), False),
        (Blocks(5, 0, 0, BLOCK_BYTES), False),
        (Blocks(6, 0, 0, BLOCK_BYTES), False),
        (Blocks(1, 5, 0, BLOCK_BYTES), False),
        (Blocks(1, 0, 100, 200), False),
        (Blocks(1, 0, 0, 0), False),
        (Blocks(1, 0, 0, BLOCK_BYTES + 1), False),
        (Blocks(1, 4, 0, 2 * BLOCK_BYTES + 1), False),
        (Blocks(1, 0, BLOCK_BYTES, BLOCK_BYTES), False),
    ],
)
def test_only_the_next_bytes_of_a_pull_are_accepted(message: Blocks, fits: bool) -> None:
    """A pull of four blocks and a checkpoint."""
    block, state = BlockMemory(memoryview(b""), BLOCK_BYTES), BlockMemory(memoryview(b""), 2 * BLOCK_BYTES)
    assert Arrivals([block] * 4 + [state]).is_next(message) == fits


def test_parts_come_one_behind_the_other() -> None:
    arrivals = Arrivals([BlockMemory(memoryview(b""), 100)] * 3)
    for message in (Blocks(2, 0, 0, 40), Blocks(1, 2, 0, 100), Blocks(2, 0, 40, 100)):
        assert not arrivals.is_whole and arrivals.is_next(message)
        arrivals.add(message)
        assert not arrivals.is_next(message), "no byte arrives twice"
    assert arrivals.is_whole
