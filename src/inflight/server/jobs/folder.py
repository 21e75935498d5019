"""The data directory: whose it is, its lock, its content at the start of a server, and the room that is held back.

    batch.sqlite   files, jobs, answers and stored responses
    files/         contents of files, one for each id
    partial/       contents that are being written, until after their rows are stored
    lock           locked by the server, whose process id it names
    worker         locked by the process that answers lines; it names that and why jobs are paused
    reserve        room for deletions on a full disk
    unknown/TIME/  content that the database does not know

Nothing is changed before the folder is known to be a server's, and nothing is removed but what the database says was
being written or deleted.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from inflight.counted import counted
from inflight.private_files import NotPrivate, make_folder, open_private
from inflight.server.jobs import database
from inflight.server.jobs.clock import Clocks, resume
from inflight.server.jobs.database import SIDES, Database
from inflight.server.jobs.storage import OPEN, DataDirectoryError, Pause, Reserve, StorageError, is_full

_DATABASE = "batch.sqlite"
_OLD = ("inflight-data.json", "begun-lines")  # of earlier versions
# Names that a start which died may have left without a database; and one that file systems have by themselves.
_OURS = {"lock", "files", "partial", f"{_DATABASE}.new", *(f"{_DATABASE}.new{side}" for side in SIDES), _DATABASE}
_OURS |= {"lost+found"}
ENDING_SECONDS = 20.0  # that processes of a killed server may take

log = logging.getLogger(__name__)


@contextlib.contextmanager
def _sentences(path: Path) -> Iterator[None]:
    """Raise what the disk refuses as DataDirectoryError."""
    try:
        yield
    except NotPrivate as error:
        raise DataDirectoryError(f"{error}.") from None
    except StorageError as error:
        raise DataDirectoryError(error.message) from None
    except OSError as error:
        about = "" if error.filename in (None, str(path), path) else f" ({error.filename})"
        remedy = "check it"
        if is_full(error):
            remedy = "make room"
        elif isinstance(error, PermissionError) or error.errno == errno.EROFS or (error.filename and not about):
            remedy = "give a folder that may be written to"
        sentence = f"The data directory {path} cannot be used: {error.strerror or error}{about}; {remedy}."
        raise DataDirectoryError(sentence) from None


class DataDirectory:
    """`claim` and `prepare` it once for each server; then all processes of the server may open its database."""

    def __init__(self, path: Path):
        self.path = path.absolute()
        self.database = self.path / _DATABASE
        self.files, self.partial = self.path / "files", self.path / "partial"
        self.reserve = Reserve(self.path / "reserve")
        self.lock: int | None = None  # a descriptor, while this process or one that it started has claimed it

    def claim(self) -> Self:
        """Lock the folder for this server, or make it. Raises DataDirectoryError; then it is as it was."""
        with _sentences(self.path):
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._refuse_foreign()
            self._had_lock = os.path.lexists(self.path / "lock")
            self.lock = self._locked()
            with self._released_when_refused():
                self._refuse_foreign()
        return self

    def prepare(self, clocks: Clocks) -> None:
        """Check the whole database, bring it up to date, and sort the contents. Waits some seconds for each GB.

        Raises:
            DataDirectoryError: The folder is free then, and as it was where the check has refused it.
        """
        with _sentences(self.path), self._released_when_refused():
            if self._has_database():
                version = self._checked()
                self._make_folders()
                self.reserve.release()
                database.upgrade(self.database, version)
            else:
                self._make_folders()
                database.create(self.database)
            opened = Database(self.database, self.reserve)
            try:
                self._sort(opened)
                opened.write_now(lambda connection: resume(connection, clocks))
            finally:
                opened.close()
            _sign(self.lock)
            self.reserve.restore()
            for name in _OLD:
                with contextlib.suppress(OSError):
                    (self.path / name).unlink(missing_ok=True)

    def _make_folders(self) -> None:
        for folder in (self.files, self.partial):
            make_folder(folder)

    def release(self) -> None:
        """Let the next server in. The lock file stays: removed, it would let two servers lock two files."""
        if self.lock is not None:
            os.close(self.lock)
            self.lock = None

    # -- whose it is -------------------------------------------------------------------------------------------------

    def _refuse_foreign(self) -> None:
        """Without a database it must be empty, but for what a start that died has left."""
        if self._has_database():
            return
        names = set(os.listdir(self.path))
        for folder in (self.files, self.partial):
            if os.path.lexists(folder):
                names |= {f"{folder.name}/{name}" for name in os.listdir(folder)}
        if foreign := names - _OURS:
            others = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
            raise DataDirectoryError(
                f"The data directory {self.path} is not empty ({min(foreign)!r}{others}) and has no valid {_DATABASE}; "
                f"give an empty folder, or restore {_DATABASE} from a backup."
            )

    def _has_database(self) -> bool:
        try:
            found = self.database.lstat()
        except FileNotFoundError:
            return False
        if not stat.S_ISREG(found.st_mode):
            raise DataDirectoryError(f"{self.database} is no file but a link or a folder; move it away.")
        return found.st_size > 0

    def _checked(self) -> int:
        """Check the database, and return its version. Raises DataDirectoryError, StorageError."""
        try:
            return database.check(self.database)
        except StorageError:
            self.reserve.release()  # a reader of the log makes an index of it, which takes room
        return database.check(self.database)

    @contextlib.contextmanager
    def _released_when_refused(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            if not self._had_lock:
                (self.path / "lock").unlink(missing_ok=True)
            self.release()
            raise

    def _locked(self) -> int:
        """Lock the folder. Processes of a killed server, which hold the lock until they end, are waited for."""
        deadline = time.monotonic() + ENDING_SECONDS
        while True:
            path = self.path / "lock"
            descriptor = os.open(path, OPEN | os.O_CREAT, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                with contextlib.suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(descriptor), os.lstat(path)):
                        return descriptor
            except BlockingIOError:
                holder = _signed(descriptor).decode("ascii", "replace").strip()
                if holder.isdigit() and not is_alive(int(holder)) and time.monotonic() < deadline:
                    os.close(descriptor)
                    time.sleep(0.05)
                    continue
                os.close(descriptor)
                raise DataDirectoryError(
                    f"The data directory {self.path} is in use by the server with process id {holder or 'unknown'}; "
                    "stop it, or give each server a --data-dir of its own."
                ) from None
            os.close(descriptor)  # a start that was refused has removed it in between

    # -- contents ----------------------------------------------------------------------------------------------------

    def _sort(self, opened: Database) -> None:
        """Remove what was being written or deleted when the last server died, and move aside what is not known.

        Content in files/ whose row says that it is being written was stored: the database has lost its last commits.
        """
        rows = opened.write_now(lambda connection: connection.execute("SELECT id, bytes, state FROM files").fetchall())
        lengths = {row["id"]: row["bytes"] for row in rows if row["state"] == "stored"}
        deleting = {row["id"] for row in rows if row["state"] == "deleting"}
        unfinished, aside = {row["id"] for row in rows} - lengths.keys(), _Aside(self.path)
        for path in sorted(self.partial.iterdir()):
            published, length = self.files / path.name, _length(path)
            if length is not None and length == lengths.get(path.name) and not os.path.lexists(published):
                path.rename(published)
            elif length is not None and path.name in unfinished:
                path.unlink()
            else:
                aside.move(path)
        for path in sorted(self.files.iterdir()):
            if _length(path) is not None and path.name in deleting:
                path.unlink()
            elif _length(path) is None or path.name not in lengths:
                aside.move(path)
        if os.path.lexists(self.reserve.path) and not self.reserve.is_ours():
            aside.move(self.reserve.path)
        for folder in (self.files, self.partial):
            sync_folder(folder)
        with contextlib.suppress(Exception):  # a full disk: the next start does it
            opened.write_now(lambda connection: connection.execute("DELETE FROM files WHERE state != 'stored'"))
        aside.report()
        _report_lost({one: (_length(self.files / one), size) for one, size in lengths.items()})


def _report_lost(found: dict[str, tuple[int | None, int]]) -> None:
    """Log stored files whose content is missing or has another length. found: the length that is, and that must be."""
    lost = [(one, is_, size) for one, (is_, size) in found.items() if is_ != size]
    if lost:
        first, is_, size = lost[0]
        what = "no content" if is_ is None else f"{is_} of {size} bytes"
        log.warning(
            f"Stored files that have lost their content: {len(lost)} ({first} has {what}); restore them from a backup "
            "into files/, or delete them."
        )


class _Aside:
    """Moves what is not known to be the server's into a new folder below unknown/, and overwrites nothing."""

    def __init__(self, root: Path):
        self._root = root
        self._folder: Path | None = None
        self._moved = self._stuck = 0

    def move(self, path: Path) -> None:
        try:
            if self._folder is None:
                self._folder = self._new_folder()
            folder = self._folder / path.parent.relative_to(self._root)
            folder.mkdir(mode=0o700, exist_ok=True)
            path.rename(folder / path.name)
            self._moved += 1
        except OSError:  # a full disk
            self._stuck += 1

    def report(self) -> None:
        if self._moved:
            entries = counted(self._moved, "unknown entry", "unknown entries")
            log.warning(f"Moved {entries} of the data directory to {self._folder}; inspect and remove them.")
        if self._stuck:
            entries = counted(self._stuck, "unknown entry", "unknown entries")
            log.warning(f"Could not move {entries} of the data directory; free disk space, or move them yourself.")

    def _new_folder(self) -> Path:
        unknown = self._root / "unknown"
        unknown.mkdir(mode=0o700, exist_ok=True)
        name = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        for number in range(1, 1000):
            folder = unknown / (name if number == 1 else f"{name}-{number}")
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=0o700)
                return folder
        raise FileExistsError(f"{unknown} holds too many folders of one second")


class WorkerSlot:
    """The file whose lock makes one process of the server the one that answers lines.

    It also has why jobs are paused, which on a full disk the database could not take.
    """

    _BYTES = 1024  # written once, so that later writes take no room

    def __init__(self, path: Path):
        self._path = path
        self._descriptor: int | None = None
        self._is_ours = False  # not a file that another program has put there

    def acquire(self) -> bool:
        """Take the slot, if no other process has it. Raises OSError."""
        descriptor = os.open(self._path, OPEN | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        self._is_ours = os.pread(descriptor, 6, 0) in (b"", b'{"pid"')
        self.report(None)
        return True

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def report(self, pause: Pause | None) -> None:
        """Say why jobs are paused, or that they are not."""
        if self._descriptor is None or not self._is_ours:
            return
        text = json.dumps({"pid": os.getpid(), "paused": pause}).encode()[: self._BYTES]
        with contextlib.suppress(OSError):
            os.pwrite(self._descriptor, text.ljust(self._BYTES), 0)

    def pause(self) -> Pause | None:
        """Return the pause of the process that has the slot."""
        try:
            with open(self._path, "rb", opener=open_private) as file:
                paused = json.loads(file.read(self._BYTES))["paused"]
                return None if paused is None else Pause(str(paused[0]), int(paused[1]))
        except (OSError, ValueError, LookupError, TypeError):
            return None


def sync_folder(folder: Path) -> None:
    """Make what was made, renamed or removed in it survive a power cut. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _length(path: Path) -> int | None:
    """Bytes of a regular file; None where there is none."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return process > 0


def _sign(lock: int | None) -> None:
    """Write the process id into the lock, unless it is a file of another program."""
    assert lock is not None, "claimed"
    if not os.fstat(lock).st_size or _signed(lock).strip().isdigit():
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)


def _signed(lock: int) -> bytes:
    return os.pread(lock, 20, 0)
