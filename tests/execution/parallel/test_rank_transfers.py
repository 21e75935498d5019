"""Transfers beside the steps on several ranks: each copies its own blocks, and they have ended when all have.

Ranks are threads here, with the whole model each, and copies that come late (`delayed`): on the second later than on
the first, so that reading by the first one alone reads blocks of the second too early.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import Pipe
from pathlib import Path
from typing import Any, cast

import pytest

from inflight.core.types.plan import BatchPlan, Capacity, Transfer, Transferred
from inflight.execution.parallel.executor import ParallelExecutor, RankTransfers
from inflight.execution.parallel.messages import (
    Computed,
    Copied,
    Failed,
    FromWorker,
    RanksLost,
    Step,
    WorkerFault,
    encode,
)
from inflight.execution.parallel.worker import Inbox, compute
from inflight.execution.parallel.workers import Mailbox, Workers
from inflight.execution.runner import ModelRunner

from ..backends.torch.delayed import DelayedStream
from ..backends.torch.opened import on_cpu
from ..backends.torch.test_engine import SCARCE, opened
from ..backends.torch.test_swapping import SWAP, asked
from ..test_depth import run

STORE, LOAD = Transfer(1, "store", "host", (5,), (0,)), Transfer(2, "load", "host", (7,), (1,))


def test_a_transfer_has_ended_when_all_ranks_report_it() -> None:
    transfers = RankTransfers(2)
    assert not transfers
    transfers.begin([STORE, LOAD])
    transfers.add_ended(0, [Transferred(2), Transferred(1)])
    assert transfers and transfers.ended() == () and transfers.overdue(60) == set() and transfers.overdue(-1) == {1}
    transfers.add_ended(1, [Transferred(1, "It is broken.")])
    assert transfers.ended() == (Transferred(1, "On rank 1: It is broken."),)
    transfers.add_ended(1, [Transferred(2)])
    assert transfers.ended() == (Transferred(2),) and not transfers


# -- a worker's messages -----------------------------------------------------------------------------------------------
def test_transfers_are_reported_between_answers() -> None:
    ours, theirs = Pipe()
    mailbox = Mailbox(1, ours)
    for message in (
        Copied((Transferred(1),)),
        Computed(0, (5,)),
        Copied((Transferred(2, "Lost."),)),
        Computed(1, (6,)),
    ):
        theirs.send_bytes(encode(message))
    assert mailbox.receive(Computed, 10) == Computed(0, (5,))
    assert mailbox.ended() == [Transferred(1), Transferred(2, "Lost.")] and mailbox.ended() == []
    assert mailbox.receive(Computed, 10) == Computed(1, (6,)), "which came before it was asked for"
    with pytest.raises(WorkerFault, match="Rank 1 has not answered for 0 s"):
        mailbox.receive(Computed, 0)
    theirs.send_bytes(encode(Failed("It broke.", True)))
    with pytest.raises(WorkerFault, match="Rank 1 failed: It broke") as caught:
        mailbox.ended()
    assert caught.value.by_peer
    theirs.close()
    with pytest.raises(WorkerFault, match=r"Rank 1 has closed its pipe\."):
        mailbox.ended()


# -- engines -----------------------------------------------------------------------------------------------------------
class Second:
    """Workers for the executor, of which one is a thread."""

    count, seconds = 1, 60.0

    def __init__(self, runner: ModelRunner) -> None:
        ours, self._theirs = Pipe()
        self.mailbox, self.inbox = Mailbox(1, ours), Inbox()
        self.said: list[FromWorker] = []
        self._thread = threading.Thread(target=self._work, args=(runner,), daemon=True)
        self._thread.start()

    def step(self, plan: BatchPlan) -> None:
        self.inbox.put(Step(plan))

    def computed(self, seconds: float) -> list[Computed]:
        return [self.mailbox.receive(Computed, seconds)]

    def shortage(self) -> None:
        """Return the first rank's memory, its machine's."""

    def lacking(self) -> Exception | None:
        """Return its own memory."""
        return None

    def ended(self) -> list[list[Transferred]]:
        return [self.mailbox.ended()]

    def close(self) -> None:
        self.inbox.put(cast(Any, None))  # no message: it ends by that
        self._thread.join()

    def _work(self, runner: ModelRunner) -> None:
        with pytest.raises(AssertionError):
            compute(runner, 2, self.inbox, self._send, self.lacking)

    def _send(self, message: FromWorker) -> None:
        self.said.append(message)
        self._theirs.send_bytes(encode(message))


@contextmanager
def two_ranks(folder: Path, patience: tuple[int, int]) -> Iterator[tuple[Any, Second]]:
    """An engine, whose loop asks both, and the second rank."""
    engine, other = (opened(folder, on_cpu(depth=2, copies=DelayedStream(one)), SWAP, **SCARCE) for one in patience)
    first, second = engine.executor, other.executor
    assert isinstance(first, ModelRunner) and isinstance(second, ModelRunner)
    workers = Second(second)
    engine.loop._executor = ParallelExecutor(first, cast(Workers, workers))
    try:
        yield engine, workers
    finally:
        engine.loop.close()


def test_ranks_that_copy_at_their_own_pace_say_what_one_says(tiny: Path) -> None:
    wanted = run(opened(tiny, on_cpu()), asked())
    with two_ranks(tiny, (1, 7)) as (engine, second):
        assert run(engine, asked()) == wanted
    copied = [one for message in second.said if isinstance(message, Copied) for one in message.ended]
    assert len(copied) > 5 and all(one.error is None for one in copied)


class StandingStill:
    """Workers that compute, and never report a transfer. fault: raised by one instead."""

    count = 1

    def __init__(self, seconds: float = 60.0, fault: WorkerFault | None = None) -> None:
        self.seconds, self._fault = seconds, fault

    def step(self, plan: BatchPlan) -> None:
        """It would be computed."""

    def shortage(self) -> None:
        """Compute nothing."""

    def ended(self) -> list[list[Transferred]]:
        if self._fault is not None:
            raise self._fault
        return [[]]


class Ended:
    """A runner whose transfers have ended at once."""

    capacity = Capacity(8, 16, 2, 64, 10, 4, asynchronous_transfers=True)

    def submit(self, plan: BatchPlan) -> None:
        self.copied = [Transferred(one.transfer_id) for one in plan.transfers]

    def poll(self, seconds: float = 0.0) -> tuple[Transferred, ...] | None:
        ended, self.copied = self.copied, []
        return tuple(ended) or None


@pytest.mark.parametrize(
    ("workers", "sentence"),
    [
        (StandingStill(seconds=-1.0), "Rank 1 has not copied the blocks of a transfer for -1 s"),
        (StandingStill(fault=WorkerFault("Rank 1 was killed.")), "Rank 1 was killed"),
    ],
)
def test_a_rank_that_reports_nothing_is_not_waited_for(workers: StandingStill, sentence: str) -> None:
    executor = ParallelExecutor(cast(ModelRunner, Ended()), cast(Workers, workers))
    assert executor.poll(60) is None
    executor.submit(BatchPlan(0, (), transfers=(STORE,)))
    with pytest.raises(RanksLost, match=f"{sentence}.*start the engine again"):
        executor.poll(60)
    assert executor.poll(60) is None, "it is not reported any more"
    with pytest.raises(RanksLost, match=sentence):
        executor.submit(BatchPlan(1, ()))
