"""One SQLite connection in a thread of its own. Knows transactions, durability and the schema's version; no queries."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from inflight.server.batch.faults import storage_fault

T = TypeVar("T")

VERSION = 1
SCHEMA = """
CREATE TABLE files (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    filename TEXT NOT NULL,
    purpose TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    created_at INTEGER NOT NULL
);
CREATE INDEX files_of_tenant ON files (tenant, number);
CREATE TABLE jobs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    endpoint TEXT NOT NULL,
    input_file_id TEXT NOT NULL,
    completion_window TEXT NOT NULL,
    metadata TEXT NOT NULL,
    status TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    in_progress_at INTEGER,
    finalizing_at INTEGER,
    completed_at INTEGER,
    failed_at INTEGER,
    expired_at INTEGER,
    cancelling_at INTEGER,
    cancelled_at INTEGER,
    output_file_id TEXT,
    error_file_id TEXT,
    total INTEGER NOT NULL DEFAULT 0,
    completed INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    errors TEXT NOT NULL DEFAULT '[]'
);
CREATE INDEX jobs_of_tenant ON jobs (tenant, number);
CREATE INDEX jobs_by_status ON jobs (status);
CREATE TABLE answers (
    job INTEGER NOT NULL REFERENCES jobs (number),
    line INTEGER NOT NULL,
    custom_id TEXT,
    status INTEGER,
    payload TEXT NOT NULL,
    PRIMARY KEY (job, line)
);
"""


class DatabaseError(ValueError):
    """The database cannot be used; the sentence says why."""


class Database:
    def __init__(self, path: Path):
        """Raises DatabaseError. The path's folder must be this process's alone."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="inflight-batch-store")
        try:
            self._connection = self._thread.submit(_connect, path).result()
        except BaseException:
            self._thread.shutdown()
            raise

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """`work` in a transaction: on return it is on the disk, after an exception it has not happened.

        Raises OSError where the disk refuses, and what `work` raises.
        """
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._transact, work)

    def run_now(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """The same for who has no event loop; waits."""
        return self._thread.submit(self._transact, work).result()

    def close(self) -> None:
        """Ends what was handed in first."""
        self._thread.submit(self._connection.close).result()
        self._thread.shutdown()

    def _transact(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return self._committed(work)
        except sqlite3.Error as error:
            if (fault := storage_fault(error)) is not None:
                raise fault from error
            raise

    def _committed(self, work: Callable[[sqlite3.Connection], T]) -> T:
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            result = work(connection)
            connection.execute("COMMIT")
            return result
        except BaseException:
            if connection.in_transaction:  # SQLite takes some failures back by itself
                connection.execute("ROLLBACK")
            raise


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.row_factory = sqlite3.Row
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")  # a commit that returned survives a power cut
        connection.execute("PRAGMA foreign_keys=ON")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == 0:
            connection.executescript(f"BEGIN IMMEDIATE; {SCHEMA} PRAGMA user_version={VERSION}; COMMIT;")
        elif version != VERSION:
            raise DatabaseError(
                f"{path} has the schema version {version}, but this program knows {VERSION}; "
                "use the program that wrote it, or another --data-dir."
            )
    except sqlite3.Error as error:
        connection.close()
        raise DatabaseError(f"{path} cannot be used as a database: {error}; use another --data-dir.") from None
    except BaseException:
        connection.close()
        raise
    return connection
