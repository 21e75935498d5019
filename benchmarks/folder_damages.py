"""Draw at random what can happen to the files of a folder of blocks while engines use it."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path


class Damages:
    """done: files and folders that were damaged so far, by what was done to them."""

    def __init__(self, folder: Path, drawn: random.Random):
        self._folder, self._drawn = folder, drawn
        self.done: Counter[str] = Counter()

    def one(self) -> None:
        """Something happens to one of the files, if there is any; engines may be faster."""
        files = [path for path, size in _sizes(self._folder) if size]
        if not files:
            return
        kind, work = self._drawn.choice(_KINDS)
        with contextlib.suppress(OSError, ValueError):  # it was cut to nothing meanwhile
            work(self._drawn.choice(files), self._drawn.choice(files), self._drawn)
            self.done[kind] += 1


def _sizes(folder: Path) -> list[tuple[Path, int]]:
    """Return the files that are in the folder now, with their sizes."""
    found = []
    for path in folder.rglob("*.kv"):
        with contextlib.suppress(OSError):
            found.append((path, path.stat().st_size if path.is_file() else 0))
    return found


def _flip(path: Path, other: Path, drawn: random.Random) -> None:
    with open(path, "r+b", buffering=0) as file:
        for _ in range(drawn.choice((1, 1, 8, 64))):
            at = drawn.randrange(os.fstat(file.fileno()).st_size)
            (byte,) = os.pread(file.fileno(), 1, at)
            os.pwrite(file.fileno(), bytes([byte ^ 1 << drawn.randrange(8)]), at)


def _truncate(path: Path, other: Path, drawn: random.Random) -> None:
    size = path.stat().st_size
    os.truncate(path, drawn.choice((0, drawn.randrange(size), size - 1)))


def _extend(path: Path, other: Path, drawn: random.Random) -> None:
    with open(path, "ab", buffering=0) as file:
        file.write(drawn.randbytes(drawn.choice((1, 4096))))


def _swap(path: Path, other: Path, drawn: random.Random) -> None:
    aside = path.with_suffix(".swapped")
    os.rename(path, aside)
    os.rename(other, path)
    os.rename(aside, other)


def _copy(path: Path, other: Path, drawn: random.Random) -> None:
    """In its place, without moving it there: a reader meanwhile sees some of both."""
    path.write_bytes(other.read_bytes())


def _another_model(path: Path, other: Path, drawn: random.Random) -> None:
    with open(path, "r+b", buffering=0) as file:
        os.pwrite(file.fileno(), drawn.randbytes(16), 24)  # the identity, behind the mark and the digest


def _garbage(path: Path, other: Path, drawn: random.Random) -> None:
    path.write_bytes(drawn.randbytes(path.stat().st_size))


def _delete(path: Path, other: Path, drawn: random.Random) -> None:
    path.unlink()


def _delete_part(path: Path, other: Path, drawn: random.Random) -> None:
    shutil.rmtree(path.parent)


def _folder_in_its_place(path: Path, other: Path, drawn: random.Random) -> None:
    path.unlink()
    path.mkdir()
    (path / "other").write_bytes(b"")


def _file_for_its_part(path: Path, other: Path, drawn: random.Random) -> None:
    """Where a folder of blocks was there is a file: nothing can be written below it."""
    shutil.rmtree(path.parent)
    path.parent.write_bytes(b"")


_KINDS: tuple[tuple[str, Callable[[Path, Path, random.Random], None]], ...] = (
    *(("bits flipped", _flip),) * 3,
    *(("truncated", _truncate),) * 2,
    ("bytes added", _extend),
    *(("swapped", _swap),) * 2,
    *(("overwritten by another block's", _copy),) * 2,
    ("another model's", _another_model),
    ("garbage", _garbage),
    *(("deleted", _delete),) * 2,
    ("deleted, a folder of them", _delete_part),
    ("a folder in a file's place", _folder_in_its_place),
    ("a file in a folder's place", _file_for_its_part),
)
