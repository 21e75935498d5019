"""The two shapes that traces come in, read fast: CSV with columns found by name, and JSON, an object a line."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from itertools import chain
from typing import IO, Any, TypeGuard

from inflight.workload.traces.rows import Rows
from inflight.workload.traces.source import column_names
from inflight.workload.workload import WorkloadError

NO_NUMBERS = "timestamp, input_length or output_length is missing or no number"
_FAR = 1e18  # whatever the unit; JSON holds whole numbers that no float does


def objects(file: IO[str], rows: Rows, skip: str = "\n", first: int = 1) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of every line that holds one; the others are counted as malformed. skip: what lines begin
    with that are passed over unread. first: the number of the line that comes next."""
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
    """`timestamp`, `input_length` and `output_length` as they are; None where one is missing or no number."""
    arrival, prompt, output = row.get("timestamp"), row.get("input_length"), row.get("output_length")
    if type(prompt) is int and type(output) is int and (type(arrival) is float or type(arrival) is int):
        return (arrival, prompt, output) if -_FAR < arrival < _FAR else None
    return None


def is_whole_list(value: Any) -> TypeGuard[list[int]]:
    """Whether it is a list of whole numbers. Their sum tells, many times faster than looking at each."""
    try:
        return type(value) is list and type(sum(value)) is int
    except TypeError:
        return False


class Table:
    """A CSV file after its header."""

    def __init__(self, file: IO[str], rows: Rows):
        header = file.readline()
        # Where nothing is quoted, a stray quote is a broken row, not the beginning of a field of many lines.
        lines, quoted = chain([header], file), '"' in header
        self._reader = csv.reader(lines, quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE)
        self._rows = rows
        self._columns = column_names(next(self._reader, []))

    def column(self, name: str) -> int:
        if name not in self._columns:
            raise WorkloadError(f"{self._rows.path} has no column {name!r}; it has {', '.join(self._columns)}.")
        return self._columns.index(name)

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
                reader.line_num, arrival, prompt_tokens, output_tokens, (), 0,
                "" if session is None else row[session], "" if traffic is None else traffic(row),
            )  # fmt: skip

    def _readable(self) -> Iterator[list[str]]:
        while True:
            try:
                yield from self._reader
                return
            except csv.Error as error:  # the reader goes on with the next line
                self._rows.broken(self._reader.line_num, f"not CSV ({error})")
