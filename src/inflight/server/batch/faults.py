"""Storage that refuses: which exceptions mean that a disk is full or broken, and what a client is told.

Every one of them is an OSError. SQLite has one class for a full disk and a mistyped query; its result codes tell them
apart, and what is left of its exceptions is a bug, which no patience mends.
"""

from __future__ import annotations

import errno
import sqlite3

from inflight.server.errors import ApiError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_OF_THE_DISK = (
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
)


def storage_fault(error: sqlite3.Error) -> OSError | None:
    """The same as an OSError, where it is the disk that refuses; None for a bug."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the rest says more exactly where
    if code not in _OF_THE_DISK:
        return None
    return OSError(errno.ENOSPC if code == sqlite3.SQLITE_FULL else errno.EIO, str(error))


def storage_sentence(error: OSError) -> str:
    """What went wrong and what helps."""
    if error.errno in _FULL:
        return "The disk of the data directory is full; make room."
    return f"The data directory cannot be read or written ({error}); check its disk."


def unavailable(error: OSError) -> ApiError:
    """507: the request was right, and may be sent again when there is room."""
    return ApiError(507, storage_sentence(error), type="server_error", code="storage_unavailable")
