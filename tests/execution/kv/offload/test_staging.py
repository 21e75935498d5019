"""Transfers by way of host memory: in pieces, which overlap, and fail alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inflight.core.types.plan import Transfer, Transferred
from inflight.execution.kv.block_memory import BlockMemory, KVMemory
from inflight.execution.kv.offload.staging import HostStaging, StagedTransfers

STATE_GROUP, BLOCKS = 2, 4


class Copy:
    is_done = False

    def query(self) -> bool:
        return self.is_done


class Tier:
    """A tier that has all it was given, and ends transfers when it is asked to."""

    def __init__(self) -> None:
        self.begun: list[Transfer] = []
        self.ended: list[Transferred] = []
        self.is_closed = False

    def serves(self, tier: str) -> bool:
        return tier == "shelf"

    def begin(self, transfer: Transfer) -> None:
        self.begun.append(transfer)

    def poll(self) -> Sequence[Transferred] | None:
        ended, self.ended = self.ended, []
        return ended

    def close(self) -> None:
        self.is_closed = True


class Device:
    """A device whose copies are done when they are asked to be, and its transfers with a tier."""

    def __init__(self) -> None:
        self.tier, self.copies, self.copied = Tier(), [], []
        memory = KVMemory(BlockMemory(memoryview(bytearray(BLOCKS)), 1), STATE_GROUP, BlockMemory(memoryview(b"s"), 1))
        self.transfers = StagedTransfers(self.tier, HostStaging(memory, 100, 50, self._copy, self._copy))

    def _copy(self, sources: Sequence[int], destinations: Sequence[int]) -> Any:
        self.copied.append((tuple(sources), tuple(destinations)))
        self.copies.append(Copy())
        return self.copies[-1]

    def end_copies(self) -> None:
        for one in self.copies:
            one.is_done = True
        self.copies.clear()

    def end_all(self, error: str | None = None) -> list[Transferred]:
        """End copies and pieces until nothing more begins."""
        found: list[Transferred] = []
        for _ in range(10):
            self.end_copies()
            found += self.transfers.poll() or ()
            self.tier.ended += [Transferred(one.transfer_id, error) for one in self.tier.begun]
            self.tier.begun.clear()
        return found


def test_a_store_is_copied_in_pieces_and_then_written() -> None:
    device = Device()
    device.transfers.begin(
        Transfer(7, "store", "shelf", (1, 2, 3, 4, 5, 9), (11, 12, 13, 14, 15, 19), (0, 0, 1, 1, 0, 2))
    )
    assert [sources for sources, _ in device.copied] == [(1, 2), (3, 4)], "as much as there is host memory for"
    assert device.transfers.poll() == [] and not device.tier.begun, "nothing is written before it is copied"
    device.end_copies()
    device.transfers.poll()
    first, second = device.tier.begun
    assert (first.remote_blocks, first.groups) == ((11, 12), (0, 0)) and second.groups == (1, 1)
    assert {*first.blocks, *second.blocks} == set(range(BLOCKS))
    assert device.end_all() == [Transferred(7)]
    assert device.copied[2:] == [((5,), device.copied[2][1]), ((9,), (50,))], "the checkpoint goes by a host snapshot"
    assert device.transfers.poll() is None


def test_a_load_is_read_and_then_copied() -> None:
    device = Device()
    device.transfers.begin(Transfer(7, "load", "shelf", (1, 2), (11, 12)))
    (read,) = device.tier.begun
    assert read.remote_blocks == (11, 12) and read.groups == () and not device.copied
    device.tier.ended.append(Transferred(read.transfer_id))
    device.tier.begun.clear()
    assert device.transfers.poll() == [] and device.copied[0][1] == (1, 2)
    assert device.end_all() == [Transferred(7)]


def test_a_piece_that_fails_ends_its_transfer_and_frees_its_memory() -> None:
    device = Device()
    device.transfers.begin(Transfer(7, "load", "shelf", (1, 2, 3, 4, 5), (1, 2, 3, 4, 5)))
    device.transfers.begin(Transfer(8, "load", "shelf", (6, 7), (6, 7)))
    assert len(device.tier.begun) == 2
    ended = device.end_all("It is gone.")
    assert ended == [Transferred(7, "It is gone."), Transferred(8, "It is gone.")] and not device.copied
    device.transfers.begin(Transfer(9, "store", "shelf", (1, 2, 3, 4), (1, 2, 3, 4)))
    assert len(device.copied) == 2, "all host memory is free again"
    device.end_copies()
    device.transfers.close()
    assert device.tier.is_closed
