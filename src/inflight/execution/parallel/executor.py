"""The executor of a model that several processes compute: a plan goes to all of them, the first one's result back.

Knows the runner of this process, the workers, and that all must be at the same step. Every rank has all logits, with
the same bits, and draws the same tokens from them, so that nothing waits for the first rank's draws to come round; what
ranks have drawn is compared when a step is done, and where it differs they stop.

A rank that lacks memory in a step goes through all of its sums (`backends.torch.summing`), and says so with its result:
then the step has failed on all, for want of memory, and results of steps behind it are discarded, whatever was drawn.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NoReturn

from inflight.core.types.plan import BatchPlan, Capacity, Pending, StepResult, Transferred
from inflight.execution.device_faults import DeviceLost
from inflight.execution.parallel.faults import PeerLost, RanksLost, WorkerFault
from inflight.execution.parallel.messages import Computed
from inflight.execution.parallel.rank_transfers import RankTransfers
from inflight.execution.parallel.worker import token_ids
from inflight.execution.parallel.workers import Workers
from inflight.execution.runner import InFlight, ModelRunner, step_failure

_AGAIN = "Ranks are no longer at the same step; start the engine again"  # the readers of `lost` end the sentence
_TICK = 0.001  # seconds between two polls of ranks' transfers
_PATIENCE = 5.0  # seconds for the others to say what they know, once this rank has failed


class ParallelExecutor:
    """The first rank's executor. Where a rank is lost, or a step fails on one, that step's `result` or `poll` raises
    RanksLost, and so does every later `submit`: this is no failed step but the executor's end, and the engine ends with
    the error message."""

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
        """Finish a step of this rank, once the others have finished it, too. fault: what it failed by. short: an error
        message where it lacked memory. Raises RanksLost."""
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
        if fault is not None and not isinstance(fault, PeerLost):
            self.lose(str(result.error))
        try:
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
