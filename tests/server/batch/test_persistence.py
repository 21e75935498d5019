"""Patience with storage: a disk that refuses is asked again, a bug is told at once."""

from __future__ import annotations

import asyncio
import errno
import logging
import sqlite3
import time
from types import SimpleNamespace

import pytest

from inflight.server.batch import persistence
from inflight.server.batch.persistence import InputGone, Pause, Persistence


def test_the_log_has_one_line_a_minute_of_all_that_wait(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    seconds = 1000.0
    monkeypatch.setattr(persistence, "time", SimpleNamespace(monotonic=lambda: seconds, time=time.time))
    storage, full = Persistence(retry_seconds=0.001), True

    async def work() -> None:
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")

    async def whole() -> None:
        nonlocal full, seconds
        for pause in range(2):  # the second one comes within the minute, and is not told at once
            full = True
            waiting = [asyncio.create_task(storage.durably(work)) for _ in range(64)]
            await asyncio.sleep(0.05)
            assert len(caplog.records) == (1, 3)[pause]
            seconds += 61 - 60 * pause
            await asyncio.sleep(0.05)
            assert len(caplog.records) == (2, 3)[pause]
            full = False
            await asyncio.gather(*waiting)
            assert len(caplog.records) == 3

    asyncio.run(whole())
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR", "WARNING"]
    assert "64 reads or writes wait" in caplog.records[1].getMessage()
    assert all(record.exc_info is None for record in caplog.records)


def test_a_disk_is_asked_until_it_gives_in() -> None:
    storage = Persistence(retry_seconds=0.001, now=lambda: 7.5)
    refusals = [OSError(errno.EIO, "I/O error"), OSError(errno.ENOSPC, "No space left on device")]
    pauses: list[Pause | None] = []

    async def work() -> int:
        pauses.append(storage.paused)
        if refusals:
            raise refusals.pop()
        return 5

    assert asyncio.run(storage.durably(work)) == 5
    full = Pause("The disk of the data directory is full; make room.", 7)
    assert pauses == [None, full, full] and storage.paused is None and storage.changed.is_set()


@pytest.mark.parametrize(
    "bug", [TypeError("no"), sqlite3.IntegrityError("no"), sqlite3.OperationalError("no such column"), InputGone("no")]
)
def test_a_bug_is_not_asked_again_and_pauses_nothing(bug: Exception) -> None:
    storage, tries = Persistence(retry_seconds=0.001), 0

    async def work() -> None:
        nonlocal tries
        tries += 1
        if tries > 3:
            return
        raise bug

    with pytest.raises(type(bug)):
        asyncio.run(storage.durably(work))
    assert (tries, storage.paused, storage.changed.is_set()) == (1, None, False)
