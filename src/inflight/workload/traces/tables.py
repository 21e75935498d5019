"""CSV traces: columns found by name, rows read fast."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from itertools import chain
from typing import IO

from inflight.workload.traces.rows import Rows
from inflight.workload.traces.source import column_names
from inflight.workload.workload import WorkloadError


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
