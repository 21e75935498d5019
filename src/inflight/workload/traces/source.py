"""A trace file on disk: plain or gzip, its beginning for detection, its lines for loading.

Knows bytes and text; nothing of formats.
"""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from inflight.workload.workload import WorkloadError

_HEAD = 1 << 16  # characters
_TRIES = 20  # lines that are looked at for an object


@dataclass(frozen=True, slots=True)
class Head:
    """The beginning of a file. names: CSV columns in lower case, or the keys of the first JSON object."""

    text: str
    is_json: bool
    names: frozenset[str]

    def has(self, *names: str) -> bool:
        return self.names.issuperset(names)

    @property
    def described(self) -> str:
        if not self.text.strip():
            return "an empty file"
        what = "JSON with the keys" if self.is_json else "columns"
        found = ", ".join(sorted(self.names)[:20])
        return f"{what} {found}" if found else f"text that begins with {self.text.strip()[:60]!r}"


class Source:
    def __init__(self, path: Path):
        self.path = path

    @contextmanager
    def open(self) -> Iterator[IO[str]]:
        """The text. What cannot be read is a WorkloadError; broken characters are replaced, and break their row."""
        try:
            with self.path.open("rb") as raw:
                zipped = raw.read(2) == b"\x1f\x8b"
                raw.seek(0)
            opened = gzip.open if zipped else open
            with opened(self.path, "rt", encoding="utf-8-sig", errors="replace", newline="") as file:
                yield file
        except (OSError, EOFError, zlib.error, csv.Error) as error:
            raise WorkloadError(f"The trace {self.path} cannot be read: {error}.") from None

    def head(self) -> Head:
        with self.open() as file:
            text = file.read(_HEAD)
        if text.lstrip()[:1] in ("{", "["):
            return Head(text, True, frozenset(_first_keys(text)))
        columns = next(csv.reader(text.splitlines()[:1]), [])
        return Head(text, False, frozenset(column_names(columns)))


def column_names(row: list[str]) -> list[str]:
    return [cell.strip().lower() for cell in row]


def _first_keys(text: str) -> list[str]:
    """Of the first object; of the first line that can be read, if that one is broken; or of what is there of an object
    that ends beyond the text."""
    start = text.find("{")
    try:
        found, _ = json.JSONDecoder().raw_decode(text, start) if start >= 0 else ({}, 0)
        return list(found)
    except (ValueError, RecursionError):
        lines = text.splitlines()[:_TRIES] if text.lstrip().startswith("{") else []
        whole = (one for one in map(_object, lines) if one is not None)
        return list(next(whole, ())) or _keys_of_cut(text[start + 1 :])


def _object(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _keys_of_cut(text: str) -> list[str]:
    """The keys of an object whose end is not in the text: those whose values are."""
    decode, keys, at = json.JSONDecoder().raw_decode, [], 0
    while True:
        try:
            at = _skip(text, at)
            key, at = decode(text, at)
            keys.append(str(key))
            at = _skip(text, at)
            _, at = decode(text, at)
        except (ValueError, RecursionError):
            return keys


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n,:":
        at += 1
    return at
