"""The folder of the sockets between the processes of one server: nobody else may enter it.

It goes with the process that made it. One that is killed cannot remove it: its lock, which the folder itself bears,
goes with it, so whoever makes a folder removes those that bear none. (While it does, cleaners of old files leave the
folder alone, too.)
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

MOST_PARENT = 78  # characters; the system's bound for a socket's path is 107
_PREFIX = "inflight-api-"


class FolderError(ValueError):
    """There is no place for it; the sentence says why."""


@contextlib.contextmanager
def private_folder() -> Iterator[Path]:
    """Raises FolderError."""
    parent = Path(tempfile.gettempdir())
    if len(str(parent)) > MOST_PARENT:
        raise FolderError(
            f"The folder of temporary files has a path of {len(str(parent))} characters ({parent}), and a socket in it "
            f"may have {MOST_PARENT} before its own name; set TMPDIR to a shorter one."
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
    """With the sockets in it. Where it holds anything else, or is somebody else's, it stays."""
    with contextlib.suppress(OSError):
        for one in folder.iterdir():
            if one.is_socket():
                one.unlink()
        folder.rmdir()


def _made(parent: Path) -> tuple[Path, int]:
    """A folder and its lock."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        with contextlib.suppress(OSError):  # who starts in the same moment has taken it for one that was left
            lock = _lock(folder)
            if folder.exists():
                return folder, lock
            os.close(lock)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Raises OSError, where it is somebody's."""
    lock = _lock(folder)
    try:
        yield
    finally:
        os.close(lock)


def _lock(folder: Path) -> int:
    """Raises OSError."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(lock)
        raise
    return lock
