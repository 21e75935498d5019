"""The record file: versioned JSON lines, written by `--record` and read by replay, calibrate, report and bench.

A header comes first. Then, in the order of events, come a line per step, a line per request when it has ended, one per
request that was refused, and those of `between_steps`. Plans, requests and ends are core's own types.

Times are seconds on the engine's clock, which begins with the engine; they are not rounded, because ranks and step
times decide plans. A run can be repeated exactly: requests are added and aborted, and transfers end, in the order of
their commands, between the plans and commits that they name, and plans are made and committed at the steps' times.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, overload

import msgspec
from msgspec import Struct

from inflight.core.types.events import Finish
from inflight.core.types.features import Features
from inflight.core.types.length_distribution import PredictedLength
from inflight.core.types.plan import HOST, BatchPlan, Capacity, NewRequest, Transferred, decode_range, encode_range
from inflight.core.types.request import SLO, Request
from inflight.core.types.timings import Timings
from inflight.counted import Count, Seconds, Time, TransferId
from inflight.records.between_steps import (
    AttemptsRecord,
    CacheResetRecord,
    RecoveryRecord,
    ServiceRecord,
    TransfersRecord,
)
from inflight.records.checked import MAX_BYTES, Malformed, converted, decoded
from inflight.records.json_text import json_text
from inflight.records.version1 import upgraded

VERSION = 2


class Header(Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="header"):
    """First line of a record.

    Attributes:
        version: Of the format.
        capacity: Of the executor.
        settings: Resolved engine settings, each with its value and its reason.
        created: ISO 8601, UTC.
        has_attempts: Whether the record has attempts at plans that yielded none.
    """

    version: Count
    capacity: Capacity
    settings: dict[str, Any]
    created: str | None = None
    has_attempts: bool = False


class Fault(Struct, frozen=True):
    """A sequence that ended alone, because nothing could be drawn, scored or pooled."""

    sequence_id: Count
    error: str


class StepRecord(Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="step"):
    """One step.

    Attributes:
        plan: As `recorded_plan` returns it.
        planned: When it was planned.
        committed: When its result was committed.
        seconds: Its duration, as the executor measured it.
        features: Of the plan.
        before_commit: Steps committed before it was planned; records of older versions lack it.
        draft_seconds: Part of `seconds` that making drafts took.
        waits: Sequence, and the transfer_id that its draw waits for; it is drawn again.
        accepted: Sequence, and how many of its drafts were right, of each that had some made.
        error: A sentence where the step failed.
        out_of_memory: Whether lack of memory was the reason.
        transferred: Transfers that had ended when it was committed.
        faults: Sequences that ended alone.
        suspended_at: Layers that were computed at each suspension. The interim steps within it (`BatchPlan.within`)
            stand before its own line.
        lengths: Predictions of a probe of hidden states.
        lost: Whether it was never committed, since the scheduler was reset: see the recovery behind it.
    """

    plan: BatchPlan
    planned: Time
    committed: Time
    seconds: Seconds
    features: Features
    before_commit: Count | None = None
    draft_seconds: Seconds = 0.0
    waits: tuple[tuple[Count, TransferId], ...] = ()
    accepted: tuple[tuple[Count, Count], ...] = ()
    error: str | None = None
    out_of_memory: bool = False
    transferred: tuple[Transferred, ...] = ()
    faults: tuple[Fault, ...] = ()
    suspended_at: tuple[Count, ...] = ()
    lengths: tuple[PredictedLength, ...] = ()
    lost: bool = False


class SampleRecord(Struct, frozen=True):
    """One sample of an ended request; `sequence_id` is the number that its chunks carry."""

    sequence_id: Count
    token_ids: tuple[Count, ...]
    finish: Finish


class RequestRecord(Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="request"):
    """One request that has ended.

    Attributes:
        request: As it was added.
        added: When it was added.
        before_step: First step planned after that.
        before_commit: First step committed after that; less than before_step when plans were in flight.
        command: Its number among all commands: adds, ends, and the lines of `between_steps`.
        ended: When it ended.
        ended_before_step: First step planned after that.
        ended_before_commit: First step committed after that.
        ended_command: Number of its end among all commands.
        samples: Its samples, in their order.
        timings: Where its time went.
    """

    request: Request
    added: Time
    before_step: Count
    before_commit: Count
    command: Count
    ended: Time
    ended_before_step: Count
    ended_before_commit: Count
    ended_command: Count
    samples: Annotated[tuple[SampleRecord, ...], msgspec.Meta(min_length=1)]
    timings: Timings


class RefusedRecord(Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="refused"):
    """A request that the engine refused; a replay does not need it, but the offered load includes it.

    Attributes:
        request_id: Of the request, as are lane, tenant, arrival and slo.
        refused: When it was refused.
        prompt_tokens: Length of its prompt.
        reason: A sentence.
        retry_after: Seconds after which it may be sent again; None: it can never be served.
    """

    request_id: str
    lane: str
    tenant: str
    arrival: Time
    refused: Time
    prompt_tokens: Count
    slo: SLO
    reason: str
    retry_after: Seconds | None = None


Line = (
    Header
    | StepRecord
    | RequestRecord
    | RefusedRecord
    | TransfersRecord
    | ServiceRecord
    | CacheResetRecord
    | AttemptsRecord
    | RecoveryRecord
)
Records = Sequence[Line]
_TYPES: dict[str, type[Line]] = {
    "step": StepRecord,
    "request": RequestRecord,
    "refused": RefusedRecord,
    "transfers": TransfersRecord,
    "service": ServiceRecord,
    "cache_reset": CacheResetRecord,
    "attempts": AttemptsRecord,
    "recovery": RecoveryRecord,
}


def recorded_plan(plan: BatchPlan) -> BatchPlan:
    """Return what a record holds of a plan.

    Prompts and settings of new requests are in the requests' own lines, and of transfers only those of the host are
    made again by a replay.
    """
    new = tuple(
        NewRequest(one.row, prompt_length=one.prompt_length, snapshot=one.snapshot, adapter_slot=one.adapter_slot)
        for one in plan.new_requests
    )
    copies = tuple(one for one in plan.transfers if one.tier == HOST)
    return BatchPlan(
        plan.step,
        plan.chunks,
        new,
        plan.freed_rows,
        plan.padding,
        copies,
        plan.held_back,
        plan.adapter_loads,
        within=plan.within,
    )


class RecordError(ValueError):
    """A record file cannot be read."""


class _Kind(Struct):
    kind: str | None = None
    version: Any = None


_KIND = msgspec.json.Decoder(_Kind)
_OLD: msgspec.json.Decoder[Mapping[str, Any]] = msgspec.json.Decoder(dict[str, Any])
_DECODERS = {kind: msgspec.json.Decoder(type_, dec_hook=decode_range) for kind, type_ in _TYPES.items()}
_HEADER = msgspec.json.Decoder(Header)
_encode = msgspec.json.Encoder(enc_hook=encode_range).encode


def encode_line(line: Line) -> bytes:
    """Return a line as JSON, without its end.

    A file's name that is not UTF-8 has half characters, which are written as escapes.
    """
    try:
        return _encode(line)
    except (UnicodeEncodeError, OverflowError):  # rare, so it may take another pass; the latter of numbers over 64 bits
        return json_text(_writable(msgspec.to_builtins(line, enc_hook=encode_range)), separators=(",", ":")).encode()


def _writable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_writable(key): _writable(item) for key, item in value.items()}
    return [_writable(item) for item in value] if isinstance(value, list | tuple) else value


class Position(NamedTuple):
    """Position in a record: bytes and lines before it, and the version that its header names (0: not read yet)."""

    offset: int = 0
    number: int = 0
    version: int = 0


BEGINNING = Position()


def read_records(path: Path) -> Iterator[Line]:
    """Yield the lines of a record file, header first.

    Raises:
        RecordError: The file or a line is not a record; the sentence names file and line.
    """
    return (line for line, _ in read_from(path))


def read_from(path: Path, begin: Position = BEGINNING) -> Iterator[tuple[Line, Position]]:
    """Yield the lines from a position on, and the position behind each; raises as `read_records`."""
    with path.open("rb") as file:
        offset, number, version = begin
        file.seek(offset)
        while line := file.readline(MAX_BYTES + 1):
            offset, number = offset + len(line), number + 1
            try:
                read = _header(path, line) if number == 1 else decode_line(line, version)
            except Malformed as fault:
                raise RecordError(_sentence(path, number, fault, cut=not line.endswith(b"\n"))) from None
            if isinstance(read, Header):
                version = read.version
            yield read, Position(offset, number, version)
    if not number:
        raise RecordError(f"{path} is empty: it has 0 lines, not even the header that --record writes first.")


def decode_line(line: bytes, version: int) -> Line:
    """Return a line behind the header.

    Raises:
        Malformed: It is not as declared.
    """
    kind = decoded(_KIND, line).kind
    if kind is None or kind not in _TYPES:
        raise Malformed(
            f"has kind {kind!r}, where steps, requests (ended or refused), transfers, service, resets of the cache, "
            "attempts and recoveries are expected"
        )
    if version == 1:
        found = converted(upgraded(decoded(_OLD, line)), _TYPES[kind], decode_range)
    else:
        found = decoded(_DECODERS[kind], line)
    if isinstance(found, StepRecord):
        _check_step(found)
    return found


def _check_step(step: StepRecord) -> None:
    """Raise Malformed where fields that have the right types contradict one another."""
    if step.committed < step.planned:
        raise Malformed(f"the step ends at {step.committed:g} s, before it was planned at {step.planned:g} s")
    for one in step.plan.transfers:
        if len(one.blocks) != len(one.remote_blocks):
            raise Malformed(f"a transfer has {len(one.blocks):,} blocks, and {len(one.remote_blocks):,} in its tier")
    if step.accepted:
        drafts = {chunk.sequence_id: chunk.num_drafts for chunk in step.plan.chunks if chunk.num_drafts}
        for sequence, accepted in step.accepted:
            if accepted > drafts.get(sequence, 0):
                raise Malformed(f"sequence {sequence} has {accepted:,} right drafts of {drafts.get(sequence, 0):,}")


def _header(path: Path, line: bytes) -> Header:
    found = decoded(_KIND, line)
    if found.kind != "header" or found.version not in (1, VERSION):
        raise RecordError(
            f"{path} starts with kind {found.kind!r}, version {found.version!r}; this program reads records of "
            f"versions 1 to {VERSION}, written by --record."
        )
    return decoded(_HEADER, line) if found.version == VERSION else converted(upgraded(decoded(_OLD, line)), Header)


def _sentence(path: Path, number: int, fault: Malformed, cut: bool) -> str:
    """Return the message of a RecordError. cut: whether the line has no end."""
    if fault.line is None:
        return f"Line {number} of {path} {fault.cause}; the file was not written by --record, or changed since."
    advice = "; give a file that --record wrote" if number == 1 else "; the file may be cut off" if cut else ""
    return f"{path}, line {number}: {fault.cause}{advice}."


@overload
def of_kind(records: Records, kind: Literal["step"]) -> list[StepRecord]: ...
@overload
def of_kind(records: Records, kind: Literal["request"]) -> list[RequestRecord]: ...
@overload
def of_kind(records: Records, kind: Literal["refused"]) -> list[RefusedRecord]: ...
@overload
def of_kind(records: Records, kind: Literal["transfers"]) -> list[TransfersRecord]: ...
@overload
def of_kind(records: Records, kind: Literal["service"]) -> list[ServiceRecord]: ...
@overload
def of_kind(records: Records, kind: Literal["cache_reset"]) -> list[CacheResetRecord]: ...
@overload
def of_kind(records: Records, kind: Literal["attempts"]) -> list[AttemptsRecord]: ...
@overload
def of_kind(records: Records, kind: Literal["recovery"]) -> list[RecoveryRecord]: ...
def of_kind(records: Records, kind: str) -> list[Any]:
    return [record for record in records if isinstance(record, _TYPES[kind])]


def header_of(records: Records) -> Header:
    """Return the header, which `read_records` yields first."""
    first = records[0]
    assert isinstance(first, Header), "read_records yields the header first"
    return first


def values_of(header: Header) -> dict[str, Any]:
    """Return the settings without their reasons."""
    return {name: value_of(entry) for name, entry in header.settings.items()}


def value_of(entry: Any) -> Any:
    """Return a setting without its reason."""
    return entry["value"] if isinstance(entry, dict) and "value" in entry else entry
