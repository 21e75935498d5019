"""The recorder: an observer that writes a record file (`records.schema`), one JSON line per step and per request.

Lines are flushed with each request's end, so that a run that is cut off keeps what it had finished.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from inflight.core.tenants import TenantUsage
from inflight.core.types.events import Event, FinishedEvent, TokensEvent
from inflight.core.types.features import features
from inflight.core.types.plan import BatchPlan, Capacity, Pooled, Sampled, Scored, StepResult, Transferred
from inflight.core.types.request import Request, RequestRefused
from inflight.engine.observers import EngineObserver, Recovery
from inflight.records.between_steps import (
    AttemptsRecord,
    CacheResetRecord,
    RecoveryRecord,
    ServiceRecord,
    TransfersRecord,
)
from inflight.records.schema import (
    VERSION,
    Fault,
    Header,
    Line,
    RefusedRecord,
    RequestRecord,
    SampleRecord,
    StepRecord,
    encode_line,
    recorded_plan,
)


def open_record(path: Path) -> IO[bytes]:
    """Open a new file for a record. Only its owner may read it, since it may hold prompts."""
    return open(path, "wb", opener=lambda name, flags: os.open(name, flags, 0o600))


@dataclass(slots=True)
class _LiveRequest:
    request: Request
    first_sequence: int
    added: float
    before_step: int
    before_commit: int
    command: int
    outputs: list[list[int]]


class Recorder(EngineObserver):
    """An `EngineObserver` that writes a record."""

    def __init__(self, file: IO[bytes], settings: dict[str, Any], capacity: Capacity, created: str | None = None):
        """Write the header.

        Args:
            file: Closed with the recorder.
            settings: Resolved engine settings.
            capacity: Of the executor.
            created: ISO 8601; None: now.
        """
        self._file = file
        self._next_step = 0
        self._before_commit: dict[int, int] = {}  # of the steps in flight, the first one committed after its plan
        self._next_commit = 0
        self._next_sequence = 0
        self._commands = 0  # adds, ends, transfers and so on so far, which may bear the same time
        self._attempts: list[float] = []  # in a row, at plans that yielded none
        self._within: int | None = None  # the step within which these were
        self._alive: dict[str, _LiveRequest] = {}
        created = created or datetime.now(UTC).isoformat(timespec="seconds")
        self._write(Header(VERSION, capacity, settings, created, has_attempts=True))

    def added(self, request: Request, now: float) -> None:
        samples = request.params.n
        self._alive[request.request_id] = _LiveRequest(
            request=request,
            first_sequence=self._next_sequence,
            added=now,
            before_step=self._next_step,
            before_commit=self._next_commit,
            command=self._command(),
            outputs=[[] for _ in range(samples)],
        )
        self._next_sequence += samples

    def refused(self, request: Request, refusal: RequestRefused, now: float) -> None:
        self._write(
            RefusedRecord(
                request_id=request.request_id,
                lane=request.lane,
                tenant=request.tenant,
                arrival=request.arrival,
                refused=now,
                prompt_tokens=len(request.prompt_token_ids),
                slo=request.slo,
                reason=str(refusal),
                retry_after=refusal.retry_after,
            )
        )
        self._file.flush()

    def planned(self, plan: BatchPlan) -> None:
        self._end_attempts()
        self._next_step = plan.step + 1
        self._before_commit[plan.step] = self._next_commit

    def attempted(self, now: float, within: BatchPlan | None = None) -> None:
        step = None if within is None else within.step
        if step != self._within:
            self._end_attempts()
        self._within = step
        self._attempts.append(now)

    def step(self, plan: BatchPlan, result: StepResult, planned: float, committed: float) -> None:
        self._write_step(plan, result, planned, committed)

    def recovered(self, recovery: Recovery, lost: Sequence[tuple[BatchPlan, float]]) -> None:
        now, numbers = recovery.now, recovery.numbers
        for plan, planned in lost:
            if plan.step in self._before_commit:
                self._write_step(plan, StepResult(plan.step, (), 0.0, recovery.error), planned, now, lost=True)
        self._before_commit.clear()
        position = (self._next_step, self._next_commit, self._command())
        self._write(RecoveryRecord(now, recovery.error, *position, numbers.step, numbers.sequence))
        self._next_step, self._next_sequence = numbers.step, numbers.sequence

    def _write_step(
        self, plan: BatchPlan, result: StepResult, planned: float, committed: float, lost: bool = False
    ) -> None:
        self._end_attempts()
        self._next_commit += not lost
        yielded: tuple[Sampled | Scored | Pooled, ...] = (*result.sampled, *result.scored, *result.pooled)
        self._write(
            StepRecord(
                plan=recorded_plan(plan),
                planned=planned,
                committed=committed,
                seconds=result.seconds,
                features=features(plan),
                before_commit=self._before_commit.pop(plan.step),
                draft_seconds=result.draft_seconds,
                waits=tuple((one.sequence_id, one.waits_for) for one in result.sampled if one.waits_for),
                accepted=_accepted(plan, result),
                error=result.error,
                out_of_memory=result.error is not None and result.out_of_memory,
                transferred=result.transferred,
                suspended_at=result.suspended_at,
                faults=tuple(Fault(one.sequence_id, one.error) for one in yielded if one.error is not None),
                lengths=result.lengths,
                lost=lost,
            )
        )

    def transferred(self, ended: tuple[Transferred, ...], now: float) -> None:
        self._write(TransfersRecord(ended, now, self._next_step, self._next_commit, self._command()))

    def served_elsewhere(self, service: TenantUsage, now: float) -> None:
        self._write(ServiceRecord(service, now, self._next_step, self._next_commit, self._command()))

    def prefix_cache_reset(self, now: float) -> None:
        self._write(CacheResetRecord(now, self._next_step, self._next_commit, self._command()))

    def events(self, events: list[Event], now: float) -> None:
        for event in events:
            alive = self._alive.get(event.request_id)
            if alive is None:
                continue  # it was never added as a whole: a recovery ended it
            if isinstance(event, TokensEvent):
                alive.outputs[event.sample_index].extend(event.token_ids)
            elif isinstance(event, FinishedEvent):
                del self._alive[event.request_id]
                self._end(alive, event, now)

    def close(self) -> None:
        self._end_attempts()
        self._file.close()

    def _command(self) -> int:
        self._end_attempts()
        self._commands += 1
        return self._commands

    def _end_attempts(self) -> None:
        """Write the attempts since the last plan, commit or command."""
        if self._attempts:
            attempted, self._attempts = tuple(self._attempts), []
            self._write(AttemptsRecord(attempted, self._next_step, self._next_commit, self._command(), self._within))

    def _end(self, alive: _LiveRequest, event: FinishedEvent, now: float) -> None:
        samples = tuple(
            SampleRecord(alive.first_sequence + index, tuple(alive.outputs[index]), finish)
            for index, finish in enumerate(event.finishes)
        )
        self._write(
            RequestRecord(
                request=alive.request,
                added=alive.added,
                before_step=alive.before_step,
                before_commit=alive.before_commit,
                command=alive.command,
                ended=now,
                ended_before_step=self._next_step,
                ended_before_commit=self._next_commit,
                ended_command=self._command(),
                samples=samples,
                timings=event.timings,
            )
        )
        self._file.flush()

    def _write(self, line: Line) -> None:
        self._file.write(encode_line(line) + b"\n")


def _accepted(plan: BatchPlan, result: StepResult) -> tuple[tuple[int, int], ...]:
    """Return for each sequence with drafts that were made how many were right: all of its tokens but the last."""
    drafted = {chunk.sequence_id for chunk in plan.chunks if chunk.num_drafts} - {*result.undrafted}
    if not drafted:
        return ()
    sampled = [one for one in result.sampled if one.sequence_id in drafted and not one.waits_for]
    return tuple((one.sequence_id, max(0, len(one.token_ids) - 1)) for one in sampled)
