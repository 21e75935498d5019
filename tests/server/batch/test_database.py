"""The database's thread: checkpoints, generations, and what failed commits leave behind."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import shutil
import sqlite3
from pathlib import Path

import pytest

from inflight.server.batch.checking import inspect
from inflight.server.batch.database import LOG_BYTES, Database
from inflight.server.batch.log_check import lost_commits
from inflight.server.batch.marker import Identity
from inflight.server.batch.reserve import Reserve

LARGE = LOG_BYTES + 1


class Marker:
    """Is told of generations, unless it refuses."""

    def __init__(self) -> None:
        self.told: list[int] = []
        self.refuses = False

    def write(self, identity: Identity) -> None:
        if self.refuses:
            raise OSError(errno.ENOSPC, "full")
        self.told.append(identity.generation)


def opened(folder: Path, marker: Marker) -> Database:
    return Database(folder / "batch.sqlite", Reserve(folder / "reserve"), marker.write)


def keep(database: Database, length: int = 1) -> None:
    query = "INSERT INTO files (id, tenant, filename, purpose, bytes, created_at) VALUES (?, 't', ?, 'batch', 1, 1)"

    def work(connection: sqlite3.Connection) -> None:
        (count,) = connection.execute("SELECT count(*) FROM files").fetchone()
        connection.execute(query, (f"file-{count:032x}", "x" * length))

    database.run_now(work)


def rows(database: Database) -> int:
    return int(database.run_now(lambda connection: connection.execute("SELECT count(*) FROM files").fetchone()[0]))


def generation_without_log(folder: Path) -> int:
    shutil.copy(folder / "batch.sqlite", folder / "alone.sqlite")
    with contextlib.closing(sqlite3.connect(folder / "alone.sqlite")) as alone:
        return int(alone.execute("SELECT generation FROM store").fetchone()[0])


def test_a_marker_that_could_not_be_written_is_written_with_the_next_transaction(tmp_path: Path) -> None:
    """Until then the loss of the log, with what is promised in it, would not be noticed."""
    marker = Marker()
    database = opened(tmp_path, marker)
    marker.refuses = True
    keep(database, LARGE)
    assert marker.told == [1] and generation_without_log(tmp_path) == 1
    marker.refuses = False
    keep(database)
    assert generation_without_log(tmp_path) < marker.told[-1]
    told = len(marker.told)
    keep(database)
    assert len(marker.told) == told, "once is enough"
    database.close()


def test_who_reads_the_database_keeps_nobody_waiting(tmp_path: Path) -> None:
    marker = Marker()
    database = opened(tmp_path, marker)
    statements: list[str] = []
    database.run_now(lambda connection: connection.set_trace_callback(statements.append))
    with contextlib.closing(sqlite3.connect(tmp_path / "batch.sqlite", isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM files").fetchall()
        for _ in range(3):
            keep(database, LARGE)
        tries = [number for number, one in enumerate(statements) if "wal_checkpoint" in one]
        assert len(tries) == 1 and statements[tries[0] - 1] == "PRAGMA busy_timeout=0", "not again for a while"
        assert marker.told == [1, 2], "some of the log may have been brought in"
    assert database.run_now(lambda connection: connection.execute("PRAGMA busy_timeout").fetchone()[0]) == 5000
    database._not_before = 0.0
    keep(database)
    assert (tmp_path / "batch.sqlite-wal").stat().st_size < LOG_BYTES
    database.close()


def test_a_whole_reserve_costs_no_checkpoint(tmp_path: Path) -> None:
    database, log = opened(tmp_path, Marker()), tmp_path / "batch.sqlite-wal"
    asyncio.run(database.restore_reserve())
    keep(database, LARGE // 2)
    before = log.stat().st_size
    asyncio.run(database.restore_reserve())
    assert log.stat().st_size == before > LOG_BYTES // 4
    (tmp_path / "reserve").unlink()
    asyncio.run(database.restore_reserve())
    assert log.stat().st_size < LOG_BYTES // 4 and Reserve(tmp_path / "reserve").is_whole
    database.close()


def test_what_failed_commits_left_in_the_log_is_not_taken_for_lost(tmp_path: Path) -> None:
    database = opened(tmp_path, Marker())
    for _ in range(5):
        keep(database)
    log, index = tmp_path / "batch.sqlite-wal", tmp_path / "batch.sqlite-shm"
    whole = log.read_bytes()
    # Four commits whose frames were written, and then not made durable.
    frame = bytes(3) + b"\1" + bytes(3) + b"\1" + whole[16:24] + bytes(8 + 4096)
    log.write_bytes(whole + 4 * frame)
    assert lost_commits(log, index) > 0

    def fails(connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA max_page_count=1")
        connection.execute("INSERT INTO leftovers SELECT hex(randomblob(9000)), 'writing' FROM files")

    with pytest.raises(OSError, match="full"):
        database.run_now(fails)
    assert lost_commits(log, index) == 0 and rows(database) == 5
    database.run_now(lambda connection: connection.execute("PRAGMA max_page_count=100000"))
    keep(database)
    assert lost_commits(log, index) == 0 and rows(database) == 6
    database.close()
    found = inspect(tmp_path / "batch.sqlite").identity
    assert found is not None and found.generation == 2, "the log was emptied once"
