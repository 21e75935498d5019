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

from inflight.server.errors import ApiError
from inflight.server.jobs.folder import DataDirectory, WorkerSlot
from inflight.server.jobs.service import JobService
from inflight.server.jobs.storage import DataDirectoryError, Pause
from inflight.server.tenants import ANYONE, Tenant

from .rig import LIMITS, Rig, jsonl, live, request_line, until

TAKES = """
import pathlib, sys
from inflight.server.jobs.folder import DataDirectory
taken = DataDirectory(pathlib.Path(sys.argv[1])).claim()
"""


def test_other_users_cannot_look_inside(tmp_path: Path) -> None:
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


def test_a_lock_that_a_refused_start_removes_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the opening of the lock and the locking, its file may go."""
    flock = fcntl.flock

    def late(descriptor: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        (tmp_path / "lock").unlink()
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late)
    first = DataDirectory(tmp_path).claim()
    with pytest.raises(DataDirectoryError, match="in use"):
        DataDirectory(tmp_path).claim()
    first.release()


def test_what_takes_long_is_left_to_the_opening(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    asyncio.run(rig.service.stop())
    whole = (tmp_path / "batch.sqlite").read_bytes()
    (tmp_path / "batch.sqlite").write_bytes(b"x" * len(whole))
    service = JobService(DataDirectory(tmp_path).claim(), rig.answerer, lambda name: Tenant(name=name), **LIMITS)
    with pytest.raises(ApiError, match="is checking its data directory") as early:
        _ = service.files
    assert early.value.status == 503
    with pytest.raises(DataDirectoryError, match="in use"):
        Rig(tmp_path)
    with pytest.raises(DataDirectoryError, match="damaged"):
        service.open()
    asyncio.run(service.stop())
    (tmp_path / "batch.sqlite").write_bytes(whole)
    asyncio.run(Rig(tmp_path).service.stop())


def test_the_lock_ends_with_its_process(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", f"{TAKES}\nimport os; os.kill(os.getpid(), 9)", tmp_path], check=False)
    assert (tmp_path / "lock").exists()
    DataDirectory(tmp_path).claim().release()


def test_places_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(DataDirectoryError, match=r"cannot be used: .*; give a folder that may be written to\.$"):
            DataDirectory(place).claim()


def test_commits_are_durable_and_failures_undone(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        database = rig.service._database
        for name, value in {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "user_version": 4}.items():
            read = await database.read(lambda connection: connection.execute(f"PRAGMA {name}").fetchone()[0])  # noqa: B023
            assert read == value

        def fails(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM clock")
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await database.write(fails)
        assert await database.read(lambda connection: len(connection.execute("SELECT * FROM clock").fetchall())) == 1

    live(tmp_path, test, start=False)


# -- several processes of one server --------------------------------------------------------------------------------
def test_processes_share_files_jobs_and_pauses_and_one_answers_lines(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        await until(lambda: rig.service._slot._descriptor is not None)
        other = Rig(tmp_path, beside=True)
        other.service.start()
        rig.answerer.gate = asyncio.Event()
        job = await other.create(jsonl(*(request_line(str(number)) for number in range(20))))
        await until(lambda: rig.answerer.running == 4)
        assert other.answerer.running == 0 and (await rig.jobs.retrieve(ANYONE, job.id)).status == "in_progress"
        pause = Pause("The disk of the data directory is full; make room.", 7)
        rig.service._slot.report(pause)
        assert other.service.paused == rig.service.paused == pause
        rig.service._slot.report(None)
        assert other.service.paused is None
        assert (await other.jobs.cancel(ANYONE, job.id)).status == "cancelling"
        assert (await rig.ended(job)).status == "cancelled" and rig.answerer.cancelled == 4
        rig.answerer.gate.set()
        job = await rig.ended(await other.create(jsonl(request_line("a"))))
        assert len(await other.lines(job.output_file_id)) == 1 and other.answerer.calls == {}
        await other.service.stop()

    live(tmp_path, test)


def test_another_process_goes_on_when_the_one_that_answers_lines_ends(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        other = Rig(tmp_path, beside=True)
        rig.answerer.gate = asyncio.Event()
        job = await other.create(jsonl(*(request_line(str(number)) for number in range(20))))
        await until(lambda: rig.answerer.running == 4)
        other.service.start()
        await rig.service._worker.stop()
        assert (await other.ended(job)).completed == 20
        await other.service.stop()

    live(tmp_path, test)


def test_what_a_killed_process_was_receiving_is_removed_by_the_next(tmp_path: Path) -> None:
    killed = f"""
import asyncio, os, sys, pathlib
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from server.jobs.rig import Bytes, Rig
from inflight.server.tenants import ANYONE
class Killed(Bytes):
    async def content(self):
        yield b"x" * 1000
        os.kill(os.getpid(), 9)
asyncio.run(Rig(pathlib.Path(sys.argv[1]), beside=True).files.receive(ANYONE, Killed(b"")))
"""

    async def test(rig: Rig) -> None:
        file = await rig.upload(b"stays")
        command = [sys.executable, "-c", killed, str(tmp_path)]
        assert (await asyncio.to_thread(subprocess.run, command, check=False)).returncode == -9
        assert len(list((tmp_path / "partial").iterdir())) == 1
        other = Rig(tmp_path, beside=True)
        assert [path.name for path in (tmp_path / "files").iterdir()] == [file.id]
        assert not any((tmp_path / "partial").iterdir())
        await other.service.stop()

    live(tmp_path, test, start=False)


def test_a_worker_file_of_another_program_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "worker").write_text("a poem")
    slot = WorkerSlot(tmp_path / "worker")
    assert slot.acquire() and not WorkerSlot(tmp_path / "worker").acquire() and slot.pause() is None
    slot.report(Pause("Full.", 1))
    slot.release()
    assert (tmp_path / "worker").read_text() == "a poem" and WorkerSlot(tmp_path / "worker").acquire()
