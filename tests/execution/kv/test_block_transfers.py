"""Transfers of a runner: within their step, or begun with it and reported when they have ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from msgspec import structs

from inflight.core.types.plan import BatchPlan, Capacity, Transfer, Transferred
from inflight.execution.kv.block_transfers import BlockTransfers

WITHIN = Capacity(num_blocks=8, block_size=16, max_rows=2, max_model_len=64, vocab_size=10, host_blocks=4)
BESIDE = Capacity(8, 16, 2, 64, 10, 4, asynchronous_transfers=True)
STORE = Transfer(1, "store", "host", (5, 2), (0, 3))
LOAD = Transfer(2, "load", "host", (7,), (1,))


@dataclass
class Copying:
    """Copies, and how much of each is done: two parts of each call."""

    broken: str = ""
    calls: list[tuple[list[int], list[int]]] = field(default_factory=list)
    done: set[tuple[int, int]] = field(default_factory=set)

    def __call__(self, sources: Sequence[int], destinations: Sequence[int]) -> list[Part]:
        self.calls.append((list(sources), list(destinations)))
        if self.broken:
            raise RuntimeError(self.broken)
        return [Part(self, len(self.calls) - 1, part) for part in range(2)]


@dataclass
class Part:
    copying: Copying
    call: int
    part: int

    def query(self) -> bool:
        return (self.call, self.part) in self.copying.done


def test_within_a_step_what_is_stored_comes_first_and_nothing_is_reported() -> None:
    copying = Copying()
    transfers = BlockTransfers(WITHIN, copying)
    transfers.begin(BatchPlan(0, (), transfers=(LOAD, STORE, structs.replace(STORE, blocks=(4,), remote_blocks=(2,)))))
    assert copying.calls == [([5, 2, 4], [9, 12, 11]), ([10], [7])], "one block of padding is between both memories"
    assert transfers.poll() is None


def test_beside_the_steps_each_ends_when_all_of_it_is_copied() -> None:
    copying = Copying()
    transfers = BlockTransfers(BESIDE, copying)
    transfers.begin(BatchPlan(0, (), transfers=(STORE, LOAD)))
    assert copying.calls == [([5, 2], [9, 12]), ([10], [7])]
    copying.done |= {(0, 0), (1, 0)}
    assert transfers.poll(0.002) == ()
    copying.done.add((1, 1))
    assert transfers.poll(60) == (Transferred(2),), "which does not wait for the other"
    copying.done.add((0, 1))
    assert transfers.poll() == (Transferred(1),) and transfers.poll(60) is None


@pytest.mark.parametrize("capacity", [WITHIN, BESIDE])
def test_beside_the_steps_a_copy_that_fails_fails_alone(capacity: Capacity) -> None:
    transfers, plan = BlockTransfers(capacity, Copying("no such block")), BatchPlan(0, (), transfers=(STORE,))
    if capacity is WITHIN:
        with pytest.raises(RuntimeError, match="no such block"):
            transfers.begin(plan)
        return
    transfers.begin(plan)
    (ended,) = transfers.poll() or ()
    assert ended == Transferred(1, "Blocks could not be copied (RuntimeError: no such block).")
    assert transfers.poll() is None


@dataclass
class Elsewhere:
    """A place of transfers, which records what had been copied when one began."""

    copying: Copying
    begun: list[tuple[Transfer, int]] = field(default_factory=list)

    def serves(self, tier: str) -> bool:
        return tier == "folder"

    def begin(self, transfer: Transfer) -> None:
        self.begun.append((transfer, len(self.copying.calls)))

    def poll(self) -> Sequence[Transferred] | None:
        return None

    def close(self) -> None: ...


@pytest.mark.parametrize("broken", ["", "no such block"])
def test_what_goes_to_the_host_has_gone_before_a_folder_fills_its_blocks(broken: str) -> None:
    """A block whose content goes to the host may be the one that is loaded into, and that begins at once."""
    brought = Transfer(3, "load", "folder", (5,), (77,))
    copying = Copying(broken)
    place = Elsewhere(copying)
    transfers, plan = BlockTransfers(WITHIN, copying, [place]), BatchPlan(0, (), transfers=(STORE, brought))
    if broken:
        with pytest.raises(RuntimeError):
            transfers.begin(plan)
    else:
        transfers.begin(plan)
    assert place.begun == [(brought, 1)], "and it begins though the step has failed: its transfer must end"


def test_a_transfer_ends_once_all_its_copies_have_though_one_failed() -> None:
    """A device block that is copied must not be used again before that."""

    class Failing(Part):
        def query(self) -> bool:
            raise RuntimeError("the device is lost")

    copying = Copying()
    transfers = BlockTransfers(BESIDE, lambda *both: [Failing(copying, 0, 0), copying(*both)[1]])
    transfers.begin(BatchPlan(0, (), transfers=(STORE,)))
    assert transfers.poll() == ()
    copying.done.add((0, 1))
    (ended,) = transfers.poll() or ()
    assert "the device is lost" in str(ended.error) and transfers.poll() is None
