"""The record file: versioned JSON lines, written by `--record` and read by replay, calibrate, report and bench.

First a header, then in the order of events a line per step, a line per request when it has ended, one per request that
was not taken, and one for transfers of blocks that ended between two steps; those that had ended with one, that step's
line tells. And a line for what other engines were told to have given to tenants. Times are seconds on the engine's
clock, which begins with the engine; they are not rounded, because ranks and step times decide plans. A run can be
repeated exactly: requests are added and aborted, and transfers end, in the order of their commands, between the plans
and commits that they name, and plans are made and committed at the steps' times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict, overload

import msgspec

from inflight.records.checked import MOST_BYTES, Amount, Count, Malformed, Seconds, Time, decoded

VERSION = 1
# Beyond these no engine was: a scheduler keeps a list entry for each, and a damaged number would ask for all memory.
Blocks = Annotated[int, msgspec.Meta(ge=0, le=1 << 24)]
Rows = Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
Slots = Annotated[int, msgspec.Meta(ge=0, le=1 << 20)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=2**53)]
Windows = Annotated[tuple[Annotated[int, msgspec.Meta(ge=0)], ...], msgspec.Meta(min_length=1, max_length=64)]
Ticket = Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]
Pair = Annotated[list[Count], msgspec.Meta(min_length=2, max_length=2)]


class CapacityRecord(TypedDict):
    num_blocks: Blocks
    block_size: Positive
    max_rows: Rows
    max_model_len: Positive
    vocab_size: Positive
    host_blocks: NotRequired[Blocks]
    copy_seconds: NotRequired[Seconds]
    asynchronous_transfers: NotRequired[bool]
    embedding_size: NotRequired[Count]
    windows: NotRequired[Windows]  # of the KV groups, where there are several or one has one
    state_snapshots: NotRequired[Slots]  # of recurrent state, where the model has any
    generates: NotRequired[bool]  # where it does not
    whole_texts: NotRequired[bool]  # where they are
    adapter_slots: NotRequired[Slots]  # where there are any


class AdapterRecord(TypedDict):
    """An adapter by its name, of which there may have been several, one after the other."""

    name: str
    number: Count


class AdapterLoadRecord(AdapterRecord):
    ticket: Positive
    slot: Count


class Header(TypedDict):
    kind: Literal["header"]
    version: int
    capacity: CapacityRecord
    settings: dict[str, Any]  # resolved engine settings: each with its value and its reason
    created: NotRequired[str]  # ISO 8601, UTC


class ChunkRecord(TypedDict):
    sequence: Count
    row: Count
    start: Count
    length: Count
    new_blocks: list[Count]
    window_blocks: NotRequired[list[list[Count]]]  # of the KV groups behind the first, where there are several
    snapshots: NotRequired[list[Pair]]  # position and slot of each copy of the recurrent state that it takes
    sample: bool
    draft_token_ids: NotRequired[list[Count]]  # computed behind the known tokens, and sampled at, one by one
    num_drafts: NotRequired[Positive]  # so many that the executor made itself, in their place
    score: NotRequired[Pair]  # first scored position, and the one after the last; where there are any


class NewRowRecord(TypedDict):
    row: Count
    tokens: Count  # known tokens at that time
    prompt_tokens: Count
    snapshot: NotRequired[Count]  # slot that its recurrent state begins as a copy of
    adapter_slot: NotRequired[Count]


class FaultRecord(TypedDict):
    sequence: Count
    error: str


class TransferredRecord(TypedDict):
    """A transfer, or an adapter's load, that goes on beside the steps. Tickets count those of plans, from 1, and
    those of masks that draws wait for, from -1 down."""

    ticket: Ticket
    error: NotRequired[str]  # where it failed


class MovesRecord(TypedDict):
    out: list[Pair]  # device block, host block
    back: list[Pair]  # host block, device block


class FeaturesRecord(TypedDict):
    """As core.features."""

    tokens: Count
    rows: Count
    samples: Count
    decode_context: Count
    prefill_context: Amount
    moved_blocks: NotRequired[Count]


class PlanRecord(TypedDict):
    """What of a step was decided before it was computed; a replay compares it."""

    step: int
    chunks: list[ChunkRecord]
    new_rows: list[NewRowRecord]
    freed_rows: list[int]
    padding: list[int]
    moves: MovesRecord
    adapter_loads: NotRequired[list[AdapterLoadRecord]]  # begun with the step, where there are any


class StepRecord(TypedDict):
    kind: Literal["step"]
    step: Count
    planned: Time
    committed: Time
    seconds: Seconds  # as the executor measured the step
    chunks: list[ChunkRecord]
    new_rows: list[NewRowRecord]
    freed_rows: list[Count]
    padding: list[Count]  # lengths of runs of padded token slots
    moves: MovesRecord
    adapter_loads: NotRequired[list[AdapterLoadRecord]]
    features: FeaturesRecord  # of the plan
    before_commit: NotRequired[Count]  # first step committed after it was planned; records of older versions lack it
    held_back: NotRequired[list[Count]]  # sequences left out of it, to be drafted for behind the step in flight
    draft_seconds: NotRequired[Seconds]  # of them, what making drafts took
    waits: NotRequired[list[tuple[Count, Ticket]]]  # sequence, and what its draw waits for; it is drawn again
    accepted: NotRequired[list[Pair]]  # sequence, and how many of its drafts were right; of each that had some made
    error: NotRequired[str]
    out_of_memory: NotRequired[bool]
    transferred: NotRequired[list[TransferredRecord]]  # transfers that were found to have ended when it was committed
    faults: NotRequired[list[FaultRecord]]  # of sequences that ended alone: nothing could be drawn, scored or pooled


class TransfersRecord(TypedDict):
    """Transfers that ended while nothing could be computed without them."""

    kind: Literal["transfers"]
    transferred: Annotated[list[TransferredRecord], msgspec.Meta(min_length=1)]
    ended: Time
    before_step: Count  # first step planned after it
    before_commit: Count  # first step committed after it
    command: Count  # its place among all adds, ends, and these


class ServiceRecord(TypedDict):
    """What other engines gave to tenants meanwhile, as it was told here."""

    kind: Literal["service"]
    elsewhere: dict[str, dict[str, Amount]]  # lane → tenant → weighted tokens
    told: Time
    before_step: Count  # first step planned after it
    before_commit: Count  # first step committed after it
    command: Count  # its place among all adds, ends, transfers, and these


class RefusedRecord(TypedDict):
    """A request that the engine did not take. Nothing was done for it, so that no replay needs it; what was offered is
    not known without it. Records of older versions lack them."""

    kind: Literal["refused"]
    request_id: str
    lane: str
    tenant: str
    arrival: Time
    refused: Time
    prompt_tokens: Count
    slo: SloRecord
    reason: str
    retry_after: NotRequired[Seconds]  # where it was refused for now; without it, it can never be served


class SampleRecord(TypedDict):
    sequence: Count  # the number its chunks carry
    token_ids: list[Count]
    finish_reason: Literal["stop", "length", "abort", "error"]
    stopped_by: NotRequired[str | int]
    detail: NotRequired[str]


class SloRecord(TypedDict):
    """Seconds; None: nothing promised."""

    ttft: Time | None
    itl: Time | None


class TimingsRecord(TypedDict):
    """As records.timings."""

    queue_ms: Time
    prefill_ms: Time
    decode_ms: Time
    preempted_ms: Time
    other_ms: Time
    total_ms: Time
    ttft_ms: Time | None
    cached_tokens: Count
    recomputed_tokens: Count
    swapped_blocks: Count
    prompt_tokens_per_s: Seconds | None
    output_tokens_per_s: Seconds | None
    lane: str
    queued_by: NotRequired[dict[str, Time]]
    queued_behind: NotRequired[dict[str, Time]]
    started_ms: NotRequired[Time | None]


class RequestRecord(TypedDict):
    kind: Literal["request"]
    request_id: str
    lane: str
    arrival: Time
    added: Time
    before_step: Count  # first step planned after it was added
    before_commit: Count  # first step committed after it was added; less than before_step when plans were in flight
    command: Count  # its place among all adds and ends, and those of transfers
    ended: Time
    ended_before_step: Count  # first step planned after it had ended
    ended_before_commit: Count  # first step committed after it had ended
    ended_command: Count
    prompt_token_ids: list[Count]
    params: dict[str, Any]  # SamplingParams as given, defaults left out
    seed: int
    cache_salt: str
    tenant: str
    priority: int
    slo: SloRecord
    handed_tokens: NotRequired[Count]
    session: NotRequired[str]
    call_marks: NotRequired[list[list[Count]]]  # by which an output that calls a tool is known
    forced_output_tokens: NotRequired[Count]
    pooling: NotRequired[dict[str, Any]]  # PoolingParams, where a vector was asked for
    second_text_at: NotRequired[Count]
    adapter: NotRequired[AdapterRecord]
    grammar: NotRequired[dict[str, Any]]  # a Grammar, where the output was to follow one
    samples: Annotated[list[SampleRecord], msgspec.Meta(min_length=1)]
    timings: TimingsRecord


Line = Header | StepRecord | RequestRecord | RefusedRecord | TransfersRecord | ServiceRecord
Records = Sequence[Line]


class RecordError(ValueError):
    """A record file cannot be read."""


class _Kind(msgspec.Struct):
    kind: str | None = None
    version: Any = None


_KIND = msgspec.json.Decoder(_Kind)
_HEADER = msgspec.json.Decoder(Header)
_STEP = msgspec.json.Decoder(StepRecord)
_REQUEST = msgspec.json.Decoder(RequestRecord)
_REFUSED = msgspec.json.Decoder(RefusedRecord)
_TRANSFERS = msgspec.json.Decoder(TransfersRecord)
_SERVICE = msgspec.json.Decoder(ServiceRecord)


def read_records(path: Path) -> Iterator[Line]:
    """The lines of a record file, header first; whatever is not as the types above say is refused by file and line."""
    return (line for line, _ in read_places(path))


class Place(NamedTuple):
    """Behind so many bytes and lines of a file."""

    offset: int = 0
    number: int = 0


BEGINNING = Place()


def read_places(path: Path, begin: Place = BEGINNING) -> Iterator[tuple[Line, Place]]:
    """The lines from there on, and the place behind each."""
    with path.open("rb") as file:
        offset, number = begin
        file.seek(offset)
        while line := file.readline(MOST_BYTES + 1):
            offset, number = offset + len(line), number + 1
            try:
                yield _line(path, line, number == 1), Place(offset, number)
            except Malformed as fault:
                raise RecordError(_sentence(path, number, fault, cut=not line.endswith(b"\n"))) from None
    if not number:
        raise RecordError(f"{path} is empty: it has 0 lines, not even the header that --record writes first.")


def _sentence(path: Path, number: int, fault: Malformed, cut: bool) -> str:
    """cut: whether the line has no end."""
    if fault.line is None:
        return f"Line {number} of {path} {fault.cause}; the file was not written by --record, or changed since."
    advice = "; give a file that --record wrote" if number == 1 else "; the file may be cut off" if cut else ""
    return f"{path}, line {number}: {fault.cause}{advice}."


def _line(path: Path, line: bytes, is_first: bool) -> Line:
    found = decoded(_KIND, line)
    if is_first:
        if found.kind != "header" or found.version != VERSION:
            raise RecordError(
                f"{path} starts with kind {found.kind!r}, version {found.version!r}; this program reads records of "
                f"version {VERSION}, written by --record."
            )
        return decoded(_HEADER, line)
    match found.kind:
        case "step":
            return _checked_step(decoded(_STEP, line))
        case "request":
            return decoded(_REQUEST, line)
        case "refused":
            return decoded(_REFUSED, line)
        case "transfers":
            return decoded(_TRANSFERS, line)
        case "service":
            return decoded(_SERVICE, line)
    raise Malformed(
        f"has kind {found.kind!r}, where steps, requests (ended or refused), transfers and service are expected"
    )


def _checked_step(step: StepRecord) -> StepRecord:
    if step["committed"] < step["planned"]:
        raise Malformed(f"the step ends at {step['committed']:g} s, before it was planned at {step['planned']:g} s")
    return step


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
def of_kind(records: Records, kind: str) -> list[Any]:
    return [record for record in records if record["kind"] == kind]


def header_of(records: Records) -> Header:
    first = records[0]
    assert first["kind"] == "header", "read_records yields the header first"
    return first


def values_of(header: Header) -> dict[str, Any]:
    """Settings without their reasons."""
    return {
        name: entry["value"] if isinstance(entry, dict) and "value" in entry else entry
        for name, entry in header["settings"].items()
    }
