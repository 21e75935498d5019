"""The executor of a model that several processes compute: all get a plan, and the first one's result is returned.

Every rank has all logits, with the same bits, and draws the same tokens from them, so that no rank waits for the first
rank's draws; ranks compare what they have drawn when a step is done, and stop where it differs.

A rank that lacks memory in a step still goes through all of its sums (`backends.torch.summing`) and reports it with its
result: then the step has failed on all for want of memory, and results of steps behind it are discarded.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from inflight.core.types.executor import Pending
from inflight.core.types.plan import BatchPlan, Capacity, StepResult, Transfer, Transferred
from inflight.execution.device_faults import DeviceLost
from inflight.execution.parallel.messages import Computed, PeerLost, RanksLost, WorkerFault
from inflight.execution.parallel.worker import token_ids
from inflight.execution.parallel.workers import Workers
from inflight.execution.runner import InFlight, ModelRunner, step_failure

_AGAIN = "Ranks are no longer at the same step; start the engine again"  # the readers of `lost` end the sentence
_TICK = 0.001  # seconds between two polls of ranks' transfers
_PATIENCE = 5.0  # seconds for the others to say what they know, once this rank has failed


@dataclass(slots=True)
class _RankTransfer:
    """A transfer in flight. begun: seconds. ranks: that have not reported its end."""

    begun: float
    ranks: set[int]
    error: str | None = None


class RankTransfers:
    """Transfers of blocks that each rank does for itself; one has ended when all ranks have reported its end."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._in_flight: dict[int, _RankTransfer] = {}

    def __bool__(self) -> bool:
        return bool(self._in_flight)

    def begin(self, transfers: Iterable[Transfer]) -> None:
        now = time.monotonic()
        self._in_flight |= {one.transfer_id: _RankTransfer(now, set(range(self._ranks))) for one in transfers}

    def add_ended(self, rank: int, ended: Iterable[Transferred]) -> None:
        """Add a rank's ended transfers. One that failed on a rank has failed: its blocks hold something else there."""
        for one in ended:
            state = self._in_flight[one.transfer_id]
            state.ranks.discard(rank)
            if one.error is not None:
                state.error = state.error or f"On rank {rank}: {one.error}"

    def ended(self) -> tuple[Transferred, ...]:
        """Return those that have ended on all ranks since the last call."""
        ended = [number for number, one in self._in_flight.items() if not one.ranks]
        return tuple(Transferred(number, self._in_flight.pop(number).error) for number in ended)

    def overdue(self, seconds: float) -> set[int]:
        """Return ranks that have not ended what was begun more than so many seconds ago."""
        since = time.monotonic() - seconds
        return {rank for one in self._in_flight.values() if one.begun < since for rank in one.ranks}


class ParallelExecutor:
    """The first rank's executor. Where a rank is lost, or a step fails on one, that step's `result` or `poll` raises
    RanksLost, and so does every later `submit`: the engine then ends with the error message."""

    def __init__(self, runner: ModelRunner, workers: Workers) -> None:
        self._runner, self._workers = runner, workers
        self._transfers = RankTransfers(workers.count + 1)
        self._submitted = self._lost_steps = -1  # the last step of all, and of those that follow one that failed
        self.lost: str | None = None

    @property
    def capacity(self) -> Capacity:
        return self._runner.capacity

    def submit(self, plan: BatchPlan) -> Pending:
        if self.lost is not None:
            raise RanksLost(self.lost)
        if self.capacity.asynchronous_transfers:
            self._transfers.begin(plan.transfers)
        self._workers.step(plan)
        self._submitted = plan.step
        flight, fault = self._runner.submit(plan), self._workers.shortage()
        return _InFlight(self, flight, None if fault is None else step_failure(plan, fault))

    def poll(self, seconds: float = 0.0) -> tuple[Transferred, ...] | None:
        """Return transfers that have ended on all ranks. Raises RanksLost."""
        last = time.monotonic() + seconds
        while self.lost is None and self._transfers:
            self._hear()
            if (ended := self._transfers.ended()) or time.monotonic() >= last:
                return ended
            time.sleep(_TICK)
        return None

    def close(self) -> None:
        self._workers.close()
        self._runner.close()

    def finished(self, result: StepResult, fault: Exception | None, short: str | None) -> StepResult:
        """Finish a step of this rank once the others have finished it.

        Args:
            fault: What it failed by here.
            short: An error message where it lacked memory here.

        Raises:
            RanksLost: Ranks are no longer at the same step.
        """
        if self.lost is not None:  # it was in flight beside the one that has raised
            return StepResult(result.step, (), result.seconds, error=self.lost)
        others = self._others(result, fault)
        shortages = [(rank, one) for rank, one in enumerate((short, *(other.short for other in others))) if one]
        if shortages:
            self._lost_steps = self._submitted
            rank, sentence = shortages[0]
            return StepResult(result.step, (), result.seconds, f"On rank {rank}: {sentence}", out_of_memory=True)
        if result.step > self._lost_steps:
            self._compare(result, others)
        return result

    def _hear(self) -> None:
        """Collect ended transfers of all ranks. Raises RanksLost."""
        limit = self._workers.seconds
        try:
            for rank, ended in enumerate((self._runner.poll() or (), *self._workers.ended())):
                self._transfers.add_ended(rank, ended)
            if late := self._transfers.overdue(limit):
                raise WorkerFault(f"Rank {min(late)} has not copied the blocks of a transfer for {limit:g} s.")
        except WorkerFault as cause:
            self.lose(str(cause), cause)

    def _others(self, result: StepResult, fault: Exception | None) -> list[Computed]:
        """Collect the other ranks' results of a step. Raises RanksLost where one cannot go on."""
        others: list[Computed] = []
        try:
            if fault is None or isinstance(fault, PeerLost):  # whose cause another rank may know
                others = self._workers.computed(_PATIENCE if fault else self._workers.seconds)
        except WorkerFault as cause:
            self.lose(str(cause), cause)
        if fault is not None:
            self.lose(str(result.error))
        return others

    def _compare(self, result: StepResult, others: Sequence[Computed]) -> None:
        """Raise RanksLost where not all ranks have drawn the same tokens."""
        drawn = token_ids(result)
        for rank, other in enumerate(others, start=1):
            if (other.step, other.token_ids) != (result.step, drawn):
                self.lose(
                    f"Rank {rank} has drawn other tokens than rank 0, {len(other.token_ids)} in step {other.step} and "
                    f"{len(drawn)} in step {result.step}: their devices do not compute the same bits."
                )

    def lose(self, why: str, cause: WorkerFault | DeviceLost | None = None) -> NoReturn:
        """End the executor: raise RanksLost."""
        self.lost = f"{why} {_AGAIN}"
        raise RanksLost(self.lost) from cause


class _InFlight:
    def __init__(self, executor: ParallelExecutor, flight: InFlight, short: str | None) -> None:
        self._executor, self._flight, self._short = executor, flight, short

    def result(self) -> StepResult:
        try:
            result = self._flight.result()
        except DeviceLost as cause:
            self._executor.lose(f"On rank 0: {cause}.", cause)
        return self._executor.finished(result, self._flight.fault, self._short)
