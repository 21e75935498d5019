"""Errors of the data directory's disk, and retries until it works again: a full disk pauses jobs, and ends none."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

from inflight.private_files import open_private
from inflight.server.errors import ApiError

T = TypeVar("T")

OPEN = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
LOG_SECONDS = 60.0  # between two lines of the log about one pause
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_OF_THE_DISK = (
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_PERM,
)

log = logging.getLogger(__name__)


class DataDirectoryError(ValueError):
    """The data directory cannot be used; the sentence says why."""


class StorageError(ApiError):
    """The disk refuses a read or a write, or the database is damaged. The request may be sent again later."""

    def __init__(self, sentence: str, *, is_damage: bool = False):
        super().__init__(507, sentence, type="server_error", code="storage_unavailable")
        self.is_damage = is_damage


@contextmanager
def storage_errors() -> Iterator[None]:
    """Raise what the disk refuses as StorageError. Other errors of SQLite are bugs, and pass."""
    try:
        yield
    except OSError as error:
        raise _of_os(error) from error
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the primary code; the upper bits narrow it down
        if code in _DAMAGED:
            raise damaged_database(str(error)) from error
        if code not in _OF_THE_DISK:
            raise
        full = errno.ENOSPC if code == sqlite3.SQLITE_FULL else errno.EIO
        raise _of_os(OSError(full, str(error))) from error


def is_full(error: OSError) -> bool:
    return error.errno in _FULL


def damaged_database(why: str) -> StorageError:
    remedy = "stop the server and restore batch.sqlite from a backup"
    return StorageError(f"The database of the data directory is damaged ({why}); {remedy}.", is_damage=True)


def _of_os(error: OSError) -> StorageError:
    if is_full(error):
        return StorageError("The disk of the data directory is full; make room.")
    return StorageError(f"The data directory cannot be read or written ({error}); check its disk.")


class Pause(NamedTuple):
    """Why jobs do not run. since: whole seconds of the wall clock."""

    reason: str
    since: int


class Retries:
    """Repeats reads and writes of jobs while the disk refuses them."""

    def __init__(self, report: Callable[[Pause | None], None], *, seconds: float, now: Callable[[], float] = time.time):
        """
        Args:
            report: Receives the pause of all jobs when it begins, and None when it ends.
            seconds: Between two tries.
            now: Seconds of the wall clock.
        """
        self._report, self._seconds, self._now = report, seconds, now
        self._waiting = 0
        self._logged_at = -LOG_SECONDS  # seconds of the monotonic clock
        self._is_logged = False
        self.pause: Pause | None = None

    async def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Await `work()` until the disk does it. Raises whatever is no StorageError."""
        is_waiting = False
        try:
            while True:
                try:
                    return await work()
                except StorageError as error:
                    self._waiting += not is_waiting
                    is_waiting = True
                    self._begin_pause(error.message)
                await self.wait()
        finally:
            if is_waiting:
                self._waiting -= 1
                if not self._waiting:
                    self._end_pause()

    async def wait(self) -> None:
        """Sleep between two tries."""
        await asyncio.sleep(self._seconds)

    def _begin_pause(self, reason: str) -> None:
        if self.pause is None:
            self.pause = Pause(reason, int(self._now()))
            self._report(self.pause)
        if time.monotonic() - self._logged_at >= LOG_SECONDS:  # one line for all that wait
            self._logged_at, self._is_logged = time.monotonic(), True
            log.error("batch jobs are paused, %d reads or writes wait: %s", self._waiting, reason)

    def _end_pause(self) -> None:
        self.pause = None
        self._report(None)
        if self._is_logged:
            self._is_logged = False
            log.warning("batch jobs go on: the data directory can be read and written again")


class Reserve:
    """Room on the disk that is held back: to delete a file takes a transaction, which takes room."""

    BYTES = 4 << 20
    _HEAD = b"Room that the server gives up when the disk is full, so that files can be deleted.\n"

    def __init__(self, path: Path):
        self.path = path

    def is_ours(self) -> bool:
        """Whether nothing else is under its name."""
        try:
            with open(os.open(self.path, OPEN), "rb") as file:
                content = file.read(self.BYTES + 1)
        except OSError:
            return not os.path.lexists(self.path)
        expected = self._HEAD + bytes(max(0, len(content) - len(self._HEAD)))
        return len(content) <= self.BYTES and expected.startswith(content)

    def release(self) -> None:
        """Free its room. Raises OSError."""
        with suppress(FileNotFoundError):
            if self.is_ours():
                os.truncate(self.path, min(len(self._HEAD), self.path.stat().st_size))

    def restore(self) -> None:
        """Take the room, or as much as there is."""
        with suppress(OSError):
            if (os.path.lexists(self.path) and self.path.lstat().st_blocks * 512 >= self.BYTES) or not self.is_ours():
                return
            with open(self.path, "ab", opener=open_private):
                pass
            with open(os.open(self.path, OPEN), "r+b", buffering=0) as file:
                file.write(self._HEAD)
                for start in range(0, self.BYTES, self.BYTES // 16):
                    os.posix_fallocate(file.fileno(), start, self.BYTES // 16)
