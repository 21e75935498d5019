"""Whose folder is it? What is not a server's own is refused in one sentence, and not a byte of it is changed."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from inflight.server.jobs import database
from inflight.server.jobs.storage import DataDirectoryError
from inflight.server.tenants import ANYONE

from .rig import URL, Rig, jsonl, live, request_line, snapshot

LINES = jsonl(*(request_line(str(number)) for number in range(300)))
NAMES = ["batch.sqlite", "files", "lock", "partial", "reserve"]  # in a folder that no server uses


def filled(folder: Path, *, stopped: bool = True) -> str:
    """A data directory with two files and a job; the id of one of them. stopped: else as kill -9 leaves it."""
    if not stopped:
        code = "import sys; sys.path.insert(0, sys.argv[2]); import os, pathlib\n"
        code += "from server.jobs import test_opening\n"
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
    """The error of a start, which must be one sentence, and must change nothing at all."""
    before = snapshot(folder)
    with pytest.raises(DataDirectoryError) as refused:
        Rig(folder)
    after = snapshot(folder)
    for index in (before, after):  # of the log; every reader of the database makes it
        index.pop("batch.sqlite-shm", None)
    assert after == before
    said = str(refused.value)
    assert said.endswith(".") and "\n" not in said and ". " not in said and "; " in said
    return said


def starts(folder: Path) -> list[str]:
    """The ids of files after a start that goes well."""
    rig = Rig(folder)
    files, _ = asyncio.run(rig.files.page(ANYONE, after=None, limit=100, purpose=None, descending=False))
    asyncio.run(rig.service.stop())
    return [file.id for file in files]


@pytest.mark.parametrize("names", [["letter.txt"], ["files/report.pdf"], ["files/", "photos/one.jpg"], [".config"]])
def test_a_foreign_folder_stays_as_it_is(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).mkdir() if name.endswith("/") else (tmp_path / name).write_text("mine")
    assert "has no valid batch.sqlite" in refusal(tmp_path)


def test_a_folder_of_documents_does_not_become_ours_by_an_empty_database(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("mine")
    (tmp_path / "batch.sqlite").touch()
    assert "is not empty ('letter.txt') and has no valid batch.sqlite" in refusal(tmp_path)
    _made(tmp_path / "batch.sqlite", "PRAGMA journal_mode=WAL")
    assert (tmp_path / "batch.sqlite").stat().st_size > 0
    assert "is not a database of this program" in refusal(tmp_path)


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


def test_entries_of_a_file_system_itself_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    assert starts(tmp_path) == [] and starts(tmp_path) == []


@pytest.mark.parametrize("lost", [Path.unlink, lambda path: path.write_bytes(b"")])
@pytest.mark.parametrize("stopped", [True, False])
def test_a_lost_database(tmp_path: Path, lost: Callable[[Path], object], stopped: bool) -> None:
    filled(tmp_path, stopped=stopped)
    whole = (tmp_path / "batch.sqlite").read_bytes()
    lost(tmp_path / "batch.sqlite")
    said = refusal(tmp_path)
    assert "is not empty ('batch.sqlite-" in said or "is not empty ('files/file-" in said
    assert "restore batch.sqlite from a backup" in said
    (tmp_path / "batch.sqlite").write_bytes(whole)
    assert len(starts(tmp_path)) == 2


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
        "UPDATE files SET state = 'kept'",
        "INSERT INTO responses VALUES (1, '', 'resp_1', 1.0, 9, '{\"id\": \"resp_2\", \"output\": []}', '[]')",
        "INSERT INTO responses VALUES (1, '', 'resp_1', 1.0, 9, '{\"id\": \"resp_1\", \"output\": []}', '{}')",
    ],
)
def test_values_that_cannot_be_right(tmp_path: Path, change: str) -> None:
    """A flipped bit of a value: SQLite's own check does not see it."""
    filled(tmp_path)
    with contextlib.closing(sqlite3.connect(tmp_path / "batch.sqlite")) as opened, opened:
        opened.execute("PRAGMA ignore_check_constraints = ON")
        tables = opened.execute(
            "SELECT name, sql FROM sqlite_master WHERE type = 'table' AND name IN ('jobs', 'files')"
        )
        strict = {name: sql for name, sql in tables.fetchall() if "STRICT" in sql}
        opened.execute("PRAGMA writable_schema = ON")
        for name, sql in strict.items():
            opened.execute("UPDATE sqlite_master SET sql = ? WHERE name = ?", (sql.replace(") STRICT", ")"), name))
        opened.commit()
    with contextlib.closing(sqlite3.connect(tmp_path / "batch.sqlite")) as opened, opened:
        opened.execute("PRAGMA ignore_check_constraints = ON")
        opened.execute(change)
        opened.execute("PRAGMA writable_schema = ON")
        for name, sql in strict.items():
            opened.execute("UPDATE sqlite_master SET sql = ? WHERE name = ?", (sql, name))
    said = refusal(tmp_path)
    assert "is damaged (" in said or "(malformed JSON)" in said


def test_flipped_bits_are_refused_with_a_sentence(tmp_path: Path) -> None:
    drawn, path = random.Random(1), tmp_path / "batch.sqlite"
    database.create(path)
    whole = path.read_bytes()
    refused = 0
    for _ in range(300):
        damaged = bytearray(whole)
        for _ in range(drawn.choice((1, 8, 64))):
            damaged[drawn.randrange(len(whole))] ^= 1 << drawn.randrange(8)
        path.write_bytes(damaged)
        try:
            assert database.check(path) == 4
        except DataDirectoryError:
            refused += 1
        assert [one.name for one in tmp_path.iterdir()] == ["batch.sqlite"]
    assert refused > 50


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
            said = refusal(folder)
        if name == "later":
            assert "has the schema version 9, but this program knows 4; use the program that wrote it" in said
        if name == "foreign":
            assert "is not a database of this program" in said


def _made(path: Path, script: str) -> None:
    path.unlink(missing_ok=True)
    with contextlib.closing(sqlite3.connect(path)) as opened:
        opened.executescript(script)


def test_an_older_copy_of_the_database_loses_no_content(tmp_path: Path) -> None:
    """Files that it does not know are moved aside."""
    filled(tmp_path)
    older = (tmp_path / "batch.sqlite").read_bytes()
    newer_file = filled(tmp_path)
    content = snapshot(tmp_path / "files")
    (tmp_path / "batch.sqlite").write_bytes(older)
    assert newer_file not in starts(tmp_path)
    (place,) = (tmp_path / "unknown").iterdir()
    moved, kept = snapshot(place / "files"), snapshot(tmp_path / "files")
    assert moved | kept == content and newer_file in moved and len(moved) == len(kept) == 2
    assert len(starts(tmp_path)) == 2


def test_a_lost_or_damaged_log_loses_no_content(tmp_path: Path) -> None:
    """Without its log the database is an older one: what was committed later is unknown to it."""
    filled(tmp_path, stopped=False)
    log = tmp_path / "batch.sqlite-wal"
    whole, content = log.read_bytes(), set(snapshot(tmp_path / "files").values())
    for damaged in (None, whole[: len(whole) // 2], bytes(len(whole))):
        log.unlink() if damaged is None else log.write_bytes(damaged)
        known = starts(tmp_path)
        texts = snapshot(tmp_path / "files") | snapshot(tmp_path / "unknown")
        assert len(known) < 2 and content <= set(texts.values())
        shutil.rmtree(tmp_path)
        tmp_path.mkdir()
        filled(tmp_path, stopped=False)
        content, whole = set(snapshot(tmp_path / "files").values()), log.read_bytes()
    last = whole[-(24 + 4096) :]
    with log.open("ab") as file:
        file.write(last + last + last[:1000])  # as a power cut leaves a commit that did not return
    assert len(starts(tmp_path)) == 2


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
    steps = ["", "lock", "files", "partial", "batch.sqlite.new", "batch.sqlite.new-journal", "batch.sqlite.new-wal"]
    for count in range(1, len(steps) + 1):
        folder = tmp_path / str(count)
        folder.mkdir()
        for name in steps[1:count]:
            (folder / name).mkdir() if name in ("files", "partial") else (folder / name).write_bytes(
                b"x" * ("." in name)
            )
        assert starts(folder) == [] and sorted(path.name for path in folder.iterdir()) == NAMES


def test_a_foreign_file_named_lock_is_not_overwritten(tmp_path: Path) -> None:
    filled(tmp_path)
    (tmp_path / "lock").write_text("a poem, not a process id")
    starts(tmp_path)
    assert (tmp_path / "lock").read_text() == "a poem, not a process id"


# -- earlier versions -------------------------------------------------------------------------------------------------
OLD = Path(__file__).parent / "old_schemas"


def old_folder(folder: Path, version: int) -> dict[str, str]:
    """A folder of an earlier version, with a job of which two lines are answered: ids of its files."""
    names = ("input", "stored", "moved", "written", "deleted")
    ids = {name: f"file-{hashlib.sha256(name.encode()).hexdigest()[:32]}" for name in names}
    for name in ("files", "partial"):
        (folder / name).mkdir()
    content = jsonl(*(request_line(str(number)) for number in range(5)))
    rows = "INSERT INTO jobs (id, tenant, endpoint, input_file_id, completion_window, metadata, status, created_at, "
    rows += f"expires_at, in_progress_at, total, completed) VALUES ('batch_{'a' * 32}', '', '{URL}', '{ids['input']}', "
    rows += "'1h', 'null', 'in_progress', 1000, 4600, 1001, 5, 2);"
    for line in (1, 2):
        rows += f"INSERT INTO answers VALUES (1, {line}, '{line - 1}', 200, '{{\"old\": true}}');"
    for name in ("input", "stored", "moved") if version > 1 else ("input", "stored"):
        (folder / ("partial" if name == "moved" else "files") / ids[name]).write_bytes(content)
        rows += "INSERT INTO files (id, tenant, filename, purpose, bytes, created_at) "
        rows += f"VALUES ('{ids[name]}', '', '{name}', 'batch', {len(content)}, 1000);"
    if version > 1:
        (folder / "partial" / ids["written"]).write_bytes(b"half")
        (folder / "files" / ids["deleted"]).write_bytes(b"gone")
        rows += f"INSERT INTO leftovers VALUES ('{ids['written']}', 'writing'), ('{ids['deleted']}', 'deleting');"
        rows += "UPDATE store SET seconds = 100, boot = 'this boot', boot_seconds = 400; UPDATE jobs SET due = 3700;"
        (folder / "inflight-data.json").write_text('{"store": "x", "generation": 7}')
        (folder / "begun-lines").write_text(f"batch_{'a' * 32} 3 1 begun\n")
    if version > 2:
        response = '{"id": "resp_1", "output": []}'
        rows += f"INSERT INTO responses VALUES (1, '', 'resp_1', 5000, 99, '{response}', '[]');"
    _made(folder / "batch.sqlite", f"{(OLD / f'version_{version}.sql').read_text()} {rows}")
    return ids


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_folder_of_an_earlier_version_goes_on(tmp_path: Path, version: int) -> None:
    ids = old_folder(tmp_path, version)
    orphan = f"file-{'0' * 32}"
    (tmp_path / "files" / orphan).write_bytes(b"a person has left it")

    async def test(rig: Rig) -> None:
        ((job,), _) = await rig.jobs.page(ANYONE, after=None, limit=10)
        assert job.due == (3600 if version == 1 else 3700)
        job = await rig.ended(job)
        lines = await rig.lines(job.output_file_id)
        assert (job.status, job.completed) == ("completed", 5) and rig.answerer.calls.total() == 3
        assert ["old" in line["response"]["body"] for line in lines] == [True, True, False, False, False]
        assert rig.service._clock.now() == (0 if version == 1 else 200)
        if version > 2:
            assert b"resp_1" in await rig.service.responses.retrieve(ANYONE, "resp_1")

    live(tmp_path, test)
    expected = {ids[name] for name in (("input", "stored", "moved") if version > 1 else ("input", "stored"))}
    assert expected < set(starts(tmp_path)) and len(starts(tmp_path)) == len(expected) + 1
    assert (next((tmp_path / "unknown").rglob(orphan))).read_bytes() == b"a person has left it"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*NAMES, "unknown", "worker"])


@pytest.mark.parametrize("change", ["status = 'in_progrfss'", "metadata = '{'"])
def test_a_damaged_value_of_an_earlier_version_is_refused(tmp_path: Path, change: str) -> None:
    old_folder(tmp_path, 3)
    with contextlib.closing(sqlite3.connect(tmp_path / "batch.sqlite")) as opened, opened:
        opened.execute(f"UPDATE jobs SET {change}")
    for _ in range(2):
        with pytest.raises(DataDirectoryError, match="is damaged"):
            Rig(tmp_path)
