"""What the database holds: files, jobs and answers, as frozen records.

Knows fields and the words of a job's life; who changes them when is the runner's and the endpoints' business.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import sqlite3
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any, Self

import msgspec

RUNNING = ("validating", "in_progress", "finalizing", "cancelling")
ENDED = ("completed", "failed", "expired", "cancelled")
FILE_ID = re.compile(r"file-[0-9a-f]{32}")  # drawn at random, or of the job that writes it


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """purpose: "batch" for what clients upload, "batch_output" for what jobs write. filename: for people to read."""

    id: str
    tenant: str
    filename: str
    purpose: str
    bytes: int
    created_at: int

    @classmethod
    def of(cls, row: sqlite3.Row) -> Self:
        """Raises ValueError or TypeError where a value is of another kind."""
        return msgspec.convert(dict(row), cls)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A batch job. Times are whole seconds of the wall clock; the order of jobs is `number`'s, which no clock moves.

    total, completed, failed: lines of the input file, those answered with 2xx, those answered otherwise.
    errors: why the job failed, a list of {code, message, param, line}. due: the store's clock when the window ends.
    """

    number: int
    id: str
    tenant: str
    endpoint: str
    input_file_id: str
    completion_window: str
    metadata: dict[str, str] | None
    status: str
    created_at: int
    expires_at: int
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    total: int = 0
    completed: int = 0
    failed: int = 0
    errors: list[dict[str, Any]] = field(default_factory=list)
    model: str | None = None  # that served its lines
    input_tokens: int = 0  # of the lines that were served, cached ones among them
    cached_tokens: int = 0
    output_tokens: int = 0
    due: float = 0.0

    @classmethod
    def of(cls, row: sqlite3.Row) -> Self:
        """Raises ValueError or TypeError where a value is of another kind."""
        json_values = {name: json.loads(row[name]) for name in ("metadata", "errors")}
        return msgspec.convert({**dict(row), **json_values}, cls)

    def stamp(self, now: float) -> int:
        """The time of the next thing that happens to this job: never before what has happened, if a clock jumps."""
        happened = (self.created_at, self.in_progress_at, self.finalizing_at, self.cancelling_at)
        return max(int(now), *(time for time in happened if time is not None))


@dataclass(frozen=True, slots=True)
class LineUsage:
    """Tokens that a line was served with, and by which model. input_tokens: cached ones among them."""

    model: str
    input_tokens: int
    cached_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LineAnswer:
    """How one line ended. line: its number in the file, from 1.

    status: HTTP status of the answer, with its body as `payload`; None when the line never came that far, and then
    `payload` is the error. payload: JSON text. usage: of a line that was served; its job counts it.
    """

    job: int
    line: int
    custom_id: str | None
    status: int | None
    payload: str
    usage: LineUsage | None = None

    @property
    def good(self) -> bool:
        return self.status is not None and 200 <= self.status < 300


@dataclass(frozen=True, slots=True)
class Proofs:
    """What the store says of content. lengths: of the files it knows, by id. writing, deleting: ids."""

    lengths: Mapping[str, int]
    writing: Set[str]
    deleting: Set[str]


def new_file_id() -> str:
    return f"file-{secrets.token_hex(16)}"


def output_file_id(job_id: str, kind: str) -> str:
    """The same however often the job ends. kind: which of its files."""
    return f"file-{hashlib.sha256(f'{job_id}/{kind}'.encode()).hexdigest()[:32]}"
