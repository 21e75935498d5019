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
        self._written: object = None  # the subject of the last line, whose notice may be repeated
        self._events: list[Event] | None = None  # the last ones, of which so many are taken in
        self._num_taken = 0
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
            self._write_step(plan, StepResult(plan.step, (), 0.0, recovery.error), planned, now, lost=True)
        self._before_commit.clear()
        if recovery is not self._written:
            position = (self._next_step, self._next_commit, self._command())
            self._write(RecoveryRecord(now, recovery.error, *position, numbers.step, numbers.sequence), recovery)
        self._next_step, self._next_sequence = numbers.step, numbers.sequence

    def _write_step(
        self, plan: BatchPlan, result: StepResult, planned: float, committed: float, lost: bool = False
    ) -> None:
        """Write a step's line, once."""
        before_commit = self._before_commit.get(plan.step)
        if before_commit is None:
            return
        if plan is not self._written:
            self._end_attempts()
            self._write(_step_record(plan, result, (planned, committed), before_commit, lost), plan)
        self._next_commit += not lost
        del self._before_commit[plan.step]

    def transferred(self, ended: tuple[Transferred, ...], now: float) -> None:
        if ended is not self._written:
            self._write(TransfersRecord(ended, now, self._next_step, self._next_commit, self._command()), ended)

    def served_elsewhere(self, service: TenantUsage, now: float) -> None:
        if service is not self._written:
            self._write(ServiceRecord(service, now, self._next_step, self._next_commit, self._command()), service)

    def prefix_cache_reset(self, now: float) -> None:
        self._write(CacheResetRecord(now, self._next_step, self._next_commit, self._command()))

    def events(self, events: list[Event], now: float) -> None:
        if events is not self._events:
            self._events, self._num_taken = events, 0
        for event in events[self._num_taken :]:
            alive = self._alive.get(event.request_id)  # None: it was never added as a whole, and a recovery ended it
            if isinstance(event, FinishedEvent) and alive is not None:
                self._end(alive, event, now)
            elif isinstance(event, TokensEvent) and alive is not None:
                alive.outputs[event.sample_index] += event.token_ids
            self._num_taken += 1

    def close(self) -> None:
        self._end_attempts()
        self._file.close()

    def _command(self) -> int:
        self._end_attempts()
        return self._next_command()

    def _next_command(self) -> int:
        self._commands += 1
        return self._commands

    def _end_attempts(self) -> None:
        """Write the attempts since the last plan, commit or command."""
        if self._attempts:
            attempts = self._attempts
            if attempts is not self._written:
                position = (self._next_step, self._next_commit, self._next_command())
                self._write(AttemptsRecord(tuple(attempts), *position, self._within), attempts)
            self._attempts = []

    def _end(self, alive: _LiveRequest, event: FinishedEvent, now: float) -> None:
        if event is not self._written:
            self._write(self._request_record(alive, event, now), event)
        del self._alive[event.request_id]
        self._file.flush()

    def _request_record(self, alive: _LiveRequest, event: FinishedEvent, now: float) -> RequestRecord:
        samples = tuple(
            SampleRecord(alive.first_sequence + index, tuple(alive.outputs[index]), finish)
            for index, finish in enumerate(event.finishes)
        )
        return RequestRecord(
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

    def _write(self, line: Line, subject: object = None) -> None:
        """Write a line. subject: the object of which it is, whose notice may be repeated after Ctrl-C."""
        encoded = encode_line(line) + b"\n"
        self._written = subject  # first: Ctrl-C comes when a call has returned, so when the line is written
        self._file.write(encoded)


def _step_record(
    plan: BatchPlan, result: StepResult, times: tuple[float, float], before_commit: int, lost: bool
) -> StepRecord:
    """Return a step's line. times: when it was planned and committed."""
    yielded: tuple[Sampled | Scored | Pooled, ...] = (*result.sampled, *result.scored, *result.pooled)
    planned, committed = times
    return StepRecord(
        plan=recorded_plan(plan),
        planned=planned,
        committed=committed,
        seconds=result.seconds,
        features=features(plan),
        before_commit=before_commit,
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


def _accepted(plan: BatchPlan, result: StepResult) -> tuple[tuple[int, int], ...]:
    """Return for each sequence with drafts that were made how many were right: all of its tokens but the last."""
    drafted = {chunk.sequence_id for chunk in plan.chunks if chunk.num_drafts} - {*result.undrafted}
    if not drafted:
        return ()
    sampled = [one for one in result.sampled if one.sequence_id in drafted and not one.waits_for]
    return tuple((one.sequence_id, max(0, len(one.token_ids) - 1)) for one in sampled)
