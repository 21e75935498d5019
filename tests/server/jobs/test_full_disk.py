"""A disk that is really full: a small file system of its own, filled to its last block."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from inflight.server.jobs.storage import Reserve
from inflight.server.tenants import ANYONE

from .rig import Rig, jsonl, live, refused, request_line, until

MEBIBYTE = 1 << 20


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MiB."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(place)]
    try:
        made = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        made = False
    if not made:
        pytest.skip("nothing can be mounted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(place: Path) -> Path:
    """Take all the room that is left."""
    filler = place / "filler"
    with filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    return filler


def whole(reserve: Path) -> bool:
    return reserve.stat().st_blocks * 512 >= Reserve.BYTES


def test_files_can_be_deleted_and_then_stored_again(small: Path) -> None:
    async def test(rig: Rig) -> None:
        large = jsonl(request_line("a", "x" * 5 * MEBIBYTE))
        files = [await rig.upload(jsonl(request_line("a"))) for _ in range(20)]
        files.append(await rig.upload(large))
        fill(small)
        assert (await refused(rig.upload(large))).status == 507
        for file in files:  # the small ones free nothing that counts
            await rig.files.delete(ANYONE, file.id)
            assert (await refused(rig.files.retrieve(ANYONE, file.id))).status == 404
        assert not any((small / "data" / "files").iterdir())
        assert whole(small / "data" / "reserve"), "taken back when the large file had gone"
        await rig.upload(jsonl(request_line("a")))

    live(small / "data", test)


def test_a_server_starts_on_a_full_disk_and_deletes(small: Path) -> None:
    async def test() -> None:
        rig = Rig(small / "data")
        file = await rig.upload(jsonl(request_line("a", "x" * 5 * MEBIBYTE)))
        await rig.service.stop()
        fill(small)
        rig = Rig(small / "data")
        assert (await rig.files.retrieve(ANYONE, file.id)).bytes == file.bytes
        await rig.files.delete(ANYONE, file.id)
        assert whole(small / "data" / "reserve")
        await rig.service.stop()
        await Rig(small / "data").service.stop()

    asyncio.run(test())


def test_strange_things_are_kept_on_a_full_disk_too(small: Path) -> None:
    rig = Rig(small / "data")
    asyncio.run(rig.service.stop())
    (small / "data" / "files" / "letter").write_text("mine")
    fill(small)
    asyncio.run(Rig(small / "data").service.stop())
    found = [path.read_text() for path in (small / "data").rglob("letter")]
    assert found == ["mine"]


def test_a_reserve_that_is_short_is_made_whole_when_there_is_room(small: Path) -> None:
    reserve = Reserve(small / "reserve")
    reserve.restore()
    assert whole(reserve.path)
    reserve.release()
    filler = fill(small)
    reserve.restore()
    assert reserve.path.stat().st_size < 4096
    filler.unlink()
    reserve.restore()
    assert whole(reserve.path) and reserve.is_ours()


def test_a_reserve_takes_what_room_there_is(small: Path) -> None:
    reserve, room = Reserve(small / "reserve"), small / "room"
    room.write_bytes(bytes(MEBIBYTE))
    fill(small)
    room.unlink()
    reserve.restore()
    assert not whole(reserve.path) and reserve.path.stat().st_blocks * 512 > MEBIBYTE // 2 and reserve.is_ours()
    reserve.release()
    room.write_bytes(bytes(MEBIBYTE // 2))


def test_a_whole_reserve_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reserve = Reserve(tmp_path / "reserve")
    reserve.restore()
    monkeypatch.setattr(Reserve, "is_ours", lambda self: pytest.fail("4 MiB are read"))
    reserve.restore()
    assert whole(reserve.path)


def test_one_file_after_another_can_be_deleted_while_jobs_wait_for_room(small: Path) -> None:
    """Room that the reserve does not take back at once is used by the jobs."""

    async def test(rig: Rig) -> None:
        rig.answerer.gate = asyncio.Event()
        files = [await rig.upload(jsonl(request_line("a"))) for _ in range(20)]
        job = await rig.create(jsonl(*(request_line(str(number), "y" * 30_000) for number in range(64))))
        await until(lambda: rig.answerer.running == 64)
        filler = fill(small)
        rig.answerer.gate.set()
        await until(lambda: rig.service.paused is not None)
        for file in files:
            await rig.files.delete(ANYONE, file.id)
            fill(small)
        assert rig.service.paused is not None
        filler.unlink()
        assert (await rig.ended(job)).completed == 64

    live(small / "data", test, concurrency=64)


def test_the_log_has_one_line_for_a_pause_and_one_for_its_end(small: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test(rig: Rig) -> None:
        rig.answerer.gate = asyncio.Event()
        job = await rig.create(jsonl(*(request_line(str(number), "y" * 30_000) for number in range(64))))
        await until(lambda: rig.answerer.running == 64)
        filler = fill(small)
        rig.answerer.gate.set()
        await until(lambda: rig.service.paused is not None)
        pause = rig.service.paused
        assert pause is not None and pause.reason == "The disk of the data directory is full; make room."
        await asyncio.sleep(0.2)  # twenty tries
        filler.unlink()
        job = await rig.ended(job)
        assert (job.status, job.completed) == ("completed", 64)

    caplog.set_level(logging.INFO, "inflight")
    live(small / "data", test, concurrency=64)
    logged = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.exc_info for record in logged] == [None, None]
    assert "paused" in logged[0].getMessage() and "is full; make room." in logged[0].getMessage()
    assert "go on" in logged[1].getMessage()
