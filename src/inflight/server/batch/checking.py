"""The check of a database before anything is touched: is it sound, is it ours, and which one is it?

Reads only, and leaves no trace. Knows versions, SQLite's own check, and what a row must look like to be served; what is
concluded from the answers, `data` knows.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from inflight.server.batch.faults import DamagedDatabase, storage_fault
from inflight.server.batch.log_check import lost_commits
from inflight.server.batch.marker import Identity
from inflight.server.batch.models import Batch, FileObject
from inflight.server.batch.records import FILE_ID, Job, StoredFile
from inflight.server.batch.schema import APPLICATION_ID, TABLES, VERSION
from inflight.server.responses.stored import StoredResponse

_JOB_ID = re.compile(r"batch_[0-9a-f]{32}")
_HEADER = b"SQLite format 3\0"
_JOURNAL = bytes.fromhex("d9d505f920a163d7")  # with which a journal begins that is to be taken back
_REMEDY = "restore it from a backup, or use another --data-dir."


class DatabaseError(ValueError):
    """The database cannot be used; the sentence says why."""


@dataclass(frozen=True, slots=True)
class Found:
    """version: of the tables; 0 where there are none yet. identity: None before version 2, which knew of no store."""

    version: int
    identity: Identity | None = None


def inspect(path: Path) -> Found:
    """Takes as long as reading the database takes. Raises DatabaseError where it is damaged, newer, or no database of
    this program; OSError where it cannot be read, also for want of room: a reader of its log makes an index of it."""
    if _was_being_made(path):
        return Found(0)
    with path.open("rb") as file:
        if file.read(len(_HEADER)) != _HEADER:
            raise DatabaseError(
                f"{path} is damaged or no database: its first {len(_HEADER)} bytes are wrong; {_REMEDY}"
            )
    try:
        with _read_only(path) as connection:
            version = _version(path, connection)
            log, index = _sides(path)
            if lost := lost_commits(log, index):
                raise DatabaseError(
                    f"{log} is damaged: at least {lost} transactions in it cannot be read any more; restore it from a "
                    "backup, or copy it elsewhere first, and remove it and the marker to go on without them."
                )
            # Indexes are checked too, which the quick check leaves out: a job that is not found is a job that is lost.
            (first,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
            if first != "ok":
                raise DatabaseError(f"{path} is damaged ({_one_line(first)}); {_REMEDY}")
            _check_rows(path, connection, version)
            return Found(version, _identity(path, connection) if version > 1 else None)
    except sqlite3.Error as error:
        fault = storage_fault(error)
        if fault is not None and not isinstance(fault, DamagedDatabase):
            raise fault from None
        raise DatabaseError(f"{path} cannot be used as a database ({_one_line(str(error))}); {_REMEDY}") from None


def _was_being_made(path: Path) -> bool:
    """Its first page was being written, and its journal says that there was none before: who opens it to write takes
    that page back. Who only reads cannot, and finds no database."""
    try:
        with path.with_name(f"{path.name}-journal").open("rb") as file:
            begin = file.read(20)
    except FileNotFoundError:
        return False
    return begin.startswith(_JOURNAL) and begin[16:20] == bytes(4)  # pages


def _sides(path: Path) -> tuple[Path, Path]:
    """The write-ahead log and its index."""
    return path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")


@contextmanager
def _read_only(path: Path) -> Iterator[sqlite3.Connection]:
    absent = [side for side in _sides(path) if not side.exists()]
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
    try:
        connection.text_factory = readable_text
        yield connection
    finally:
        connection.close()
        for side in absent:  # a reader makes its index of the log, and leaves it
            side.unlink(missing_ok=True)


def readable_text(text: bytes) -> str:
    """A damaged byte of text is not to keep a row from being read; what JSON makes of it, its reader sees."""
    return text.decode("utf-8", "replace")


def _version(path: Path, connection: sqlite3.Connection) -> int:
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    query = (
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY name"
    )
    tables = tuple(name for (name,) in connection.execute(query))
    if application == APPLICATION_ID and version > VERSION:
        raise DatabaseError(
            f"{path} has the schema version {version}, but this program knows {VERSION}; "
            "use the program that wrote it, or another --data-dir."
        )
    blank = (application, version, tables) == (0, 0, ())
    if not blank and (application != (APPLICATION_ID if version > 1 else 0) or tables != TABLES.get(version)):
        raise DatabaseError(
            f"{path} is not a database of this program (its schema version is {version}, and it has {len(tables)} "
            "tables); give --data-dir a folder of its own."
        )
    return version


def _check_rows(path: Path, connection: sqlite3.Connection, version: int) -> None:
    connection.row_factory = sqlite3.Row
    for table in (name for name in ("files", "jobs", "responses") if name in TABLES.get(version, ())):
        for row in connection.execute(f"SELECT * FROM {table} ORDER BY number"):
            try:
                _check_row(table, row)
            except (ValueError, TypeError):
                sentence = f"{path} is damaged (row {row['number']} of {table} cannot be right); {_REMEDY}"
                raise DatabaseError(sentence) from None


def _identity(path: Path, connection: sqlite3.Connection) -> Identity:
    stores = connection.execute("SELECT id, generation FROM store").fetchall()
    if len(stores) != 1 or not isinstance(stores[0]["generation"], int):
        raise DatabaseError(f"{path} is damaged (it names {len(stores)} stores, not one); {_REMEDY}")
    return Identity(str(stores[0]["id"]), stores[0]["generation"])


def _check_row(table: str, row: sqlite3.Row) -> None:
    """Whether it can be served; SQLite's check sees its form, not its values. Raises ValueError, TypeError."""
    ids: tuple[str | None, ...]
    if table == "responses":
        StoredResponse.of(row).check()
        ids = ()
    elif table == "files":
        file = StoredFile.of(row)
        FileObject.of(file)
        ids = (file.id,)
    else:
        job = Job.of(row)
        Batch.of(job, None)
        ids = (job.input_file_id, job.output_file_id, job.error_file_id)
        if not _JOB_ID.fullmatch(job.id):
            raise ValueError("the id of a job")
    if not all(one is None or FILE_ID.fullmatch(one) for one in ids):
        raise ValueError("the id of a file")


def _one_line(text: str) -> str:
    return " ".join(text.split())[:200].rstrip(".;")
