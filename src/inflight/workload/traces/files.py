"""Read trace files, plain or gzip: their beginning for detection, CSV with columns found by name, and JSON lines."""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any, TypeGuard

from inflight.counted import cause_of
from inflight.workload.traces.rows import Reading, Rows
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
    """A trace file, plain or gzip."""

    def __init__(self, path: Path):
        self.path = path

    @contextmanager
    def open(self) -> Iterator[IO[str]]:
        """Open the text; broken characters are replaced, and break their row. Raises WorkloadError."""
        try:
            with self.path.open("rb") as raw:
                zipped = raw.read(2) == b"\x1f\x8b"
                raw.seek(0)
            opened = gzip.open if zipped else open
            with opened(self.path, "rt", encoding="utf-8-sig", errors="replace", newline="") as file:
                yield file
        except (OSError, EOFError, zlib.error, csv.Error) as error:
            raise WorkloadError(f"The trace {self.path} cannot be read: {cause_of(error)}.") from None

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
    """Return the keys of the first object; of the first readable line, if that one is broken; or of the beginning of
    an object that ends beyond the text."""
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
    """Return the keys whose values are in the text of an object whose end is not."""
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


NO_NUMBERS = "timestamp, input_length or output_length is missing or no number"
_MAX_TIME = 1e18  # in any unit; JSON has whole numbers that no float can represent


def objects(file: IO[str], rows: Rows, skip: str = "\n", first: int = 1) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, object) of every line that is one; the others are counted as malformed. skip: the beginning
    of lines that are passed over unread. first: the number of the line that comes next."""
    decode = json.JSONDecoder().raw_decode  # without the two searches for spaces that `json.loads` makes
    for number, line in enumerate(file, first):
        if line.startswith(skip):
            continue
        try:
            row, end = decode(line)
            if len(line) - end > 2 and line[end:].strip():
                raise ValueError("more than one value")
        except (ValueError, RecursionError):
            if line.strip():
                rows.broken(number, "not JSON")
            continue
        if type(row) is dict:
            yield number, row
        else:
            rows.broken(number, "not a JSON object")


def numbers(row: dict[str, Any]) -> tuple[float, int, int] | None:
    """Return `timestamp`, `input_length` and `output_length` as they are; None where one is missing or no number."""
    arrival, prompt, output = row.get("timestamp"), row.get("input_length"), row.get("output_length")
    if type(prompt) is int and type(output) is int and (type(arrival) is float or type(arrival) is int):
        return (arrival, prompt, output) if -_MAX_TIME < arrival < _MAX_TIME else None
    return None


def is_whole_list(value: Any) -> TypeGuard[list[int]]:
    """Return whether it is a list of whole numbers; the type of their sum shows it faster than a look at each."""
    try:
        return type(value) is list and type(sum(value)) is int
    except TypeError:
        return False


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """A trace format.

    Attributes:
        looks_for: a description of what `recognises` looks for in a file's beginning.
        load: fills the rows.
        in_order: whether disorder is worth a note; some formats are not written in the order of arrivals.
    """

    name: str
    looks_for: str
    recognises: Callable[[Head], bool]
    load: Callable[[Source, Rows, Reading], None]
    in_order: bool = True


class Table:
    """A CSV file after its header."""

    def __init__(self, file: IO[str], rows: Rows):
        header = file.readline()
        # Where nothing is quoted, a stray quote is a broken row, not the beginning of a field of many lines.
        lines, quoted = chain([header], file), '"' in header
        self._reader = csv.reader(lines, quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE)
        self._rows = rows
        self._columns = column_names(next(self._reader, []))

    def columns(self, *names: str) -> list[int]:
        """Return the indices of columns. Raises WorkloadError for one that is not there."""
        for name in names:
            if name not in self._columns:
                raise WorkloadError(f"{self._rows.path} has no column {name!r}; it has {', '.join(self._columns)}.")
        return [self._columns.index(name) for name in names]

    def optional(self, name: str) -> int | None:
        return self._columns.index(name) if name in self._columns else None

    def read(
        self,
        time: int,
        prompt: int,
        output: int,
        seconds: Callable[[str], float] = float,
        session: int | None = None,
        traffic: Callable[[list[str]], str] | None = None,
    ) -> None:
        """Take every row; the numbers are those of columns."""
        rows, reader, width = self._rows, self._reader, len(self._columns)
        for row in self._readable():
            if len(row) != width:
                if row:
                    rows.broken(reader.line_num, "another number of columns than the header's")
                continue
            try:
                arrival, prompt_tokens, output_tokens = seconds(row[time]), int(row[prompt]), int(row[output])
            except (ValueError, OverflowError):
                rows.broken(reader.line_num, "its time or one of its lengths is not a number")
                continue
            rows.take(
                reader.line_num, arrival, prompt_tokens, output_tokens,
                session="" if session is None else row[session], traffic="" if traffic is None else traffic(row),
            )  # fmt: skip

    def _readable(self) -> Iterator[list[str]]:
        while True:
            try:
                yield from self._reader
                return
            except csv.Error as error:  # the reader goes on with the next line
                self._rows.broken(self._reader.line_num, f"not CSV ({error})")
