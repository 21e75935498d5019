"""Storage that refuses: which exceptions mean that a disk is full or broken, and what a client is told.

Every one of them is an OSError. SQLite has one class for a full disk and a mistyped query; its result codes tell them
apart, and what is left of its exceptions is a bug, which no patience mends.
"""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from inflight.server.errors import ApiError

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


class DamagedDatabase(OSError):
    """What is read is not what was written; it does not pass by waiting, but a person may mend it."""


def storage_fault(error: sqlite3.Error) -> OSError | None:
    """The same as an OSError, where it is the disk that refuses; None for a bug."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the rest says more exactly where
    if code in _DAMAGED:
        return DamagedDatabase(errno.EIO, str(error))
    if code not in _OF_THE_DISK:
        return None
    return OSError(errno.ENOSPC if code == sqlite3.SQLITE_FULL else errno.EIO, str(error))


@contextmanager
def disk_told() -> Iterator[None]:
    """What SQLite says of the disk is raised as an OSError."""
    try:
        yield
    except sqlite3.Error as error:
        if (fault := storage_fault(error)) is None:
            raise
        raise fault from error


def is_full(error: OSError) -> bool:
    return error.errno in _FULL


def storage_sentence(error: OSError) -> str:
    """What went wrong and what helps."""
    if is_full(error):
        return "The disk of the data directory is full; make room."
    if isinstance(error, DamagedDatabase):
        return (
            f"The database of the data directory is damaged ({error.strerror}); stop the server and restore "
            "batch.sqlite from a backup."
        )
    return f"The data directory cannot be read or written ({error}); check its disk."


def unavailable(error: OSError) -> ApiError:
    """507: the request was right, and may be sent again when there is room."""
    return ApiError(507, storage_sentence(error), type="server_error", code="storage_unavailable")


@contextmanager
def storage_told() -> Iterator[None]:
    """A refusal of the storage is the client's answer: raised as ApiError 507."""
    try:
        yield
    except OSError as error:
        raise unavailable(error) from None
