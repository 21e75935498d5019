"""Files and folders that the server makes for itself alone: no links in their place, and no other user writes to them.

Used by the data directory, the folder of cached blocks and everything else that keeps what users said. Standard library
only.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class NotPrivate(OSError):
    """A folder that must not be used as it is; the text says why and what to do, without a full stop."""


def open_private(path: str, flags: int) -> int:
    """Open a file that only its owner may read: an `opener` for `open`. A link in its place is not followed."""
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def part_of(path: Path) -> Path:
    """Return where this process writes a file that then replaces `path`, so that others never see half of it."""
    return path.with_name(f"{path.name}.{os.getpid()}.part")


def check_replaceable(path: Path) -> None:
    """Raise OSError where a file cannot be written beside `path` and replace it."""
    if path.exists() and not path.is_file():
        raise FileExistsError(errno.EEXIST, "it is no regular file", str(path))
    part = part_of(path)
    open(part, "wb", opener=open_private).close()
    part.unlink()


def make_folder(path: Path) -> None:
    """Make a folder for its owner alone, unless it is there. Raises NotPrivate for a link or a file, OSError."""
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    if not stat.S_ISDIR(path.lstat().st_mode):
        raise NotPrivate(f"{path} is no folder of its own but a link or a file; put the folder itself there")


def make_folders(path: Path) -> None:
    """`make_folder` for the path and all that is missing above it."""
    if not path.parent.exists():
        make_folders(path.parent)
    make_folder(path)


def check_private(path: Path) -> None:
    """Raise NotPrivate for a folder that another user owns or may write to. Raises OSError."""
    found = path.stat()
    if found.st_uid not in (os.geteuid(), 0):
        raise NotPrivate(f"{path} belongs to another user (uid {found.st_uid}); give a folder of this user's own")
    if found.st_mode & _OTHERS_WRITE and not found.st_mode & stat.S_ISVTX:
        mode = stat.S_IMODE(found.st_mode)
        raise NotPrivate(f"others may write to {path} (mode {mode:04o}); run `chmod go-w {path}`")
