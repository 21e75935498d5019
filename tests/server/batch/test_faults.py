"""Which of SQLite's exceptions are the disk's, on a real database."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inflight.server.batch.database import Database
from inflight.server.batch.faults import storage_sentence, unavailable
from inflight.server.batch.reserve import Reserve

ROW = "INSERT INTO files (id, tenant, filename, purpose, bytes, created_at) VALUES ('a', 't', ?, 'batch', 1, 1)"


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(tmp_path / "batch.sqlite", Reserve(tmp_path / "reserve"))
    yield database
    database.close()


def run(database: Database, statement: str, *values: Any) -> Any:
    return asyncio.run(database.run(lambda connection: connection.execute(statement, values).fetchall()))


def test_a_full_disk(database: Database) -> None:
    ((pages,),) = run(database, "PRAGMA page_count")
    run(database, f"PRAGMA max_page_count={pages}")
    with pytest.raises(OSError) as full:
        run(database, ROW, "x" * 100_000)
    assert full.value.errno == errno.ENOSPC and isinstance(full.value.__cause__, sqlite3.OperationalError)
    assert storage_sentence(full.value) == "The disk of the data directory is full; make room."
    assert unavailable(full.value).status == 507
    assert run(database, "SELECT * FROM files") == []


def test_a_database_that_somebody_else_has_locked(database: Database, tmp_path: Path) -> None:
    asyncio.run(_without_patience(database))
    with contextlib.closing(sqlite3.connect(tmp_path / "batch.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(OSError, match="locked") as locked:
            run(database, ROW, "x")
        assert storage_sentence(locked.value).endswith("check its disk.")
        other.execute("ROLLBACK")
    run(database, ROW, "x")


async def _without_patience(database: Database) -> None:
    await database.run(lambda connection: connection.execute("PRAGMA busy_timeout=0"))


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        (ROW.replace("?", "NULL"), sqlite3.IntegrityError),
        ("SELECT nothing FROM files", sqlite3.OperationalError),
        ("SELECT ?", sqlite3.ProgrammingError),
    ],
)
def test_a_bug_stays_what_it_is(database: Database, statement: str, error: type[sqlite3.Error]) -> None:
    with pytest.raises(error):
        run(database, statement)
    run(database, ROW, "the next transaction is none the worse")
