"""The SQLite database of files, jobs, answers and stored responses: its tables, its check at the start, transactions.

Every API process of a server has a connection of its own (write-ahead log, `synchronous=FULL`: a commit that returned
survives a power cut). Writes that wait share one commit.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from inflight.private_files import open_private
from inflight.server.jobs.storage import (
    DataDirectoryError,
    Reserve,
    StorageError,
    damaged_database,
    storage_errors,
)

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

VERSION = 4  # PRAGMA user_version
APPLICATION_ID = 0x696E666C  # PRAGMA application_id, from version 2 on
SIDES = ("-wal", "-shm", "-journal")  # suffixes of SQLite's own files beside a database
_BUSY_SECONDS = 10.0  # that a transaction waits for one of another process
_HEADER = b"SQLite format 3\0"
_REMEDY = "restore it from a backup, or use another --data-dir."
_OLD_TABLES = {
    1: {"answers", "files", "jobs"},
    2: {"answers", "files", "jobs", "leftovers", "store"},
    3: {"answers", "files", "jobs", "leftovers", "response_usage", "responses", "store"},
}


def _is_id(column: str, prefix: str) -> str:
    """Return an SQL condition: the prefix and 32 hexadecimal digits."""
    digits = f"substr({column}, {len(prefix) + 1})"
    return f"{column} GLOB '{prefix}*' AND length({digits}) = 32 AND {digits} NOT GLOB '*[^0-9a-f]*'"


# files.state: `writing` from the first byte until all of the content is on the disk, `deleting` until it is removed;
# process: the id of the process that does so. begun: lines in flight, and how many unclean ends each has seen.
# due: seconds of the clock, see `clock`.
_TABLES = f"""
CREATE TABLE files (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE CHECK ({_is_id("id", "file-")}),
    tenant TEXT NOT NULL,
    filename TEXT NOT NULL,
    purpose TEXT NOT NULL CHECK (purpose IN ('batch', 'batch_output')),
    bytes INTEGER NOT NULL CHECK (bytes >= 0),
    created_at INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('writing', 'stored', 'deleting')),
    process INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX files_of_tenant ON files (tenant, number);
CREATE INDEX files_by_size ON files (tenant, state, bytes);
CREATE TABLE jobs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE CHECK ({_is_id("id", "batch_")}),
    tenant TEXT NOT NULL,
    endpoint TEXT NOT NULL,
    input_file_id TEXT NOT NULL CHECK ({_is_id("input_file_id", "file-")}),
    completion_window TEXT NOT NULL,
    metadata TEXT NOT NULL CHECK (json_type(metadata) IN ('object', 'null')),
    status TEXT NOT NULL CHECK (status IN ('validating', 'in_progress', 'finalizing', 'cancelling',
                                           'completed', 'failed', 'expired', 'cancelled')),
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    in_progress_at INTEGER,
    finalizing_at INTEGER,
    completed_at INTEGER,
    failed_at INTEGER,
    expired_at INTEGER,
    cancelling_at INTEGER,
    cancelled_at INTEGER,
    output_file_id TEXT CHECK ({_is_id("output_file_id", "file-")}),
    error_file_id TEXT CHECK ({_is_id("error_file_id", "file-")}),
    total INTEGER NOT NULL DEFAULT 0,
    completed INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    errors TEXT NOT NULL DEFAULT '[]' CHECK (json_type(errors) = 'array'),
    due REAL NOT NULL,
    model TEXT,
    input_tokens INTEGER NOT NULL DEFAULT 0,
    cached_tokens INTEGER NOT NULL DEFAULT 0,
    output_tokens INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX jobs_of_tenant ON jobs (tenant, number);
CREATE INDEX jobs_by_status ON jobs (status);
CREATE TABLE answers (
    job INTEGER NOT NULL REFERENCES jobs (number),
    line INTEGER NOT NULL,
    custom_id TEXT,
    status INTEGER,
    payload TEXT NOT NULL,
    PRIMARY KEY (job, line)
) STRICT;
CREATE TABLE begun (
    job INTEGER NOT NULL REFERENCES jobs (number),
    line INTEGER NOT NULL,
    ends INTEGER NOT NULL,
    in_flight INTEGER NOT NULL,
    PRIMARY KEY (job, line)
) STRICT, WITHOUT ROWID;
CREATE TABLE clock (
    seconds REAL NOT NULL,
    boot TEXT NOT NULL,
    boot_seconds REAL NOT NULL
) STRICT;
CREATE TABLE responses (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    due REAL NOT NULL,
    bytes INTEGER NOT NULL,
    response TEXT NOT NULL CHECK (json_extract(response, '$.id') = id AND json_type(response, '$.output') = 'array'),
    input_items TEXT NOT NULL CHECK (json_type(input_items) = 'array'),
    UNIQUE (tenant, id)
) STRICT;
CREATE INDEX responses_of_tenant ON responses (tenant, number);
CREATE INDEX responses_by_due ON responses (due);
CREATE TABLE response_usage (
    tenant TEXT PRIMARY KEY,
    bytes INTEGER NOT NULL
) STRICT;
CREATE TRIGGER response_came AFTER INSERT ON responses BEGIN
    INSERT INTO response_usage (tenant, bytes) VALUES (new.tenant, new.bytes)
        ON CONFLICT (tenant) DO UPDATE SET bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER response_went AFTER DELETE ON responses BEGIN
    UPDATE response_usage SET bytes = bytes - old.bytes WHERE tenant = old.tenant;
END;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {VERSION};
"""
TABLES = {"answers", "begun", "clock", "files", "jobs", "response_usage", "responses"}


# -- the start of a server, which has the folder to itself -----------------------------------------------------------
def create(path: Path) -> None:
    """Make the database; one that is there under this name is always whole. Raises OSError, StorageError."""
    new = path.with_name(f"{path.name}.new")
    for old in (new, *(new.with_name(new.name + side) for side in SIDES)):
        old.unlink(missing_ok=True)
    with open(new, "xb", opener=open_private):  # SQLite would let others read it; side files take its mode
        pass
    with storage_errors(), closing(_writing(new)) as connection:
        connection.executescript(f"BEGIN; {_TABLES} INSERT INTO clock VALUES (0, '', 0); COMMIT;")
    descriptor = os.open(new, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    new.rename(path)


def check(path: Path) -> int:
    """Read the whole database, and leave no trace.

    Returns:
        The version of its tables.

    Raises:
        DataDirectoryError: It is damaged, of a later version, or of another program.
        StorageError: The disk refuses, also for want of room.
    """
    with path.open("rb") as file:
        if file.read(len(_HEADER)) != _HEADER:
            raise DataDirectoryError(
                f"{path} is damaged or no database: its first {len(_HEADER)} bytes are wrong; {_REMEDY}"
            )
    try:
        with storage_errors(), _without_trace(path), closing(_connected(path, "ro")) as reader:
            version = _version(path, reader)
            # CHECK constraints are checked where one may write. It is not the last one to close, which would bring the
            # log in. Indexes, too, which `quick_check` leaves out: a job that an index lacks is a job that is lost.
            with closing(_connected(path, "rw")) as connection:
                connection.execute("PRAGMA query_only=ON")
                first = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
    except (StorageError, sqlite3.Error) as error:
        if isinstance(error, StorageError) and not error.is_damage:
            raise
        why = _one_line(str(error.__cause__ or error))
        raise DataDirectoryError(f"{path} cannot be used as a database ({why}); {_REMEDY}") from None
    if first != "ok":
        raise DataDirectoryError(f"{path} is damaged ({_one_line(first)}); {_REMEDY}")
    return version


def upgrade(path: Path, version: int) -> None:
    """Make the tables of an earlier version, whole or not at all, those of today. Raises DataDirectoryError."""
    if version == VERSION:
        return
    try:
        with storage_errors(), closing(_writing(path)) as connection:
            connection.execute("PRAGMA foreign_keys=OFF")
            connection.executescript(f"BEGIN IMMEDIATE; {_upgrade_script(connection, version)} COMMIT;")
    except sqlite3.Error as error:  # a CHECK constraint: the disk's errors are others
        raise DataDirectoryError(f"{path} is damaged ({_one_line(str(error))}); {_REMEDY}") from None


def _upgrade_script(connection: sqlite3.Connection, version: int) -> str:
    """Return SQL that moves the rows of an earlier version into tables of today. Which lines were in flight is lost."""
    rows = connection.execute("SELECT type, name FROM sqlite_master WHERE type != 'table' AND sql IS NOT NULL")
    parts = [f"DROP {kind} {name};" for kind, name in rows.fetchall()]
    tables = sorted(_OLD_TABLES[version] & TABLES - {"response_usage"})  # answers before jobs, which they refer to
    parts += [f"ALTER TABLE {name} RENAME TO old_{name};" for name in tables]
    if version == 3:
        parts.append("DROP TABLE response_usage;")
    parts.append(_TABLES)
    more = {"files": [("state", "'stored'")], "jobs": [("due", "expires_at - created_at")] if version == 1 else []}
    for name in reversed(tables):
        columns = [(row["name"], row["name"]) for row in connection.execute(f"PRAGMA table_info({name})")]
        columns += more.get(name, [])
        names, values = (", ".join(one[side] for one in columns) for side in (0, 1))
        parts.append(f"INSERT INTO {name} ({names}) SELECT {values} FROM old_{name};")
    parts += [f"DROP TABLE old_{name};" for name in tables]
    if version == 1:
        return "".join([*parts, "INSERT INTO clock VALUES (0, '', 0);"])
    parts.append(
        "INSERT OR IGNORE INTO files (id, tenant, filename, purpose, bytes, created_at, state)"
        " SELECT id, '', '', 'batch', 0, 0, kind FROM leftovers;"
        "INSERT INTO clock SELECT seconds, boot, boot_seconds FROM store; DROP TABLE leftovers; DROP TABLE store;"
    )
    return "".join(parts)


@contextmanager
def _without_trace(path: Path) -> Iterator[None]:
    """Remove the files that readers make beside a database, and leave."""
    absent = [side for side in (path.with_name(path.name + one) for one in SIDES) if not side.exists()]
    try:
        yield
    finally:
        for side in absent:
            side.unlink(missing_ok=True)


def _version(path: Path, connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
    tables = {name for (name,) in connection.execute(query)}
    if application == APPLICATION_ID and version > VERSION:
        raise DataDirectoryError(
            f"{path} has the schema version {version}, but this program knows {VERSION}; "
            "use the program that wrote it, or another --data-dir."
        )
    expected = (APPLICATION_ID if version > 1 else 0, {**_OLD_TABLES, VERSION: TABLES}.get(version))
    if (application, tables) != expected:
        raise DataDirectoryError(
            f"{path} is not a database of this program (its schema version is {version}, and it has {len(tables)} "
            "tables); give --data-dir a folder of its own."
        )
    return int(version)


def _one_line(text: str) -> str:
    return " ".join(text.split())[:200].rstrip(".;")


# -- connections -----------------------------------------------------------------------------------------------------
def _connected(path: Path, mode: str) -> sqlite3.Connection:
    """mode: ro or rw."""
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=_BUSY_SECONDS)
    connection.row_factory = sqlite3.Row
    connection.text_factory = _text
    return connection


def _writing(path: Path) -> sqlite3.Connection:
    connection = _connected(path, "rw")
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA foreign_keys=ON")
    connection.execute(f"PRAGMA journal_size_limit={16 << 20}")
    return connection


def _text(text: bytes) -> str:
    """Decode text of which a damaged byte must not keep the row from being read."""
    return text.decode("utf-8", "replace")


class Database:
    """A connection in a thread of its own. Every method raises StorageError where the disk refuses."""

    def __init__(self, path: Path, reserve: Reserve):
        self._path, self._reserve = path, reserve
        self._writes: deque[tuple[Work[Any], Future[Any]]] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="inflight-jobs")
        try:
            self._thread.submit(self._connect).result()
        except BaseException:
            self._thread.shutdown()
            raise

    async def read(self, work: Work[T]) -> T:
        """Run `work` on one state of the database."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._transact, "BEGIN", work)

    async def write(self, work: Work[T]) -> T:
        """Run `work`: on return what it wrote is on the disk, after an exception it has not happened.

        Works that wait share a transaction; one that fails is taken out of it.
        """
        outcome: Future[T] = Future()
        self._writes.append((work, outcome))
        self._thread.submit(self._write_waiting)
        return await asyncio.wrap_future(outcome)

    async def write_on_full_disk(self, work: Work[T]) -> T:
        """Write what makes room: where the disk is full, the reserve is released for it."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._write_with_reserve, work)

    def write_now(self, work: Work[T]) -> T:
        """`write` where there is no event loop; waits."""
        return self._thread.submit(self._transact, "BEGIN IMMEDIATE", work).result()

    def close(self) -> None:
        """Finish what waits first."""
        self._thread.submit(lambda: self._connection.close()).result()
        self._thread.shutdown()

    # -- in the thread -----------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        with storage_errors():
            try:
                self._connection = _writing(self._path)
            except sqlite3.OperationalError:  # for want of room: the index of the log takes 32 KiB
                self._reserve.release()
                self._connection = _writing(self._path)
                self._reserve.restore()
            self._file = self._file_now()

    def _file_now(self) -> tuple[int, int]:
        found = os.stat(self._path)
        return found.st_dev, found.st_ino

    def _check_file(self) -> None:
        """SQLite goes on without an error in a file that was removed, and all would be lost."""
        try:
            is_same = self._file_now() == self._file
        except FileNotFoundError:
            is_same = False
        if not is_same:
            raise damaged_database(f"{self._path.name} was removed or replaced while the server runs")

    def _transact(self, begin: str, work: Work[T]) -> T:
        connection = self._connection
        with storage_errors():
            self._check_file()
            connection.execute(begin)
            try:
                result = work(connection)
                connection.execute("COMMIT")
                return result
            finally:
                if connection.in_transaction:  # SQLite itself takes some failures back
                    connection.execute("ROLLBACK")

    def _write_waiting(self) -> None:
        waiting = []
        while self._writes:
            work, outcome = self._writes.popleft()
            if outcome.set_running_or_notify_cancel():
                waiting.append((work, outcome))
        if not waiting:  # a call before this one has written them
            return
        try:
            results = self._transact(
                "BEGIN IMMEDIATE", lambda connection: [_tried(work, connection) for work, _ in waiting]
            )
        except BaseException as error:
            for _, outcome in waiting:
                outcome.set_exception(error)
            return
        for (_, outcome), (result, failure) in zip(waiting, results, strict=True):
            outcome.set_result(result) if failure is None else outcome.set_exception(failure)

    def _write_with_reserve(self, work: Work[T]) -> T:
        """In one piece, so that no other write of this process takes the room."""
        try:
            return self._transact("BEGIN IMMEDIATE", work)
        except StorageError as error:
            if error.is_damage:
                raise
            with storage_errors():
                self._reserve.release()
            return self._transact("BEGIN IMMEDIATE", work)
        finally:
            self._reserve.restore()


def _tried(work: Work[T], connection: sqlite3.Connection) -> tuple[T | None, Exception | None]:
    """Run one of several works of a transaction: its result, or why nothing of it was done."""
    connection.execute("SAVEPOINT work")
    try:
        with storage_errors():
            return work(connection), None
    except Exception as error:
        if not connection.in_transaction:  # a full disk ends the transaction, and all works fail by it
            raise
        connection.execute("ROLLBACK TO work")
        return None, error
    finally:
        if connection.in_transaction:
            connection.execute("RELEASE work")
