"""Storage that refuses: which exceptions mean that a disk is full or broken, and what a client is told."""

from __future__ import annotations

import errno
import sqlite3

from inflight.server.errors import ApiError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
StorageFault = (OSError, sqlite3.DatabaseError)


def storage_sentence(error: BaseException) -> str:
    """What went wrong and what helps."""
    if isinstance(error, sqlite3.DatabaseError):
        full = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL
    else:
        full = isinstance(error, OSError) and error.errno in _FULL
    if full:
        return "The disk of the data directory is full; make room."
    return f"The data directory cannot be read or written ({error}); check its disk."


def unavailable(error: BaseException) -> ApiError:
    """507: the request was right, and may be sent again when there is room."""
    return ApiError(507, storage_sentence(error), type="server_error", code="storage_unavailable")
