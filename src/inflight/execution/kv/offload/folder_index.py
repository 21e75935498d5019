"""Indexes the folder of a tier: names, sizes and times of use of its files.

The folder is read when the engine starts, and again from time to time, since other engines write to it and evict from
it. Files of all models together stay within the limit: those that were used least recently are evicted. Between two
scans other engines may have written files that are not counted here, so the limit holds for what each engine has seen.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from inflight.private_files import check_private, make_folders

_FILE = re.compile(r"[0-9a-f]{32}\.kv")
_OLD_ASIDE = 600.0  # seconds after which a file that was never renamed has no writer
FOLDER = "blocks-1"  # of this layout of folders


@dataclass(slots=True)
class Entry:
    """One file. used: time of its last use, seconds since 1970. name: None: it is another model's."""

    path: str
    nbytes: int
    used: float
    name: int | None


class FolderIndex:
    def __init__(self, folder: Path, identity: bytes, max_bytes: int):
        """Open the folder, and read it.

        Args:
            folder: The folder.
            identity: Of the model and of how it is computed.
            max_bytes: Limit of all models' files.

        Raises:
            OSError: The folder cannot be made or read.
            NotPrivate: Another user may write to it.
        """
        self._root = folder / FOLDER
        self._mine = self._root / identity.hex()
        self.max_bytes = max_bytes
        self._entries: dict[str, Entry] = {}  # of all models
        self._names: dict[int, Entry] = {}  # of this one
        self._bytes = self._own_bytes = 0
        self._lock = threading.Lock()
        self.num_evicted = 0  # files, since the start
        for own in (self._root, self._mine):
            make_folders(own)
            check_private(own)
        self.scan()

    @property
    def nbytes(self) -> int:
        """Bytes of all models' files."""
        return self._bytes

    @property
    def own_bytes(self) -> int:
        """Bytes of this model's files."""
        return self._own_bytes

    @property
    def num_blocks(self) -> int:
        """Files of this model."""
        return len(self._names)

    def __contains__(self, name: int) -> bool:
        return name in self._names  # without the lock: one look-up

    def path(self, name: int) -> Path:
        """Return the path of a block's file, whether it exists or not."""
        file = f"{name:032x}"
        return self._mine / file[:2] / f"{file}.kv"

    def scan(self) -> None:
        """Read the folder again. Raises OSError."""
        found = {entry.path: entry for entry in self._files()}
        mine = {entry.name: entry for entry in found.values() if entry.name is not None}
        with self._lock:
            for path, entry in found.items():
                if (known := self._entries.get(path)) is not None:
                    entry.used = max(entry.used, known.used)
            self._entries, self._names = found, mine
            self._bytes = sum(entry.nbytes for entry in found.values())
            self._own_bytes = sum(entry.nbytes for entry in mine.values())

    def touch(self, names: tuple[int, ...]) -> None:
        """Mark blocks as used now, also in their files' times, for other engines and for the next start."""
        now = time.time()
        for name in names:
            entry = self._names.get(name)
            if entry is not None:
                entry.used = now
                try:
                    os.utime(entry.path)
                except FileNotFoundError:
                    self.remove(name)
                except OSError:
                    continue  # the folder is read-only: its files can be used all the same

    def add(self, name: int, nbytes: int) -> None:
        """Add a block that was written."""
        path = str(self.path(name))
        with self._lock:
            self._forget(path)
            self._entries[path] = self._names[name] = Entry(path, nbytes, time.time(), name)
            self._bytes += nbytes
            self._own_bytes += nbytes

    def remove(self, name: int) -> None:
        """Remove a block whose file is gone, or cannot be used."""
        with self._lock:
            self._forget(str(self.path(name)))

    def make_room(self, nbytes: int) -> bool:
        """Evict files until so many bytes more are within the limit, least recently used first. Return whether they
        are; a file that cannot be deleted stays, and counts."""
        if nbytes > self.max_bytes:
            return False
        if self._bytes + nbytes <= self.max_bytes:
            return True
        with self._lock:
            oldest = sorted(self._entries.values(), key=lambda entry: entry.used)
            # More than is needed, so that files are not sorted for every block.
            wanted = self._bytes + max(nbytes, self.max_bytes // 64) - self.max_bytes
            for entry in oldest:
                if wanted <= 0:
                    break
                with contextlib.suppress(OSError):
                    Path(entry.path).unlink(missing_ok=True)
                    wanted -= entry.nbytes
                    self._forget(entry.path)
                    self.num_evicted += 1
        return self._bytes + nbytes <= self.max_bytes

    def _forget(self, path: str) -> None:
        entry = self._entries.pop(path, None)
        if entry is not None:
            self._bytes -= entry.nbytes
            if entry.name is not None:
                self._own_bytes -= entry.nbytes
                self._names.pop(entry.name, None)

    def _files(self) -> Iterator[Entry]:
        """Yield all models' files; delete those that interrupted writers have left."""
        now, own = time.time(), str(self._mine)
        for model in _folders(str(self._root)):
            for part in _folders(model):
                for entry in _entries(part):
                    try:
                        found = entry.stat(follow_symlinks=False)
                        if _FILE.fullmatch(entry.name) and stat.S_ISREG(found.st_mode):
                            name = int(entry.name[:32], 16) if model == own else None
                            yield Entry(entry.path, -(-found.st_size // 4096) * 4096, found.st_mtime, name)
                        elif entry.name.startswith(".") and now - found.st_mtime > _OLD_ASIDE:
                            os.unlink(entry.path)
                    except OSError:
                        continue  # another engine was faster


def _folders(path: str) -> list[str]:
    return [entry.path for entry in _entries(path) if entry.is_dir(follow_symlinks=False)]


def _entries(path: str) -> list[os.DirEntry[str]]:
    """List a folder; nothing where another engine has deleted it meanwhile."""
    try:
        with os.scandir(path) as found:
            return list(found)
    except FileNotFoundError:
        return []
