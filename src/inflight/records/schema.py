"""The record file: versioned JSON lines, written by `--record` and read by replay, calibrate, report and bench.

First a header, then in the order of events a line per step, and a line per request when it has ended. Times are
seconds on the engine's clock, which begins with the engine; they are not rounded, because ranks and step times decide
plans. A run can be repeated exactly: requests are added and aborted, in the order of their commands, between the plans
and commits that they name, and plans are made and committed at the steps' times.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NotRequired, TypedDict

VERSION = 1


class Header(TypedDict):
    kind: str  # "header"
    version: int
    created: str  # ISO 8601, UTC
    settings: dict[str, Any]  # resolved engine settings
    capacity: dict[str, int]


class ChunkRecord(TypedDict):
    sequence: int
    row: int
    start: int
    length: int
    new_blocks: list[int]
    sample: bool
    score: NotRequired[list[int]]  # first scored position, and the one after the last; where there are any


class NewRowRecord(TypedDict):
    row: int
    tokens: int  # known tokens at that time
    prompt_tokens: int


class FaultRecord(TypedDict):
    sequence: int
    error: str


class StepRecord(TypedDict):
    kind: str  # "step"
    step: int
    planned: float
    committed: float
    seconds: float  # as the executor measured the step
    chunks: list[ChunkRecord]
    new_rows: list[NewRowRecord]
    freed_rows: list[int]
    padding: list[int]  # lengths of runs of padded token slots
    moves: dict[str, list[list[int]]]  # "out": [device block, host block], "back": [host block, device block]
    features: dict[str, float]  # core.types.features of the plan
    error: NotRequired[str]
    faults: NotRequired[list[FaultRecord]]  # of sequences that ended alone, because nothing could be drawn or scored


class SampleRecord(TypedDict):
    sequence: int  # the number its chunks carry
    token_ids: list[int]
    finish_reason: str
    stopped_by: NotRequired[str | int]
    detail: NotRequired[str]


class RequestRecord(TypedDict):
    kind: str  # "request"
    request_id: str
    lane: str
    arrival: float
    added: float
    before_step: int  # first step planned after it was added
    before_commit: int  # first step committed after it was added; less than before_step when plans were in flight
    command: int  # its place among all adds and ends
    ended: float
    ended_before_step: int  # first step planned after it had ended
    ended_before_commit: int  # first step committed after it had ended
    ended_command: int
    prompt_token_ids: list[int]
    params: dict[str, Any]  # SamplingParams as given, defaults left out
    seed: int
    cache_salt: str
    tenant: str
    priority: int
    slo: dict[str, float | None]  # seconds: ttft, itl
    handed_tokens: NotRequired[int]
    forced_output_tokens: NotRequired[int]
    samples: list[SampleRecord]
    timings: dict[str, Any]


class RecordError(ValueError):
    """A record file cannot be read."""


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a record file, header first; refuses other versions and broken lines by number."""
    number = 0
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                record = json.loads(line)
            except json.JSONDecodeError as error:
                raise RecordError(f"{path}, line {number}: not JSON ({error.msg}); the file may be cut off.") from None
            if number == 1:
                _check_header(path, record)
            yield record
    if not number:
        raise RecordError(f"{path} is empty: it has 0 lines, not even the header that --record writes first.")


def _check_header(path: Path, record: Any) -> None:
    kind, version = (record.get("kind"), record.get("version")) if isinstance(record, dict) else (None, None)
    if kind != "header" or version != VERSION:
        raise RecordError(
            f"{path} starts with kind {kind!r}, version {version!r}; this program reads records of version {VERSION}, "
            "written by --record."
        )
