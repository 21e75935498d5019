"""The folder of the sockets between the processes of one server, which only its user may enter.

The process that made it removes it at its end. A killed process cannot, but its lock on the folder ends with it: each
server removes the unlocked folders that it finds at its start. (Cleaners of old files leave a locked folder alone.)
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

MAX_PARENT = 78  # characters; the system's bound for a socket's path is 107
_PREFIX = "inflight-api-"


class FolderError(ValueError):
    """The folder cannot be made; the sentence says why."""


@contextlib.contextmanager
def private_folder() -> Iterator[Path]:
    """Make a private folder of temporary files, and remove it at the end. Raises FolderError."""
    parent = Path(tempfile.gettempdir())
    if len(str(parent)) > MAX_PARENT:
        raise FolderError(
            f"The folder of temporary files has a path of {len(str(parent))} characters ({parent}), and a socket in it "
            f"may have {MAX_PARENT} before its own name; set TMPDIR to a shorter one."
        )
    for left in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError), _locked(left):
            remove(left)
    folder, lock = _made(parent)
    try:
        yield folder
    finally:
        remove(folder)
        os.close(lock)


def remove(folder: Path) -> None:
    """Remove a folder with the sockets in it. One that holds anything else, or is another user's, stays."""
    with contextlib.suppress(OSError):
        for one in folder.iterdir():
            if one.is_socket():
                one.unlink()
        folder.rmdir()


def _made(parent: Path) -> tuple[Path, int]:
    """Return a new folder and its lock."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        with contextlib.suppress(OSError):  # who starts in the same moment has taken it for one that was left
            lock = _lock(folder)
            if folder.exists():
                return folder, lock
            os.close(lock)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Raises OSError if another process has locked it."""
    lock = _lock(folder)
    try:
        yield
    finally:
        os.close(lock)


def _lock(folder: Path) -> int:
    """Lock a folder; return the lock's descriptor. Raises OSError where another process has it."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(lock)
        raise
    return lock
