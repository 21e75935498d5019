"""One SQLite connection in a thread of its own. Knows transactions, durability and checkpoints; no queries."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from inflight.server.batch.checking import DatabaseError, readable_text
from inflight.server.batch.faults import DamagedDatabase, disk_told
from inflight.server.batch.marker import Identity
from inflight.server.batch.reserve import Reserve
from inflight.server.batch.schema import bring_up_to_date

T = TypeVar("T")

LOG_BYTES = 4 << 20  # of the write-ahead log, from which on it is brought into the database
READER_SECONDS = 30.0  # until the next try, when somebody who reads the database kept the log from being emptied


class Database:
    def __init__(self, path: Path, reserve: Reserve, identified: Callable[[Identity], None] = lambda identity: None):
        """Opens a database that `checking` has passed, or makes a new one.

        identified: told in the database's thread whose database it is, whenever its generation was counted up. Raises
        DatabaseError. The path's folder must be this process's alone.
        """
        self._path, self._log, self._reserve, self._identified = path, Path(f"{path}-wal"), reserve, identified
        self._to_count = True  # the marker's generation may be in the database already
        self._to_empty = False  # the log may hold frames of a commit that failed
        self._not_before = 0.0  # seconds of the monotonic clock: the next checkpoint
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="inflight-batch-store")
        try:
            self._thread.submit(self._open).result()
        except BaseException:
            self._thread.shutdown()
            raise

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """`work` in a transaction: on return it is on the disk, after an exception it has not happened.

        Raises OSError where the disk refuses, and what `work` raises.
        """
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._transact, work)

    async def run_on_full_disk(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """The same for what makes room: where there is none for it, the reserve is given up."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._transact_relieved, work)

    async def restore_reserve(self) -> None:
        """After room was made; where there is not enough of it, some later call does it."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._restore_reserve)

    def run_now(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """`run` for who has no event loop; waits."""
        return self._thread.submit(self._transact, work).result()

    def close(self) -> None:
        """Ends what was handed in first."""
        self._thread.submit(self._connection.close).result()
        self._thread.shutdown()

    # -- in the thread ------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        try:
            self._connection = self._reserve.relieving(self._connected)
            self._try_to_count_up()
            self._places = self._places_now()
        except (sqlite3.Error, DamagedDatabase) as error:
            sentence = error.strerror if isinstance(error, OSError) else error
            raise DatabaseError(
                f"{self._path} cannot be used as a database ({sentence}); check the disk, or use another --data-dir."
            ) from None

    def _connected(self) -> sqlite3.Connection:
        # SQLite would create it readable by everyone; its side files take their mode from it.
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        connection = sqlite3.connect(self._path, isolation_level=None)
        try:
            connection.row_factory = sqlite3.Row
            connection.text_factory = readable_text
            with disk_told():
                connection.execute("PRAGMA journal_mode=WAL")
                connection.execute("PRAGMA synchronous=FULL")  # a commit that returned survives a power cut
                connection.execute("PRAGMA foreign_keys=ON")
                connection.execute("PRAGMA wal_autocheckpoint=0")  # see `_checkpoint`
                bring_up_to_date(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _transact(self, work: Callable[[sqlite3.Connection], T]) -> T:
        self._check_places()
        if self._to_count:
            self._try_to_count_up()
        try:
            return self._committed(work)
        finally:
            self._checkpoint()

    def _transact_relieved(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return self._reserve.relieving(lambda: self._transact(work))
        finally:
            self._reserve.restore()  # here, where no other transaction comes between and takes the room

    def _restore_reserve(self) -> None:
        if not self._reserve.is_whole:
            self._checkpoint(LOG_BYTES // 4)
            self._reserve.restore()

    def _committed(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Raises OSError where the disk refuses."""
        connection = self._connection
        with disk_told():
            connection.execute("BEGIN IMMEDIATE")
            try:
                result = work(connection)
                connection.execute("COMMIT")
                return result
            except BaseException as error:
                if connection.in_transaction:  # SQLite takes some failures back by itself
                    connection.execute("ROLLBACK")
                # Frames of a commit that failed may stay in the log, and the next start would take them for lost ones.
                self._to_empty = self._to_empty or isinstance(error, sqlite3.Error)
                raise

    def _checkpoint(self, most: int = LOG_BYTES) -> None:
        """Bring the log into the database when it has grown or holds frames of a failed commit, and count the
        generation up behind it.

        So the generation of the marker is in the log, and nowhere else: a database without its log, or an earlier copy
        of it, is behind its marker. Where the disk refuses, the next transaction tries again before it begins.
        """
        if time.monotonic() < self._not_before:
            return
        try:
            if self._log.stat().st_size > (0 if self._to_empty else most):
                self._to_count = True  # first: also a checkpoint that fails may have brought some of the log in
                if self._bring_in():
                    self._to_empty = False
                else:
                    self._not_before = time.monotonic() + READER_SECONDS
                self._count_up()
                self._reserve.restore()
        except (OSError, sqlite3.Error):
            pass

    def _bring_in(self) -> bool:
        """Whether the log is empty now. Does not wait for somebody who reads the database: everybody would wait."""
        connection = self._connection
        ((patience,),) = connection.execute("PRAGMA busy_timeout").fetchall()
        connection.execute("PRAGMA busy_timeout=0")
        try:
            ((busy, _, _),) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        finally:
            connection.execute(f"PRAGMA busy_timeout={patience}")
        return not busy

    def _try_to_count_up(self) -> None:
        """On a full disk the generation stays, and what is there can be read and deleted."""
        with contextlib.suppress(OSError):
            self._count_up()

    def _count_up(self) -> None:
        def work(connection: sqlite3.Connection) -> Identity:
            connection.execute("UPDATE store SET generation = generation + 1")
            row = connection.execute("SELECT id, generation FROM store").fetchone()
            return Identity(row["id"], row["generation"])

        self._identified(self._committed(work))
        self._to_count = False

    def _places_now(self) -> list[tuple[int, int]]:
        return [(found.st_dev, found.st_ino) for found in map(os.stat, (self._path, self._log))]

    def _check_places(self) -> None:
        """Check that the files are still in their places: SQLite goes on silently in removed ones."""
        try:
            same = self._places_now() == self._places
        except FileNotFoundError:
            same = False
        if not same:
            sentence = f"{self._path.name} or its log was removed or replaced while the server runs"
            raise DamagedDatabase(errno.EIO, sentence)
