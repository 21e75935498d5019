"""The data directory: one server's own folder, locked while it lives.

Knows paths, the lock, and whether a folder is ours: nothing in it is changed before that is certain, and what cannot be
proven to be ours is never removed. Names in here are drawn at random, never taken from a client.

    inflight-data.json   the marker, see `marker`
    lock                 held by the process whose id it names
    batch.sqlite         files, jobs and answers
    files/               one file per id
    partial/             files that are being written
    begun-lines          lines of jobs that are in flight, and at how many unclean ends others were
    reserve              room for deletions on a full disk
    unknown/             what was found in files/, in partial/ or as reserve and is not ours, by the time it was found
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from inflight.private_files import NotPrivate, make_folder
from inflight.server.batch.checking import Found, inspect
from inflight.server.batch.faults import is_full
from inflight.server.batch.marker import MARKER, Identity, read_marker, write_marker
from inflight.server.batch.reserve import Reserve

_DATABASE = "batch.sqlite"
# What a start that died before it wrote the marker may have left; and what a file system of its own holds by itself.
_SIDES = {f"{_DATABASE}-{side}" for side in ("wal", "shm", "journal")}
_BEGUN_LINES = "begun-lines"
_BEGUN = {"lock", _DATABASE, *_SIDES, "files", "partial", "reserve", f".{MARKER}.new", _BEGUN_LINES}
_NOBODYS = {"lost+found"}


class DataDirectoryError(ValueError):
    """The directory cannot be used; the sentence says why."""


@contextlib.contextmanager
def directory_told(path: Path) -> Iterator[None]:
    """Raise as DataDirectoryError what the disk refuses."""
    try:
        yield
    except NotPrivate as error:
        raise DataDirectoryError(f"{error}.") from None
    except OSError as error:
        place = "" if error.filename in (None, str(path), path) else f" ({error.filename})"
        remedy = "check it"
        if is_full(error):
            remedy = "make room"
        elif isinstance(error, PermissionError) or error.errno == errno.EROFS or (error.filename and not place):
            remedy = "give a folder that may be written to"
        sentence = f"The data directory {path} cannot be used: {error.strerror or error}{place}; {remedy}."
        raise DataDirectoryError(sentence) from None


class DataDirectory:
    def __init__(self, path: Path):
        """Takes the folder, or makes it, as far as names and the marker let it; before anything is done with it,
        `check` must have passed. Raises DataDirectoryError; then it is as it was."""
        self.path = path.absolute()
        self.files, self.partial, self.unknown = (self.path / name for name in ("files", "partial", "unknown"))
        self.begun_lines = self.path / _BEGUN_LINES
        self.database, self.reserve = self.path / _DATABASE, Reserve(self.path / "reserve")
        with directory_told(self.path):
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._refuse_foreign()
            self._had_lock = os.path.lexists(self.path / "lock")
            self._lock = self._locked()
            with self._left_when_refused():
                self._refuse_foreign()
                self._marker = self._read_marker()
                if self._database_bytes() == 0:
                    self._refuse_without_database()

    def check(self) -> None:
        """Reads the whole database. Raises DataDirectoryError, DatabaseError; then it is as it was, and free."""
        with directory_told(self.path), self._left_when_refused():
            if self._database_bytes():
                self._check_database()
            for folder in (self.files, self.partial):
                make_folder(folder)
            self._sign()

    def mark(self, identity: Identity) -> None:
        """Says whose database lies here. Raises OSError."""
        write_marker(self.path, identity)

    def close(self) -> None:
        """Lets the next server in. The lock file stays: to remove it would let two servers lock two files."""
        os.close(self._lock)

    @contextlib.contextmanager
    def _left_when_refused(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            if not self._had_lock:
                (self.path / "lock").unlink(missing_ok=True)
            self.close()
            raise

    # -- whose it is ----------------------------------------------------------------------------------------------

    def _refuse_foreign(self) -> None:
        """By names alone, so that nothing is changed."""
        if not os.path.lexists(self.path / MARKER) and not self._database_bytes():
            self._refuse_held()

    def _refuse_held(self) -> None:
        """Where neither a marker nor a database says whose folder it is: what is not of a start that died."""
        names = set(os.listdir(self.path)) - _NOBODYS
        if held := names - _BEGUN or self._held():
            one = min(held)
            raise DataDirectoryError(
                f"The data directory {self.path} holds {one!r} (entries in all: {len(held)}), but neither {MARKER} nor "
                f"{_DATABASE} with tables in it, so it is not known to be a server's; give an empty folder, or restore "
                "what is missing."
            )

    def _held(self) -> set[str]:
        """Names in files/ and partial/."""
        folders = [folder for folder in (self.files, self.partial) if os.path.lexists(folder)]
        return {f"{folder.name}/{name}" for folder in folders for name in os.listdir(folder)}

    def _check_database(self) -> None:
        found = self._inspected()
        if self._marker is not None:
            self._refuse_unfitting(self._marker, found)
        elif found.version == 0:
            self._refuse_held()

    def _inspected(self) -> Found:
        if self._marker is None:
            return inspect(self.database)
        # A reader of the log makes an index of it; without room for that nothing could ever be deleted.
        return self.reserve.relieving(lambda: inspect(self.database))

    def _read_marker(self) -> Identity | None:
        try:
            return read_marker(self.path)
        except FileNotFoundError:
            return None
        except ValueError:
            raise DataDirectoryError(
                f"{self.path / MARKER} is damaged, so it does not say which database belongs here; restore it, or "
                f"remove it to go on with {_DATABASE} as it is."
            ) from None

    def _database_bytes(self) -> int:
        """0 where there is none."""
        try:
            found = self.database.lstat()
        except FileNotFoundError:
            return 0
        if not stat.S_ISREG(found.st_mode):
            raise DataDirectoryError(f"{self.database} is no file but a link or a folder; move it away.")
        return found.st_size

    def _refuse_without_database(self) -> None:
        log = self.database.with_name(f"{_DATABASE}-wal")
        held = len(self._held())
        if self._marker is None and not held and not (log.exists() and log.stat().st_size):
            return  # a folder that is being made
        raise DataDirectoryError(
            f"The data directory {self.path} has lost its database ({_DATABASE} is missing or empty) and still has "
            f"{held} files; restore the database from a backup, or use another --data-dir."
        )

    def _refuse_unfitting(self, marker: Identity, found: Found) -> None:
        otherwise = f"or remove {MARKER} to go on with it as it is"
        if found.identity is None or found.identity.store != marker.store:
            raise DataDirectoryError(
                f"{self.database} (schema version {found.version}) is not the database that {MARKER} names; put back "
                f"the one that belongs here, {otherwise}."
            )
        if found.identity.generation < marker.generation:
            raise DataDirectoryError(
                f"{self.database} is an older copy, or lost its {_DATABASE}-wal: it stands at generation "
                f"{found.identity.generation}, the folder at {marker.generation}; put back the newer one, {otherwise} "
                "(files it does not know are then moved aside)."
            )

    def _locked(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        while True:
            descriptor = os.open(self.path / "lock", flags, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._is_lock(descriptor):
                    return descriptor
            except BlockingIOError:
                holder = _holder(descriptor)
                os.close(descriptor)
                raise DataDirectoryError(
                    f"The data directory {self.path} is in use by the server with process id {holder or 'unknown'}; "
                    "stop it, or give each server a --data-dir of its own."
                ) from None
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)  # the start that made it was refused, and has removed it: others lock another one

    def _is_lock(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), os.lstat(self.path / "lock"))
        except FileNotFoundError:
            return False

    def _sign(self) -> None:
        """Says in the lock who holds it, unless it is somebody's file."""
        if _holder(self._lock).isdigit() or os.fstat(self._lock).st_size == 0:
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, str(os.getpid()).encode(), 0)


def _holder(lock: int) -> str:
    """The process id that a lock file names."""
    return os.pread(lock, 20, 0).decode("ascii", "replace").strip()
