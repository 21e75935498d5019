"""Whose folder is it? What is not a server's own is refused in one sentence, and not a byte of it is changed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from inflight.server.batch.checking import DatabaseError
from inflight.server.batch.data import DataDirectoryError
from inflight.server.batch.database import LOG_BYTES
from inflight.server.batch.marker import MARKER, read_marker
from inflight.server.batch.records import LineAnswer
from inflight.server.tenants import ANYONE

from .rig import Rig, jsonl, request_line, snapshot

LINES = jsonl(*(request_line(str(number)) for number in range(300)))


def filled(folder: Path, *, stopped: bool = True) -> str:
    """A data directory with two files and a job; the id of one of them. stopped: else as kill -9 leaves it."""
    if not stopped:
        code = "import sys; sys.path.insert(0, sys.argv[2]); import os, pathlib\n"
        code += "from server.batch import test_opening\n"
        code += "print(test_opening.filled(pathlib.Path(sys.argv[1])), flush=True) or os.kill(os.getpid(), 9)"
        code = code.replace("filled(pathlib.Path(sys.argv[1]))", "begun(pathlib.Path(sys.argv[1]))")
        tests = Path(__file__).resolve().parents[2]
        killed = subprocess.run(
            [sys.executable, "-c", code, folder, tests], capture_output=True, text=True, check=False
        )
        assert killed.returncode == -9, killed.stderr
        return killed.stdout.strip()
    asyncio.run((rig := Rig(folder)).create(LINES))
    file = asyncio.run(rig.upload(LINES))
    asyncio.run(rig.service.stop())
    return file.id


def begun(folder: Path) -> str:
    """`filled` without an end; the caller is to die."""
    global _held  # until then it is not to be taken back
    _held = rig = Rig(folder)
    asyncio.run(rig.create(LINES))
    return asyncio.run(rig.upload(LINES)).id


def refusal(folder: Path) -> str:
    """What a start says, which must be one sentence, and must change nothing at all."""
    before = snapshot(folder)
    with pytest.raises((DataDirectoryError, DatabaseError)) as refused:
        Rig(folder)
    after = snapshot(folder)
    for index in (before, after):  # of the log; whoever reads the database makes it anew
        index.pop("batch.sqlite-shm", None)
    assert after == before
    told = str(refused.value)
    assert told.endswith(".") and "\n" not in told and ". " not in told and "; " in told
    return told


def starts(folder: Path) -> list[str]:
    """The ids of files after a start that goes well."""
    rig = Rig(folder)
    files, _ = asyncio.run(rig.files.page(ANYONE, after=None, limit=100, purpose=None, descending=False))
    asyncio.run(rig.service.stop())
    return [file.id for file in files]


@pytest.mark.parametrize("names", [["letter.txt"], ["files/report.pdf"], ["files/", "photos/one.jpg"], [".config"]])
def test_a_folder_of_somebodys_documents_stays_as_it_is(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).mkdir() if name.endswith("/") else (tmp_path / name).write_text("mine")
    assert "neither inflight-data.json nor batch.sqlite" in refusal(tmp_path)


def test_a_folder_of_documents_does_not_become_ours_by_an_empty_database(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("mine")
    (tmp_path / "batch.sqlite").touch()
    assert "holds 'letter.txt' (entries in all: 1)" in refusal(tmp_path)
    _made(tmp_path / "batch.sqlite", "PRAGMA journal_mode=WAL")
    assert (tmp_path / "batch.sqlite").stat().st_size > 0
    assert "holds 'letter.txt' (entries in all: 1)" in refusal(tmp_path)


def _dead_while_it_makes_its_first_page(folder: Path) -> None:
    """Between the write of the page and the removal of the journal, which says that there were no pages before."""
    _made(folder / "batch.sqlite", "PRAGMA journal_mode=WAL")
    journal = bytes.fromhex("d9d505f920a163d7 00000000 96b19677 00000000 00000200 00001000")
    (folder / "batch.sqlite-journal").write_bytes(journal + bytes(512 - len(journal)))
    reader = sqlite3.connect(f"file:{folder / 'batch.sqlite'}?mode=ro", uri=True)
    with contextlib.closing(reader), pytest.raises(sqlite3.OperationalError):
        reader.execute("PRAGMA user_version")


def test_a_start_that_died_while_it_made_the_database(tmp_path: Path) -> None:
    _dead_while_it_makes_its_first_page(tmp_path)
    assert starts(tmp_path) == [] and (tmp_path / MARKER).exists()
    documents = tmp_path / "documents"
    documents.mkdir()
    (documents / "letter.txt").write_text("mine")
    _dead_while_it_makes_its_first_page(documents)
    assert "holds 'letter.txt'" in refusal(documents)


def test_a_refusal_names_what_it_is_about(tmp_path: Path) -> None:
    (tmp_path / "files").write_text("no folder")
    assert f"Not a directory ({tmp_path / 'files'}); check it." in refusal(tmp_path)
    (tmp_path / "files").unlink()
    filled(tmp_path)
    (tmp_path / "lock").unlink()
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    assert f" ({tmp_path / 'lock'}); check it." in refusal(tmp_path)
    (tmp_path / "lock").unlink()
    shutil.rmtree(tmp_path / "files")
    (tmp_path / "files").write_text("no folder")
    assert "is no folder of its own but a link or a file; put the folder" in refusal(tmp_path)


def test_what_a_file_system_holds_by_itself_is_nobodys(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    assert starts(tmp_path) == [] and starts(tmp_path) == []


@pytest.mark.parametrize("lost", [Path.unlink, lambda path: path.write_bytes(b"")])
@pytest.mark.parametrize("stopped", [True, False])
def test_a_lost_database(tmp_path: Path, lost: Callable[[Path], object], stopped: bool) -> None:
    filled(tmp_path, stopped=stopped)
    whole = (tmp_path / "batch.sqlite").read_bytes()
    lost(tmp_path / "batch.sqlite")
    told = refusal(tmp_path)
    assert "has lost its database (batch.sqlite is missing or empty) and still has 2 files" in told
    (tmp_path / "batch.sqlite").write_bytes(whole)
    assert len(starts(tmp_path)) == 2
    (tmp_path / MARKER).unlink()
    (tmp_path / "batch.sqlite").unlink()
    refusal(tmp_path)


@pytest.mark.parametrize("offset", [0, 5, 30, 4096 + 3, 2 * 4096 + 1, 5 * 4096])
def test_a_damaged_database(tmp_path: Path, offset: int) -> None:
    filled(tmp_path)
    whole = (tmp_path / "batch.sqlite").read_bytes()
    damaged = bytearray(whole)
    damaged[offset : offset + 60] = bytes(255 - byte for byte in damaged[offset : offset + 60])
    (tmp_path / "batch.sqlite").write_bytes(damaged)
    assert "damaged" in refusal(tmp_path) or "cannot be used as a database" in refusal(tmp_path)
    (tmp_path / "batch.sqlite").write_bytes(whole)
    assert len(starts(tmp_path)) == 2


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE jobs SET status = 'in_progrfss'",
        "UPDATE jobs SET metadata = '{'",
        "UPDATE jobs SET errors = '{}'",
        "UPDATE jobs SET due = 'soon'",
        "UPDATE jobs SET output_file_id = '../../etc/passwd'",
        "UPDATE jobs SET id = 'batch_1'",
        "UPDATE jobs SET endpoint = '/v1/completionz'",
        "UPDATE jobs SET errors = '[{}]'",
        "UPDATE jobs SET errors = '[1]'",
        "UPDATE jobs SET metadata = '{\"a\": 1}'",
        "UPDATE jobs SET in_progress_at = 'soon'",
        "UPDATE jobs SET cancelled_at = 1.5",
        "UPDATE jobs SET model = x'00'",
        "UPDATE jobs SET output_tokens = 'many'",
        "UPDATE jobs SET completed = x'31'",
        "UPDATE files SET purpose = 'botch'",
        "UPDATE files SET filename = x'00'",
        "UPDATE files SET bytes = 0.5",
        "UPDATE files SET id = '../lock' WHERE number = 1",
        "UPDATE files SET id = CAST(x'66696c652dff' AS TEXT) WHERE number = 1",
        "DELETE FROM store",
    ],
)
def test_values_that_cannot_be_right(tmp_path: Path, change: str) -> None:
    """A flipped bit of a value: SQLite's own check does not see it."""
    filled(tmp_path)
    with contextlib.closing(sqlite3.connect(tmp_path / "batch.sqlite")) as database, database:
        database.execute(change)
    assert "is damaged (" in refusal(tmp_path)


def test_rubbish_and_databases_of_others(tmp_path: Path) -> None:
    filled(tmp_path / "own")
    for name, make in {
        "rubbish": lambda path: path.write_bytes(b"x" * 5000),
        "short": lambda path: path.write_bytes(b"SQLite"),
        "foreign": lambda path: _made(path, "CREATE TABLE photos (x)"),
        "busy": lambda path: _made(path, "PRAGMA journal_mode=WAL; CREATE TABLE photos (x); PRAGMA user_version = 1"),
        "later": lambda path: _made(path, "PRAGMA application_id = 0x696E666C; PRAGMA user_version = 9"),
    }.items():
        alone, beside = tmp_path / name, tmp_path / f"{name} beside files"
        alone.mkdir()
        shutil.copytree(tmp_path / "own", beside)
        for folder in (alone, beside):
            make(folder / "batch.sqlite")  # type: ignore[no-untyped-call]
            told = refusal(folder)
        if name == "later":
            assert "has the schema version 9, but this program knows 3; use the program that wrote it" in told
        if name == "foreign":
            assert "is not a database of this program" in told


def _made(path: Path, script: str) -> None:
    path.unlink(missing_ok=True)
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.executescript(script)


def test_an_older_copy_of_the_database(tmp_path: Path) -> None:
    filled(tmp_path)
    older = (tmp_path / "batch.sqlite").read_bytes()
    newer_file = filled(tmp_path)
    newer = (tmp_path / "batch.sqlite").read_bytes()
    (tmp_path / "batch.sqlite").write_bytes(older)
    told = refusal(tmp_path)
    assert "is an older copy, or lost its batch.sqlite-wal" in told and "generation 1, the folder at 2" in told
    (tmp_path / "batch.sqlite").write_bytes(newer)
    assert newer_file in starts(tmp_path)
    # Taken as it is, it loses nothing either: what it does not know is moved aside.
    (tmp_path / "batch.sqlite").write_bytes(older)
    (tmp_path / MARKER).unlink()
    content = snapshot(tmp_path / "files")
    assert newer_file not in starts(tmp_path)
    (place,) = (tmp_path / "unknown").iterdir()
    moved, kept = snapshot(place / "files"), snapshot(tmp_path / "files")
    assert moved | kept == content and newer_file in moved and len(moved) == len(kept) == 2
    assert len(starts(tmp_path)) == 2


@pytest.mark.parametrize("checkpoints", [0, 2])
def test_a_lost_log(tmp_path: Path, checkpoints: int) -> None:
    """At no time is the database alone as far as its marker: without its log it is an older copy."""
    answer = LineAnswer(job=1, line=1, custom_id=None, status=200, payload="x" * (LOG_BYTES + 1))

    async def fill() -> None:
        rig = Rig(tmp_path)
        await rig.create(LINES)
        for line in range(checkpoints):
            await rig.service._store.keep([LineAnswer(**{**answer_fields(answer), "line": line + 1})])
        generation = read_marker(tmp_path).generation
        assert generation == 1 + checkpoints
        for name in ("batch.sqlite", "batch.sqlite-wal"):
            shutil.copy(tmp_path / name, tmp_path.with_name(f"{tmp_path.name} {name}"))
        marker = (tmp_path / MARKER).read_bytes()
        await rig.service.stop()
        for name in ("batch.sqlite", "batch.sqlite-wal"):
            shutil.move(tmp_path.with_name(f"{tmp_path.name} {name}"), tmp_path / name)
        (tmp_path / MARKER).write_bytes(marker)

    asyncio.run(fill())
    log = (tmp_path / "batch.sqlite-wal").read_bytes()
    (tmp_path / "batch.sqlite-wal").unlink()
    if checkpoints:
        assert "lost its batch.sqlite-wal" in refusal(tmp_path)
    else:  # not even the tables were in it yet
        assert "is not the database that inflight-data.json names" in refusal(tmp_path)
    (tmp_path / "batch.sqlite-wal").write_bytes(log)
    assert len(starts(tmp_path)) == 1


def test_a_damaged_log(tmp_path: Path) -> None:
    """SQLite would read it up to the damage, and forget what was promised behind it."""
    filled(tmp_path, stopped=False)
    log = tmp_path / "batch.sqlite-wal"
    whole, frame = log.read_bytes(), 24 + 4096
    assert len(whole) > 20 * frame
    for number in range(len(whole) // frame):
        damaged = bytearray(whole)
        damaged[32 + number * frame + 2000] ^= 1
        log.write_bytes(damaged)
        if number < len(whole) // frame - 8:
            told = refusal(tmp_path)
            assert "batch.sqlite-wal is damaged" in told or "stands at generation" in told or "names; put back" in told
            assert number < 10 or "transactions in it cannot be read" in told
    log.write_bytes(whole)
    assert len(starts(tmp_path)) == 2


def test_a_log_that_a_power_cut_left(tmp_path: Path) -> None:
    filled(tmp_path, stopped=False)
    log = tmp_path / "batch.sqlite-wal"
    last = log.read_bytes()[-(24 + 4096) :]
    with log.open("ab") as file:
        file.write(last + last + last[:1000])  # of a commit that did not return
    assert len(starts(tmp_path)) == 2


def answer_fields(answer: LineAnswer) -> dict[str, object]:
    return {name: getattr(answer, name) for name in ("job", "line", "custom_id", "status", "payload")}


def test_a_database_of_another_folder(tmp_path: Path) -> None:
    filled(tmp_path / "one")
    filled(tmp_path / "two")
    shutil.copy(tmp_path / "one" / "batch.sqlite", tmp_path / "two" / "batch.sqlite")
    assert "is not the database that inflight-data.json names; put back the one" in refusal(tmp_path / "two")


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[" * 4096, b"\xff", b"[]", b'{"store": 5, "generation": 1}', b'{"store": "x"}']
)
def test_a_damaged_marker(tmp_path: Path, text: bytes) -> None:
    filled(tmp_path)
    (tmp_path / MARKER).write_bytes(text)
    assert "remove it to go on with batch.sqlite as it is" in refusal(tmp_path)
    (tmp_path / MARKER).unlink()
    assert len(starts(tmp_path)) == 2
    assert json.loads((tmp_path / MARKER).read_text())["generation"] >= 2


def test_links_in_the_place_of_our_folders(tmp_path: Path) -> None:
    filled(tmp_path / "data")
    (tmp_path / "data" / "files").rename(tmp_path / "elsewhere")
    (tmp_path / "data" / "files").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "letter").write_text("mine")
    assert "is no folder of its own but a link" in refusal(tmp_path / "data")
    (tmp_path / "data" / "batch.sqlite").rename(tmp_path / "db")
    (tmp_path / "data" / "batch.sqlite").symlink_to(tmp_path / "db")
    assert "is no file but a link" in refusal(tmp_path / "data")


def test_a_start_that_died_at_any_time_goes_on(tmp_path: Path) -> None:
    """Whatever of a new folder is there, in the order in which it is made."""
    filled(tmp_path / "whole")
    steps = ["", "lock", "files", "partial", "batch.sqlite", f".{MARKER}.new"]
    for count in range(1, len(steps) + 1):
        folder = tmp_path / str(count)
        folder.mkdir()
        for name in steps[1:count]:
            (folder / name).mkdir() if name in ("files", "partial") else (folder / name).touch()
        assert starts(folder) == [] and (folder / MARKER).exists()


def test_a_lock_that_is_somebodys_file_is_not_overwritten(tmp_path: Path) -> None:
    filled(tmp_path)
    (tmp_path / "lock").write_text("a poem, not a process id")
    starts(tmp_path)
    assert (tmp_path / "lock").read_text() == "a poem, not a process id"


# -- version 1 --------------------------------------------------------------------------------------------------
def as_version_1(folder: Path, *, stopped: bool) -> None:
    """The folder as the version before the marker left it."""
    with contextlib.closing(sqlite3.connect(folder / "batch.sqlite", isolation_level=None)) as database:
        database.executescript(
            "DROP TABLE leftovers; DROP TABLE store; DROP TABLE responses; DROP TABLE response_usage;"
            "ALTER TABLE jobs DROP COLUMN due;"
            "ALTER TABLE jobs DROP COLUMN model; ALTER TABLE jobs DROP COLUMN input_tokens;"
            "ALTER TABLE jobs DROP COLUMN cached_tokens; ALTER TABLE jobs DROP COLUMN output_tokens;"
            "PRAGMA application_id = 0; PRAGMA user_version = 1;"
        )
        log = folder / "batch.sqlite-wal"
        if not stopped:
            sides = {path: path.read_bytes() for path in (folder / "batch.sqlite", log)}
    if not stopped:
        for path, content in sides.items():
            path.write_bytes(content)
    (folder / MARKER).unlink()
    (folder / "reserve").unlink()


@pytest.mark.parametrize("stopped", [True, False])
def test_a_folder_of_the_version_before_is_taken_over(tmp_path: Path, stopped: bool) -> None:
    filled(tmp_path)
    as_version_1(tmp_path, stopped=stopped)
    orphan = f"file-{'0' * 32}"
    (tmp_path / "files" / orphan).write_bytes(b"a crash left it, or a person")

    async def whole() -> None:
        rig = Rig(tmp_path)
        rig.now += 10**7  # nobody knows how much of the window has passed
        rig.service.start()
        ((job,), _) = await rig.jobs.page(ANYONE, after=None, limit=10)
        job = await rig.ended(job)
        assert (job.status, job.completed) == ("completed", 300)
        await rig.service.stop()

    asyncio.run(whole())
    assert len(starts(tmp_path)) == 3 and (tmp_path / MARKER).exists()
    (moved,) = (tmp_path / "unknown").rglob(orphan)
    assert moved.read_bytes() == b"a crash left it, or a person"
    (tmp_path / "batch.sqlite").write_bytes(b"")
    refusal(tmp_path)


def test_a_folder_of_the_version_before_without_its_database(tmp_path: Path) -> None:
    filled(tmp_path)
    as_version_1(tmp_path, stopped=True)
    (tmp_path / "batch.sqlite").unlink()
    assert "neither inflight-data.json nor batch.sqlite" in refusal(tmp_path)
