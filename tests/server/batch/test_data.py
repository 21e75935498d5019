"""The data directory and its database: who may see it, who may have it, and what is refused."""

from __future__ import annotations

import asyncio
import fcntl
import os
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from inflight.server.batch.checking import DatabaseError
from inflight.server.batch.data import DataDirectory, DataDirectoryError
from inflight.server.batch.database import Database
from inflight.server.batch.records import new_file_id
from inflight.server.batch.reserve import Reserve
from inflight.server.batch.service import BatchService
from inflight.server.batch.temp_file import TempFile
from inflight.server.errors import ApiError
from inflight.server.tenants import Tenant

from .rig import LIMITS, Rig

TAKES = """
import pathlib, sys
from inflight.server.batch.data import DataDirectory
held = DataDirectory(pathlib.Path(sys.argv[1]))
"""


def test_nobody_else_can_look_inside(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "data"
    before = os.umask(0)
    try:
        rig = Rig(folder)
        asyncio.run(rig.upload(b"x"))
    finally:
        os.umask(before)
    for path in (folder, *folder.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    asyncio.run(rig.service.stop())


def test_a_second_server_is_refused(tmp_path: Path) -> None:
    first = Rig(tmp_path)
    with pytest.raises(DataDirectoryError, match=f"in use by the server with process id {os.getpid()}; stop it, or"):
        Rig(tmp_path)
    other = subprocess.run([sys.executable, "-c", TAKES, tmp_path], capture_output=True, text=True, check=False)
    assert other.returncode == 1 and f"process id {os.getpid()}" in other.stderr
    asyncio.run(first.service.stop())
    asyncio.run(Rig(tmp_path).service.stop())


def test_a_lock_that_a_refused_start_removes_is_nobodys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the opening of the lock and the locking, its file may go."""
    flock = fcntl.flock

    def late(descriptor: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        (tmp_path / "lock").unlink()
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late)
    first = DataDirectory(tmp_path)
    with pytest.raises(DataDirectoryError, match="in use"):
        DataDirectory(tmp_path)
    first.close()


def test_what_takes_long_is_left_to_the_opening(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    asyncio.run(rig.service.stop())
    whole = (tmp_path / "batch.sqlite").read_bytes()
    (tmp_path / "batch.sqlite").write_bytes(b"x" * len(whole))
    service = BatchService(tmp_path, rig.answerer, lambda name: Tenant(name=name), **LIMITS)
    with pytest.raises(ApiError, match="is checking its data directory") as early:
        _ = service.files
    assert early.value.status == 503
    with pytest.raises(DataDirectoryError, match="in use"):
        Rig(tmp_path)
    with pytest.raises(DatabaseError, match="damaged"):
        service.open()
    asyncio.run(service.stop())
    (tmp_path / "batch.sqlite").write_bytes(whole)
    asyncio.run(Rig(tmp_path).service.stop())


def test_the_lock_ends_with_its_process(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", f"{TAKES}\nimport os; os.kill(os.getpid(), 9)", tmp_path], check=False)
    assert (tmp_path / "lock").exists()
    DataDirectory(tmp_path).close()


def test_places_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(DataDirectoryError, match=r"cannot be used: .*; give a folder that may be written to\.$"):
            DataDirectory(place)


def test_commits_are_durable_and_failures_undone(tmp_path: Path) -> None:
    database = Database(tmp_path / "d", Reserve(tmp_path / "reserve"))
    read = database.run_now(
        lambda connection: [
            connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")
        ]
    )
    assert read == ["wal", 2]

    def fails(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO files VALUES (1, 'a', '', '', '', 0, 0)")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        database.run_now(fails)
    assert database.run_now(lambda connection: connection.execute("SELECT * FROM files").fetchall()) == []
    database.close()


def test_drafts_appear_whole_or_not_at_all(tmp_path: Path) -> None:
    data = DataDirectory(tmp_path)
    data.check()
    temp_file, dropped = TempFile(data, new_file_id()), TempFile(data, new_file_id())
    temp_file.write(b"one")
    dropped.write(b"two")
    temp_file.seal()
    assert list(data.files.iterdir()) == []
    temp_file.publish()
    dropped.discard()
    assert [path.read_bytes() for path in data.files.iterdir()] == [b"one"] and not any(data.partial.iterdir())
    data.close()


def test_a_draft_takes_nobodys_place(tmp_path: Path) -> None:
    data = DataDirectory(tmp_path)
    data.check()
    file_id = new_file_id()
    (data.partial / file_id).write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        TempFile(data, file_id)
    (data.partial / file_id).rename(data.files / file_id)
    temp_file = TempFile(data, file_id)
    temp_file.seal()
    with pytest.raises(FileExistsError):
        temp_file.publish()
    assert (data.files / file_id).read_bytes() == b"mine"
    data.close()
