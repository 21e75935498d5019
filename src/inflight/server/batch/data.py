"""The data directory: one server's own folder, locked while it lives.

Knows paths, the lock and what is made durable when; not what the files hold. Names in here are drawn at random, never
taken from a client.

    lock             held by the process whose id it names
    batch.sqlite     files, jobs and answers
    files/           one file per id
    partial/         files that are being written; emptied at the start
"""

from __future__ import annotations

import fcntl
import os
import secrets
from pathlib import Path


class DataDirectoryError(ValueError):
    """The directory cannot be used; the sentence says why."""


class DataDirectory:
    def __init__(self, path: Path):
        """Creates the folders and takes the lock. Raises DataDirectoryError."""
        self.path = path.absolute()
        self.files, self.partial = self.path / "files", self.path / "partial"
        self.database = self.path / "batch.sqlite"
        try:
            for folder in (self.path, self.files, self.partial):
                folder.mkdir(mode=0o700, parents=folder == self.path, exist_ok=True)
            self._lock = self._locked()
            try:
                # SQLite would create it readable by everyone; its side files take their mode from it.
                os.close(os.open(self.database, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
                for path in self.partial.iterdir():
                    path.unlink()
            except BaseException:
                self.close()
                raise
        except OSError as error:
            raise DataDirectoryError(
                f"The data directory {path} cannot be used: {error.strerror}; give a folder that may be written to."
            ) from None

    def _locked(self) -> int:
        descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        except BlockingIOError:
            holder = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip()
            os.close(descriptor)
            raise DataDirectoryError(
                f"The data directory {self.path} is in use by the server with process id {holder or 'unknown'}; "
                "stop it, or give each server a --data-dir of its own."
            ) from None
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def close(self) -> None:
        """Lets the next server in. The lock file stays: to remove it would let two servers lock two files."""
        os.close(self._lock)

    def sweep(self, known: set[str]) -> None:
        """Remove files that the database does not know: a crash came between the two."""
        for path in self.files.iterdir():
            if path.name not in known:
                path.unlink()


class Draft:
    """A file that is being written: invisible until it is published, gone without a trace when it is discarded."""

    def __init__(self, data: DataDirectory, file_id: str | None = None):
        """file_id: of a file that may be written again, after a crash; the new one takes its place."""
        self.id = file_id or f"file-{secrets.token_hex(16)}"
        self.bytes = 0
        self._partial, self._final = data.partial / self.id, data.files / self.id
        self._file = open(self._partial, "wb", opener=_private)  # noqa: SIM115  (closed by publish and discard)

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self.bytes += len(data)

    def publish(self) -> None:
        """On return the file is whole under its final name, and stays so through a power cut."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.rename(self._partial, self._final)
        _sync_folder(self._final.parent)

    def discard(self) -> None:
        """Also after `publish`, where what was to follow it failed."""
        try:
            self._file.close()
        except OSError:  # what it holds back cannot be written, and need not be
            pass
        finally:
            self._partial.unlink(missing_ok=True)
            self._final.unlink(missing_ok=True)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
