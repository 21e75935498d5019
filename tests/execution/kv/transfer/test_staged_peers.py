"""Transfers with peers by way of host memory: host blocks are free once no copy and no peer uses them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from inflight.core.types.kv_transfer import PeerAddress, export_tier
from inflight.core.types.plan import Transfer, Transferred
from inflight.execution.kv.block_memory import BlockMemory, KVMemory
from inflight.execution.kv.offload.staging import HostStaging
from inflight.execution.kv.transfer.staged_peers import StagedPeers

STATE_GROUP, BLOCKS = 2, 4
SEND, RECEIVE = export_tier("one"), PeerAddress("peer", 5000, "one").tier


class Copy:
    """A copy that a test ends."""

    is_done = False
    fault: Exception | None = None

    def query(self) -> bool:
        if self.fault is not None:
            raise self.fault
        return self.is_done


class Peers:
    """Peers that end transfers when they are asked to."""

    def __init__(self) -> None:
        self.begun: list[Transfer] = []
        self.ended: list[Transferred] = []
        self.withdrawn: list[str] = []
        self.fault: Exception | None = None
        self.is_abandoned = self.is_closed = False

    def serves(self, tier: str) -> bool:
        return True

    def begin(self, transfer: Transfer) -> None:
        if self.fault is not None:
            raise self.fault
        self.begun.append(transfer)

    def poll(self) -> Sequence[Transferred] | None:
        ended, self.ended = self.ended, []
        return ended or None

    def withdraw(self, export_id: str) -> None:
        self.withdrawn.append(export_id)

    def abandon(self) -> None:
        self.is_abandoned = True

    def close(self) -> None:
        self.is_closed = True


class Device:
    """A device whose copies end when a test ends them, and its transfers with peers."""

    def __init__(self) -> None:
        self.peers, self.copies = Peers(), []
        memory = KVMemory(BlockMemory(memoryview(bytearray(BLOCKS)), 1), STATE_GROUP, BlockMemory(memoryview(b"s"), 1))
        staging = HostStaging(memory, 100, 50, self._copy, self._copy)
        self.transfers = StagedPeers(self.peers, staging)  # type: ignore[arg-type]

    def _copy(self, sources: Sequence[int], destinations: Sequence[int]) -> Copy:
        self.copies.append(Copy())
        return self.copies[-1]

    def begin(self, transfer_id: int, tier: str, blocks: int, states: int = 0) -> None:
        groups = (0,) * blocks + (STATE_GROUP,) * states
        numbers = tuple(range(blocks)) + (0,) * states
        self.transfers.begin(
            Transfer(transfer_id, "send" if tier == SEND else "receive", tier, numbers, numbers, groups)
        )

    def ended(self, count: int = 1) -> list[Transferred]:
        """Poll until so many transfers have ended, some of them in a thread."""
        found: list[Transferred] = []
        for _ in range(2000):
            found += self.transfers.poll() or ()
            if len(found) >= count:
                break
            time.sleep(0.001)
        return found

    def eventually(self, is_so: Callable[[], bool]) -> bool:
        return any(is_so() or time.sleep(0.001) for _ in range(2000))


@pytest.fixture
def device() -> Iterator[Device]:
    device = Device()
    yield device
    for copy in device.copies:
        copy.is_done = True
    device.transfers.close()


def test_host_blocks_are_in_use_until_the_last_copy_has_ended_though_another_failed(device: Device) -> None:
    device.begin(1, RECEIVE, blocks=BLOCKS, states=1)
    device.peers.ended = [Transferred(1)]
    device.transfers.poll()
    of_blocks, of_state = device.copies
    of_state.fault = RuntimeError("the device is lost")
    device.begin(2, RECEIVE, blocks=1)
    assert device.transfers.poll() == [] and len(device.peers.begun) == 1, "the blocks are being copied"
    of_blocks.is_done = True
    (ended,) = device.ended()
    assert ended.transfer_id == 1 and "the device is lost" in str(ended.error)
    assert [one.transfer_id for one in device.peers.begun] == [1, 2]


def test_abandoned_pulls_end_whether_they_have_begun_or_wait(device: Device) -> None:
    device.begin(1, RECEIVE, blocks=BLOCKS)
    device.begin(2, RECEIVE, blocks=1)
    device.begin(3, RECEIVE, blocks=1)
    device.transfers.abandon()
    device.peers.ended = [Transferred(1, "broken off")]
    assert {one.transfer_id for one in device.ended(3)} == {1, 2, 3} and device.peers.is_abandoned
    assert [one.transfer_id for one in device.peers.begun] == [1], "what waited does not begin any more"
    assert device.transfers.poll() is None


def test_an_abandoned_send_whose_copies_are_in_flight_is_never_exported(device: Device) -> None:
    device.begin(1, SEND, blocks=2)
    device.transfers.abandon()
    device.copies[0].is_done = True
    (ended,) = device.ended()
    assert ended.error is not None and device.peers.withdrawn == ["one"] and not device.peers.begun
    assert device.transfers.poll() is None


def test_what_cannot_begin_with_peers_ends_and_frees_its_host_blocks(device: Device) -> None:
    device.peers.fault = IndexError("block 9 of 4")
    device.begin(1, RECEIVE, blocks=BLOCKS)
    (ended,) = device.ended()
    assert ended.transfer_id == 1 and "block 9 of 4" in str(ended.error)
    device.begin(2, SEND, blocks=BLOCKS)
    device.copies[0].is_done = True
    assert device.ended() == [Transferred(2)] and device.peers.withdrawn == ["one"]
    device.peers.fault = None
    device.begin(3, SEND, blocks=BLOCKS)
    device.copies[1].is_done = True
    assert device.ended() == [Transferred(3)], "the thread goes on, and the host blocks are free"
    assert device.eventually(lambda: len(device.peers.begun) == 1)
