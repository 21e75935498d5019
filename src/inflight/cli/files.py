"""Check that files can be written, before long work begins; read lines of a file or a pipe without blocking."""

from __future__ import annotations

import os
import select
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import click

_CHUNK_BYTES = 1 << 16
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def check_writable(*paths: Path | None, reads: Sequence[Path | None] = ()) -> None:
    """Raise click.UsageError for a file that cannot be written, or is read too, and must not be overwritten."""
    taken = {path.resolve() for path in reads if path is not None and path.is_file()}
    for path in paths:
        if path is None:
            continue
        folder = path.absolute().parent
        if not folder.is_dir():
            raise click.UsageError(f"{path} cannot be written: the folder {folder} does not exist; create it first.")
        if not os.access(path if path.exists() else folder, os.W_OK):
            raise click.UsageError(f"{path} cannot be written: permission denied; choose another path.")
        if path.resolve() in taken:
            raise click.UsageError(f"{path} is given twice, and would be overwritten; use another file.")
        if not path.exists() or path.is_file():
            taken.add(path.resolve())


class LineReader:
    """Read lines with their numbers, from 1. Empty lines are counted but omitted; invalid UTF-8 becomes surrogates."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lines: deque[tuple[int, str]] = deque()
        self._rest: list[bytes] = []  # the beginning of a line whose end was not read yet
        self._number = 0
        self._at_end = False

    @property
    def ended(self) -> bool:
        """Return whether every line was taken."""
        return self._at_end and not self._lines

    def take(self, limit: int, wait: float) -> list[tuple[int, str]]:
        """Return up to `limit` lines. Wait up to `wait` seconds for the first of them."""
        while len(self._lines) < limit and not self._at_end:
            ready, _, _ = select.select([self._descriptor], [], [], 0 if self._lines else wait)
            if not ready:
                break
            self._read()
        return [self._lines.popleft() for _ in range(min(limit, len(self._lines)))]

    def _read(self) -> None:
        chunk = os.read(self._descriptor, _CHUNK_BYTES)
        self._at_end = not chunk
        first, *more = chunk.split(b"\n")
        self._rest.append(first)
        for start in more:
            self._end_line()
            self._rest.append(start)
        if self._at_end:
            self._end_line()

    def _end_line(self) -> None:
        line = b"".join(self._rest)
        self._rest.clear()
        self._number += 1
        if self._number == 1:
            line = line.removeprefix(_BYTE_ORDER_MARK)
        if line.strip():
            self._lines.append((self._number, line.decode("utf-8", "surrogateescape")))
