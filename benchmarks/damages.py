"""Damages that can happen to a data directory between two lives of its server, drawn at random."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

DATABASE, LOG = "batch.sqlite", "batch.sqlite-wal"
SIDES = (DATABASE, LOG, "batch.sqlite-shm", "lock", "worker", "reserve")


@dataclass(slots=True)
class Damage:
    """kind: for reports. hurt: paths, relative to the folder, whose content was changed or removed."""

    kind: str
    hurt: set[str] = field(default_factory=set)


def damage(data: Path, older: Path, chosen: random.Random) -> Damage:
    """older: what the folder was some time before. One thing happens, and with every other one foreign files come."""
    kind, work = chosen.choice(_KINDS)
    done = Damage(kind)
    work(data, older, chosen, done)
    if kind != "foreign things" and chosen.random() < 0.5:
        _foreign(data, older, chosen, done)
    return done


def _some(data: Path, chosen: random.Random) -> Path:
    """A file of the server: mostly one that everything hangs on."""
    stored = sorted((data / "files").iterdir())
    sides = [data / name for name in (DATABASE, LOG, DATABASE, *SIDES) if (data / name).exists()]
    return chosen.choice(stored if stored and chosen.random() < 0.3 else sides)


def _hurt(data: Path, path: Path, done: Damage) -> None:
    done.hurt.add(str(path.relative_to(data)))


def _delete(data: Path, older: Path, chosen: random.Random, done: Damage) -> None:
    path = _some(data, chosen)
    path.unlink()
    _hurt(data, path, done)


def _delete_folder(data: Path, older: Path, chosen: random.Random, done: Damage) -> None:
    folder = data / "files"
    for path in folder.iterdir():
        _hurt(data, path, done)
    shutil.rmtree(folder)


def _truncate(data: Path, older: Path, chosen: random.Random, done: Damage) -> None:
    path = _some(data, chosen)
    size = path.stat().st_size
    os.truncate(path, chosen.choice((0, chosen.randrange(size) if size else 0)))
    _hurt(data, path, done)


def _flip(data: Path, older: Path, chosen: random.Random, done: Damage) -> None:
    path = _some(data, chosen)
    content = bytearray(path.read_bytes())
    for _ in range(chosen.choice((1, 1, 8, 64)) if content else 0):
        content[chosen.randrange(len(content))] ^= 1 << chosen.randrange(8)
    path.write_bytes(content)
    _hurt(data, path, done)


def _overwrite(data: Path, older: Path, chosen: random.Random, done: Damage) -> None:
    """Two per cent of the bytes, anywhere but on the first page."""
    path = data / chosen.choice((DATABASE, LOG))
    content = bytearray(path.read_bytes())
    for _ in range(len(content) // 50):
        content[chosen.randrange(min(4096, len(content) - 1), len(content))] = chosen.randrange(256)
    path.write_bytes(content)
    _hurt(data, path, done)


def _older_database(data: Path, older: Path, chosen: random.Random, done: Damage) -> None:
    names = chosen.choice(((DATABASE,), (LOG,), (DATABASE, LOG)))
    for name in names:
        (data / name).unlink(missing_ok=True)
        if (older / name).exists():
            shutil.copyfile(older / name, data / name)
        done.hurt.add(name)


def _older_folder(data: Path, older: Path, chosen: random.Random, done: Damage) -> None:
    """Restored over what is there, as people do; or in its place."""
    if chosen.random() < 0.5:
        done.hurt.update(str(path.relative_to(data)) for path in data.rglob("*"))
        shutil.rmtree(data)
    for path in older.rglob("*"):
        done.hurt.add(str(path.relative_to(older)))
    shutil.copytree(older, data, dirs_exist_ok=True)


def _another_database(data: Path, older: Path, chosen: random.Random, done: Damage) -> None:
    for name in (DATABASE, LOG, "batch.sqlite-shm"):
        (data / name).unlink(missing_ok=True)
        done.hurt.add(name)
    with contextlib.closing(sqlite3.connect(data / DATABASE)) as database:
        version = chosen.choice((0, 1, 2, 9))
        database.executescript(f"CREATE TABLE photos (x); PRAGMA user_version = {version};")


def _no_database(data: Path, older: Path, chosen: random.Random, done: Damage) -> None:
    """Leave documents of a person: nothing of a server, and folders that happen to have the names of its own."""
    for name in (*SIDES, *(("files",) if chosen.random() < 0.5 else ())):
        path = data / name
        done.hurt.add(name)
        if path.is_dir():
            done.hurt.update(str(held.relative_to(data)) for held in path.rglob("*"))
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    _foreign(data, older, chosen, done)


def _foreign(data: Path, older: Path, chosen: random.Random, done: Damage) -> None:
    """Add files, folders and links of a person, where the server looks and where it does not."""
    for number in range(chosen.randrange(1, 6)):
        name = chosen.choice(
            ("thesis.tex", "-rf", ".hidden", "photos", f"file-{chosen.randbytes(16).hex()}", "reserve.bak")
        )
        folder = data / chosen.choice(("files", "partial", "files", "partial", ".", "unknown", "new/deep"))
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{name}{'' if name.startswith('file-') else number}"
        content = b"foreign " + chosen.randbytes(chosen.choice((1, 1000, 100_000)))
        if name == "photos":
            path.mkdir()
            path /= "cat.jpg"
        path.write_bytes(content)
        if chosen.random() < 0.2:
            path.with_name(f"{path.name}.link").symlink_to(path)


_KINDS: tuple[tuple[str, Callable[[Path, Path, random.Random, Damage], None]], ...] = (
    ("deleted", _delete),
    ("deleted", _delete_folder),
    ("truncated", _truncate),
    ("bits flipped", _flip),
    ("bits flipped", _flip),
    ("bits flipped", _overwrite),
    ("older copy", _older_database),
    ("older copy", _older_folder),
    ("foreign things", _foreign),
    ("another's database or folder", _another_database),
    ("another's database or folder", _no_database),
)
