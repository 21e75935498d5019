"""The SQLite database of files, jobs, answers and stored responses: its check at the start, and transactions.

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
from inflight.server.jobs.schema import APPLICATION_ID, CREATE, OLD_TABLES, TABLES, VERSION, upgrade_script
from inflight.server.jobs.storage import (
    DataDirectoryError,
    Reserve,
    StorageError,
    damaged_database,
    storage_errors,
)

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

SIDES = ("-wal", "-shm", "-journal")  # suffixes of SQLite's own files beside a database
_BUSY_SECONDS = 10.0  # that a transaction waits for one of another process
_HEADER = b"SQLite format 3\0"
_REMEDY = "restore it from a backup, or use another --data-dir."


# -- the start of a server, which has the folder to itself -----------------------------------------------------------
def create(path: Path) -> None:
    """Make the database; one that is there under this name is always whole. Raises OSError, StorageError."""
    new = path.with_name(f"{path.name}.new")
    for old in (new, *(new.with_name(new.name + side) for side in SIDES)):
        old.unlink(missing_ok=True)
    with open(new, "xb", opener=open_private):  # SQLite would let others read it; side files take its mode
        pass
    with storage_errors(), closing(_writing(new)) as connection:
        connection.executescript(f"BEGIN; {CREATE} INSERT INTO clock VALUES (0, '', 0); COMMIT;")
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
    except (StorageError, sqlite3.Error, UnicodeDecodeError) as error:  # a damaged schema may be no UTF-8
        if isinstance(error, StorageError) and not error.is_damage:
            raise
        why = "malformed schema" if isinstance(error, UnicodeDecodeError) else _one_line(str(error.__cause__ or error))
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
            connection.executescript(f"BEGIN IMMEDIATE; {upgrade_script(connection, version)} COMMIT;")
    except sqlite3.Error as error:  # a CHECK constraint: the disk's errors are others
        raise DataDirectoryError(f"{path} is damaged ({_one_line(str(error))}); {_REMEDY}") from None


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
    expected = (APPLICATION_ID if version > 1 else 0, {**OLD_TABLES, VERSION: TABLES}.get(version))
    if (application, tables) != expected:
        raise DataDirectoryError(
            f"{path} is not a database of this program (its schema version is {version}, and it has {len(tables)} "
            "tables); give --data-dir a folder of its own."
        )
    if version == VERSION:
        with closing(sqlite3.connect(":memory:")) as made:
            made.executescript(CREATE)
            if _schema(made) != _schema(connection):
                raise DataDirectoryError(f"{path} is damaged (its schema is not that of version {version}); {_REMEDY}")
    return int(version)


def _schema(connection: sqlite3.Connection) -> set[tuple[str, ...]]:
    return {tuple(row) for row in connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master")}


def _one_line(text: str) -> str:
    return " ".join(text.split())[:200].rstrip(".;")


# -- connections -----------------------------------------------------------------------------------------------------
def _connected(path: Path, mode: str) -> sqlite3.Connection:
    """Connect to the database. mode: ro or rw."""
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
        """Write with the reserve's room, in one piece, so that no other write of this process takes that room."""
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
