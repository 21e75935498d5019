"""Contents at the start of a server: what was being written is removed, what is not known is moved aside."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from inflight.server.errors import ApiError
from inflight.server.jobs.database import Database
from inflight.server.jobs.files import Content, Files
from inflight.server.jobs.storage import StorageError
from inflight.server.tenants import ANYONE

from .rig import Rig, jsonl, live, refused, request_line, snapshot, until

LINES = jsonl(request_line("a"))


def restart(folder: Path) -> Rig:
    return Rig(folder)


def stopped(rig: Rig) -> None:
    asyncio.run(rig.service.stop())


def test_what_is_not_known_is_moved_aside_and_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(tmp_path / "data")
    file = asyncio.run(rig.upload(LINES))
    stopped(rig)
    (tmp_path / "target").write_text("behind a link")
    for name in ("files", "partial"):
        folder = tmp_path / "data" / name
        (folder / "thesis.tex").write_text(f"mine, in {name}")
        (folder / f"file-{secrets.token_hex(16)}").write_text("of our own form, and not ours")
        (folder / "photos" / "2019").mkdir(parents=True)
        (folder / "photos" / "2019" / "cat.jpg").write_text("meow")
        (folder / "link").symlink_to(tmp_path / "target")
        (folder / "dangling").symlink_to("nowhere")
        (folder / os.fsdecode(b"\xff\xfe")).write_text("no text")
        (folder / "-rf").touch()
    foreign = snapshot(tmp_path / "data" / "files") | {
        f"partial/{name}": content for name, content in snapshot(tmp_path / "data" / "partial").items()
    }
    own = foreign.pop(file.id)
    stopped(restart(tmp_path / "data"))
    (place,) = (tmp_path / "data" / "unknown").iterdir()
    moved = snapshot(place / "files") | {f"partial/{n}": held for n, held in snapshot(place / "partial").items()}
    assert moved == foreign and (tmp_path / "target").read_text() == "behind a link"
    assert snapshot(tmp_path / "data" / "files") == {file.id: own}
    (said,) = [record.getMessage() for record in caplog.records]
    assert f"Moved 14 unknown entries of the data directory to {place};" in said
    # The next start has a place of its own, and overwrites nothing.
    (tmp_path / "data" / "files" / "thesis.tex").write_text("the second edition")
    stopped(restart(tmp_path / "data"))
    texts = {path.read_text() for path in (tmp_path / "data" / "unknown").rglob("files/thesis.tex")}
    assert texts == {"mine, in files", "the second edition"}


@pytest.mark.parametrize("step", ["Content.__init__", "Content.write", "Content.seal", "Database._transact"])
def test_a_crash_at_any_step_of_an_upload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """As in a dead process no row is removed afterwards, and no content."""
    kind, name = step.split(".")
    crashed = {"Content": Content, "Database": Database}[kind]
    works = getattr(crashed, name)

    async def test() -> None:
        rig = Rig(tmp_path)

        def crashes(*given: Any) -> Any:
            has_row = kind == "Content" or len(rows(tmp_path, "SELECT * FROM files")) > 0
            if has_row and not (name == "_transact" and rows(tmp_path, "SELECT sum(bytes) FROM files") == [(0,)]):
                raise StorageError("Dead.")
            return works(*given)

        with monkeypatch.context() as patch:
            patch.setattr(crashed, name, crashes)
            patch.setattr(Content, "discard", lambda content: None)
            patch.setattr(Files, "_forget", no_forgetting)
            assert (await refused(rig.upload(LINES))).status == 507
        rig.service._database.close()
        rig.service._data.release()
        assert len(rows(tmp_path, "SELECT * FROM files WHERE state = 'writing'")) == 1
        await Rig(tmp_path).service.stop()
        assert rows(tmp_path, "SELECT * FROM files") == [] and not any((tmp_path / "partial").iterdir())
        assert not (tmp_path / "unknown").exists()

    asyncio.run(test())


def test_an_upload_that_is_cancelled_while_its_content_is_made_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    makes, begun, goes_on = Content.__init__, threading.Event(), threading.Event()

    def slow(*given: Any) -> None:
        begun.set()
        assert goes_on.wait(30)
        makes(*given)

    async def test(rig: Rig) -> None:
        monkeypatch.setattr(Content, "__init__", slow)
        upload = asyncio.create_task(rig.upload(LINES))
        assert await asyncio.to_thread(begun.wait, 30)
        upload.cancel()
        goes_on.set()
        with pytest.raises(asyncio.CancelledError):
            await upload
        await until(lambda: rows(tmp_path, "SELECT * FROM files") == [] and not any((tmp_path / "partial").iterdir()))

    live(tmp_path, test)


async def no_forgetting(files: Files, ids: Any) -> None:
    """As where the process is dead."""


def rows(folder: Path, query: str) -> list[Any]:
    with contextlib.closing(sqlite3.connect(folder / "batch.sqlite")) as database:
        return database.execute(query).fetchall()


def test_content_whose_row_was_lost_with_the_log_is_moved_aside(tmp_path: Path) -> None:
    """Its upload was answered, but the commit after its last byte is gone: what is in files/ was stored."""

    async def test() -> None:
        rig = Rig(tmp_path)
        file = await rig.upload(LINES)
        await rig.service.stop()
        with contextlib.closing(sqlite3.connect(tmp_path / "batch.sqlite")) as database, database:
            database.execute("UPDATE files SET state = 'writing', filename = ''")
        await Rig(tmp_path).service.stop()
        assert [path.read_bytes() for path in (tmp_path / "unknown").rglob(file.id)] == [LINES]

    asyncio.run(test())


def test_content_that_was_not_moved_can_be_read_and_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(path: Path, target: Path) -> None:
        raise OSError("no room for a name")

    async def test() -> None:
        rig = Rig(tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr(Path, "rename", fails)
            first, second = await rig.upload(LINES), await rig.upload(LINES)
        _, content = await rig.files.open(ANYONE, first.id)
        with content:
            assert content.read() == LINES
        await rig.files.delete(ANYONE, second.id)
        assert [path.name for path in (tmp_path / "partial").iterdir()] == [first.id]
        await rig.service.stop()
        rig = Rig(tmp_path)
        assert [path.name for path in (tmp_path / "files").iterdir()] == [first.id]
        await rig.service.stop()

    asyncio.run(test())


def test_a_crash_in_the_middle_of_a_deletion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def deleted() -> None:
        rig = Rig(tmp_path)
        file = await rig.upload(LINES)
        with monkeypatch.context() as patch:
            patch.setattr(Files, "_remove", lambda files, file_id: False)
            await rig.files.delete(ANYONE, file.id)
        assert (await refused(rig.files.retrieve(ANYONE, file.id))).status == 404
        assert (tmp_path / "files" / file.id).exists()
        await rig.service.stop()

    asyncio.run(deleted())
    stopped(restart(tmp_path))
    assert not any((tmp_path / "files").iterdir()) and not (tmp_path / "unknown").exists()


def test_content_that_is_gone_or_cut_off_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        rig = Rig(tmp_path)
        gone, cut, sound = [await rig.upload(LINES) for _ in range(3)]
        await rig.service.stop()
        (tmp_path / "files" / gone.id).unlink()
        (tmp_path / "files" / cut.id).write_bytes(LINES[:5])
        rig = Rig(tmp_path)
        (said,) = [record.getMessage() for record in caplog.records]
        assert said.startswith("Stored files that have lost their content: 2 (file-") and "\n" not in said
        error = await refused(rig.files.open(ANYONE, gone.id))
        assert (error.status, error.code) == (
            404,
            "content_missing",
        ) and f"({len(LINES)} bytes) is gone" in error.message
        error = await refused(rig.files.open(ANYONE, cut.id))
        assert (error.status, error.code) == (409, "content_damaged")
        assert f"5 bytes, but {len(LINES)} were stored" in error.message
        rig.service.start()
        for file in (gone, cut):
            job = await rig.jobs.create(
                ANYONE, input_file_id=file.id, endpoint="/v1/completions", window="1h", metadata=None
            )
            job = await rig.ended(job)
            assert job.status == "failed" and job.errors[0]["message"].endswith("; upload it again.")
        for file in (gone, cut, sound):
            await rig.files.delete(ANYONE, file.id)
        await rig.service.stop()

    asyncio.run(test())


def test_a_foreign_reserve_is_moved_aside(tmp_path: Path) -> None:
    stopped(restart(tmp_path))
    (tmp_path / "reserve").write_bytes(b"The reserve of the museum: 40 paintings")
    stopped(restart(tmp_path))
    (moved,) = (tmp_path / "unknown").rglob("reserve")
    assert moved.read_bytes() == b"The reserve of the museum: 40 paintings"
    assert (tmp_path / "reserve").stat().st_blocks * 512 >= 4 << 20


def test_a_database_that_goes_away_while_the_server_runs(tmp_path: Path) -> None:
    """SQLite would go on writing into a file without a name."""

    async def test() -> None:
        rig = Rig(tmp_path)
        file = await rig.upload(LINES)
        rig.answerer.gate = asyncio.Event()
        rig.service.start()
        job = await rig.create(LINES)
        await until(lambda: rig.answerer.running == 1)
        (tmp_path / "batch.sqlite").rename(tmp_path / "away")
        for call in (rig.upload(LINES), rig.files.retrieve(ANYONE, file.id), rig.files.delete(ANYONE, file.id)):
            error: ApiError = await refused(call)
            assert error.status == 507 and "batch.sqlite was removed or replaced" in error.message
        rig.answerer.gate.set()
        await until(lambda: rig.service.paused is not None)
        pause = rig.service.paused
        assert pause is not None and "stop the server and restore batch.sqlite from a backup." in pause.reason
        (tmp_path / "away").rename(tmp_path / "batch.sqlite")
        assert (await rig.files.retrieve(ANYONE, file.id)) == file
        assert (await rig.ended(job)).completed == 1
        await rig.service.stop()

    asyncio.run(test())
