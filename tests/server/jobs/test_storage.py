"""Disks that refuse: which errors are theirs, and how long they are tried again."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import sqlite3
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inflight.server.errors import ApiError
from inflight.server.jobs import storage
from inflight.server.jobs.storage import Pause, Retries, StorageError, storage_errors

from .rig import Rig, live

FULL = "The disk of the data directory is full; make room."
ROW = "INSERT INTO clock VALUES (?, '', 0)"


def refusing(number: int = errno.ENOSPC) -> StorageError:
    with pytest.raises(StorageError) as refused, storage_errors():
        raise OSError(number, "no")
    return refused.value


def test_the_log_has_one_line_a_minute_of_all_that_wait(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    seconds, reported = 1000.0, list[Pause | None]()
    monkeypatch.setattr(storage, "time", SimpleNamespace(monotonic=lambda: seconds, time=time.time))
    retries, is_full = Retries(reported.append, seconds=0.001), True

    async def work() -> None:
        if is_full:
            raise refusing()

    async def whole() -> None:
        nonlocal is_full, seconds
        for pause in range(2):  # the second one comes within the minute, and is not logged at once
            is_full = True
            waiting = [asyncio.create_task(retries.run(work)) for _ in range(64)]
            await asyncio.sleep(0.05)
            assert len(caplog.records) == (1, 3)[pause]
            seconds += 61 - 60 * pause
            await asyncio.sleep(0.05)
            assert len(caplog.records) == (2, 3)[pause]
            is_full = False
            await asyncio.gather(*waiting)
            assert len(caplog.records) == 3

    asyncio.run(whole())
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR", "WARNING"]
    assert "64 reads or writes wait" in caplog.records[1].getMessage()
    assert all(record.exc_info is None for record in caplog.records)
    assert [one is None for one in reported] == [False, True] * 2


def test_a_disk_is_tried_until_it_works() -> None:
    reported: list[Pause | None] = []
    retries = Retries(reported.append, seconds=0.001, now=lambda: 7.5)
    refusals, pauses = [refusing(errno.EIO), refusing()], list[Pause | None]()

    async def work() -> int:
        pauses.append(retries.pause)
        if refusals:
            raise refusals.pop()
        return 5

    assert asyncio.run(retries.run(work)) == 5
    full = Pause(FULL, 7)
    assert pauses == [None, full, full] and retries.pause is None and reported == [full, None]


@pytest.mark.parametrize(
    "bug",
    [TypeError("no"), sqlite3.IntegrityError("no"), sqlite3.OperationalError("no such column"), ApiError(404, "No.")],
)
def test_a_bug_is_not_tried_again_and_pauses_nothing(bug: Exception) -> None:
    reported: list[Pause | None] = []
    tries = 0

    async def work() -> None:
        nonlocal tries
        tries += 1
        with storage_errors():
            raise bug

    with pytest.raises(type(bug)):
        asyncio.run(Retries(reported.append, seconds=0.001).run(work))
    assert (tries, reported) == (1, [])


# -- a real database ----------------------------------------------------------------------------------------------
async def run(rig: Rig, statement: str, *values: Any) -> Any:
    return await rig.service._database.write(lambda connection: connection.execute(statement, values).fetchall())


def test_a_full_disk_a_locked_database_and_bugs(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        for statement, error in (
            (ROW.replace("?", "NULL"), sqlite3.IntegrityError),
            ("SELECT nothing FROM files", sqlite3.OperationalError),
            ("SELECT ?", sqlite3.ProgrammingError),
        ):
            with pytest.raises(error):
                await run(rig, statement)
        with contextlib.closing(sqlite3.connect(tmp_path / "batch.sqlite", isolation_level=None)) as other:
            await rig.service._database.read(lambda connection: connection.execute("PRAGMA busy_timeout=0").fetchall())
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StorageError, match=r"locked\); check its disk\.$") as locked:
                await run(rig, ROW, 1.0)
            assert locked.value.status == 507
            other.execute("ROLLBACK")
        ((pages,),) = await run(rig, "PRAGMA page_count")
        await run(rig, f"PRAGMA max_page_count={pages}")
        with pytest.raises(StorageError, match=FULL):
            await run(rig, ROW.replace("''", "hex(zeroblob(100000))"), 1.0)
        await run(rig, ROW, 2.0)  # the next transaction is none the worse
        assert [row[0] for row in await run(rig, "SELECT seconds FROM clock WHERE seconds > 1")] == [2.0]

    live(tmp_path, test, start=False)
