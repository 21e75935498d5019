"""Patience with storage: a disk that refuses is asked again, a bug is told at once."""

from __future__ import annotations

import asyncio
import errno
import sqlite3

import pytest

from inflight.server.batch.persistence import InputGone, Pause, Persistence


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
