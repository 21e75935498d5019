"""The recorder: writes what the engine did, one JSON line per step, per ended request and per refused one
(records.schema), and one for transfers that ended between steps, and one for service elsewhere.

Knows core's types and the schema; the loop tells it what happens. Lines are flushed with each request's end, so that
a run that is cut off keeps what it had finished.
"""

from __future__ import annotations

import os
from dataclasses import MISSING, asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from inflight.core.tenants import TenantUsage
from inflight.core.types.events import Event, FinishedEvent, TokensEvent
from inflight.core.types.features import features
from inflight.core.types.plan import (
    BatchPlan,
    Capacity,
    Chunk,
    NewRequest,
    Pooled,
    Sampled,
    Scored,
    StepResult,
    Transferred,
)
from inflight.core.types.request import Request, RequestRefused
from inflight.core.types.sampling import Adapter, SamplingParams
from inflight.records.json_text import json_text
from inflight.records.schema import VERSION, AdapterRecord, ChunkRecord, NewRowRecord, PlanRecord, TransferredRecord


def open_record(path: Path) -> IO[str]:
    """A new file for a record, which may hold prompts: nobody but its owner may read it."""
    return open(path, "w", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600))


@dataclass(slots=True)
class _Alive:
    request: Request
    first_sequence: int
    added: float
    before_step: int
    before_commit: int
    command: int
    outputs: list[list[int]]


class Recorder:
    def __init__(self, file: IO[str], settings: dict[str, Any], capacity: Capacity, created: str | None = None):
        """created: ISO 8601; None: now."""
        self._file = file
        self._next_step = 0
        self._before_commit: dict[int, int] = {}  # of the steps in flight, the first one committed after its plan
        self._next_commit = 0
        self._next_sequence = 0
        self._commands = 0  # adds, ends, transfers and service elsewhere so far, which may bear the same time
        self._alive: dict[str, _Alive] = {}
        self._write(
            {
                "kind": "header",
                "version": VERSION,
                "created": created or datetime.now(UTC).isoformat(timespec="seconds"),
                "settings": settings,
                "capacity": _capacity(capacity),
            }
        )

    def added(self, request: Request, now: float) -> None:
        samples = request.params.n
        self._alive[request.request_id] = _Alive(
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
        record: dict[str, Any] = {
            "kind": "refused",
            "request_id": request.request_id,
            "lane": request.lane,
            "tenant": request.tenant,
            "arrival": request.arrival,
            "refused": now,
            "prompt_tokens": len(request.prompt_token_ids),
            "slo": asdict(request.slo),
            "reason": str(refusal),
        }
        if refusal.retry_after is not None:
            record["retry_after"] = refusal.retry_after
        self._write(record)
        self._file.flush()

    def planned(self, plan: BatchPlan) -> None:
        self._next_step = plan.step + 1
        self._before_commit[plan.step] = self._next_commit

    def step(self, plan: BatchPlan, result: StepResult, planned: float, committed: float) -> None:
        self._next_commit = plan.step + 1
        record: dict[str, Any] = {
            "kind": "step",
            **plan_record(plan),
            "planned": planned,
            "before_commit": self._before_commit.pop(plan.step),
            "committed": committed,
            "seconds": result.seconds,
            "features": asdict(features(plan)),
        }
        if plan.held_back:
            record["held_back"] = list(plan.held_back)
        if accepted := _accepted(plan, result):
            record["accepted"] = accepted
        if result.draft_seconds:
            record["draft_seconds"] = result.draft_seconds
        if result.transferred:
            record["transferred"] = [_transferred(one) for one in result.transferred]
        if result.error is not None:
            record["error"] = result.error
            if result.out_of_memory:
                record["out_of_memory"] = True
        if waits := [[one.sequence_id, one.waits_for] for one in result.sampled if one.waits_for]:
            record["waits"] = waits
        yielded: tuple[Sampled | Scored | Pooled, ...] = (*result.sampled, *result.scored, *result.pooled)
        faults = [{"sequence": one.sequence_id, "error": one.error} for one in yielded if one.error is not None]
        if faults:
            record["faults"] = faults
        self._write(record)

    def transferred(self, ended: tuple[Transferred, ...], now: float) -> None:
        self._write(
            {
                "kind": "transfers",
                "transferred": [_transferred(one) for one in ended],
                "ended": now,
                "before_step": self._next_step,
                "before_commit": self._next_commit,
                "command": self._command(),
            }
        )

    def served_elsewhere(self, service: TenantUsage, now: float) -> None:
        self._write(
            {
                "kind": "service",
                "elsewhere": service,
                "told": now,
                "before_step": self._next_step,
                "before_commit": self._next_commit,
                "command": self._command(),
            }
        )

    def events(self, events: list[Event], now: float) -> None:
        for event in events:
            if isinstance(event, TokensEvent):
                self._alive[event.request_id].outputs[event.sample_index].extend(event.token_ids)
            elif isinstance(event, FinishedEvent):
                self._ended(self._alive.pop(event.request_id), event, now)

    def close(self) -> None:
        self._file.close()

    def _command(self) -> int:
        self._commands += 1
        return self._commands

    def _ended(self, alive: _Alive, event: FinishedEvent, now: float) -> None:
        request = alive.request
        record: dict[str, Any] = {
            "kind": "request",
            "request_id": request.request_id,
            "lane": request.lane,
            "arrival": request.arrival,
            "added": alive.added,
            "before_step": alive.before_step,
            "before_commit": alive.before_commit,
            "command": alive.command,
            "ended": now,
            "ended_before_step": self._next_step,
            "ended_before_commit": self._next_commit,
            "ended_command": self._command(),
            "prompt_token_ids": list(request.prompt_token_ids),
            "params": _given(request.params),
            "seed": request.seed,
            "cache_salt": request.cache_salt,
            "tenant": request.tenant,
            "priority": request.priority,
            "slo": asdict(request.slo),
            "samples": [],
            "timings": event.timings.to_json(),
        }
        if request.session:
            record["session"] = request.session
        if request.call_marks:
            record["call_marks"] = request.call_marks
        if request.num_external_tokens:
            record["handed_tokens"] = request.num_external_tokens
        if request.pooling is not None:
            record["pooling"] = asdict(request.pooling)
        if request.second_text_at is not None:
            record["second_text_at"] = request.second_text_at
        if request.adapter is not None:
            record["adapter"] = _adapter(request.adapter)
        if request.grammar is not None:
            record["grammar"] = asdict(request.grammar)
        if request.forced_output_tokens is not None:
            record["forced_output_tokens"] = request.forced_output_tokens
        for index, finish in enumerate(event.finishes):
            sample: dict[str, Any] = {
                "sequence": alive.first_sequence + index,
                "token_ids": alive.outputs[index],
                "finish_reason": finish.reason,
            }
            if finish.stopped_by is not None:
                sample["stopped_by"] = finish.stopped_by
            if finish.detail is not None:
                sample["detail"] = finish.detail
            record["samples"].append(sample)
        self._write(record)
        self._file.flush()

    def _write(self, record: dict[str, Any]) -> None:
        self._file.write(json_text(record, separators=(",", ":")) + "\n")


def plan_record(plan: BatchPlan) -> PlanRecord:
    record: PlanRecord = {
        "step": plan.step,
        "chunks": [_chunk(chunk) for chunk in plan.chunks],
        "new_rows": [_new_request(new) for new in plan.new_requests],
        "freed_rows": list(plan.freed_rows),
        "padding": list(plan.padding),
        "moves": {
            "out": [[block, host] for block, host in plan.copies("store")],
            "back": [[host, block] for block, host in plan.copies("load")],
        },
    }
    if plan.adapter_loads:
        record["adapter_loads"] = [
            {"ticket": one.transfer_id, "slot": one.slot, **_adapter(one.adapter)} for one in plan.adapter_loads
        ]
    return record


def _adapter(adapter: Adapter) -> AdapterRecord:
    return {"name": adapter.name, "number": adapter.number}


def _transferred(one: Transferred) -> TransferredRecord:
    return {"ticket": one.transfer_id} if one.error is None else {"ticket": one.transfer_id, "error": one.error}


def _capacity(capacity: Capacity) -> dict[str, Any]:
    """Without KV groups and recurrent state there is nothing to tell of them, nor of the kinds that most models are."""
    record = asdict(capacity)
    if capacity.generates:
        del record["generates"]
    if record.pop("encoder_only"):
        record["whole_texts"] = True
    if capacity.windows == (0,):
        del record["windows"]
    if not capacity.state_snapshots:
        del record["state_snapshots"]
    if not capacity.adapter_slots:
        del record["adapter_slots"]
    return record


def _new_request(new: NewRequest) -> NewRowRecord:
    record: NewRowRecord = {"row": new.row, "tokens": len(new.token_ids), "prompt_tokens": new.prompt_length}
    if new.snapshot >= 0:
        record["snapshot"] = new.snapshot
    if new.adapter_slot >= 0:
        record["adapter_slot"] = new.adapter_slot
    return record


def _chunk(chunk: Chunk) -> ChunkRecord:
    record: ChunkRecord = {
        "sequence": chunk.sequence_id,
        "row": chunk.row,
        "start": chunk.start,
        "length": chunk.length,
        "new_blocks": list(chunk.new_blocks),
        "sample": chunk.sample > 0,
    }
    if chunk.window_blocks:
        record["window_blocks"] = list(map(list, chunk.window_blocks))
    if chunk.snapshots:
        record["snapshots"] = list(map(list, chunk.snapshots))
    if chunk.draft_token_ids:
        record["draft_token_ids"] = list(chunk.draft_token_ids)
    elif chunk.num_drafts:
        record["num_drafts"] = chunk.num_drafts
    if chunk.score:
        record["score"] = [chunk.score.start, chunk.score.stop]
    return record


def _accepted(plan: BatchPlan, result: StepResult) -> list[list[int]]:
    """Of each sequence with drafts that were made, how many of them were right: all of its tokens but the last."""
    drafted = {chunk.sequence_id for chunk in plan.chunks if chunk.num_drafts} - {*result.undrafted}
    if not drafted:
        return []
    sampled = [one for one in result.sampled if one.sequence_id in drafted and not one.waits_for]
    return [[one.sequence_id, max(0, len(one.token_ids) - 1)] for one in sampled]


def _given(params: SamplingParams) -> dict[str, Any]:
    """The settings that differ from their defaults."""
    given = {}
    for item in fields(params):
        value = getattr(params, item.name)
        default = item.default if item.default is not MISSING else {}
        if value != default:
            given[item.name] = value
    return given
