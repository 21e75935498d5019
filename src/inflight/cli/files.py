"""Files of the command line: whether they can be written, told before long work begins; and lines of a file or a pipe,
with their numbers, read ahead without ever waiting longer than one is told to.

Knows bytes, lines and UTF-8 (broken bytes are let through as surrogates, for the parser to tell); not what a line
means.
"""

from __future__ import annotations

import os
import select
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import click


def check_writable(*paths: Path | None, reads: Sequence[Path | None] = ()) -> None:
    """reads: files that are read, and must not be overwritten. Raises click.UsageError."""
    taken = {path.resolve() for path in reads if path is not None and path.is_file()}
    for path in paths:
        if path is None:
            continue
        folder = path.absolute().parent
        if not folder.is_dir():
            raise click.UsageError(f"{path} cannot be written: the folder {folder} does not exist; create it first.")
        if not os.access(path if path.exists() else folder, os.W_OK):
            raise click.UsageError(f"{path} cannot be written: permission is denied; choose another place.")
        if path.resolve() in taken:
            raise click.UsageError(f"{path} is given twice, and would be overwritten; use another file.")
        if not path.exists() or path.is_file():
            taken.add(path.resolve())


_PIECE = 1 << 16
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class LineReader:
    """`ended` when every line was taken. Lines that hold nothing are left out, but counted."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lines: deque[tuple[int, str]] = deque()
        self._rest: list[bytes] = []  # the beginning of a line whose end was not read yet
        self._number = 0
        self._at_end = False

    @property
    def ended(self) -> bool:
        return self._at_end and not self._lines

    def take(self, most: int, wait: float) -> list[tuple[int, str]]:
        """Up to `most` lines with their numbers, from 1. Waits up to `wait` seconds for the first of them."""
        while len(self._lines) < most and not self._at_end:
            ready, _, _ = select.select([self._descriptor], [], [], 0 if self._lines else wait)
            if not ready:
                break
            self._read()
        return [self._lines.popleft() for _ in range(min(most, len(self._lines)))]

    def _read(self) -> None:
        piece = os.read(self._descriptor, _PIECE)
        self._at_end = not piece
        first, *more = piece.split(b"\n")
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
