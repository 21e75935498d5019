"""The input file of a job: its lines in order, a page at a time, without ever holding the file in memory.

Knows bytes, lines and line numbers (from 1; empty lines count but are left out). Reads in the caller's thread.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from io import BufferedReader
from itertools import islice

from inflight.server.batch.lines import BadLine, BatchLine, LineChecker

PAGE_BYTES = 1 << 20  # read at once, so that a large file is no large pause
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class InputFile:
    """`ended` when every line was given."""

    def __init__(self, endpoint: str, longest_line: int):
        """longest_line: bytes; a longer one is a bad line, and is never in memory whole."""
        self._endpoint, self._longest = endpoint, longest_line
        self._checker = LineChecker(endpoint)
        self._offset = 0
        self._number = 0
        self.ended = False

    def page(self, file: BufferedReader, most: int, without: Container[int] = ()) -> list[BatchLine | BadLine]:
        """The next lines, without those numbers: at most `most`, fewer where they are long; perhaps none.

        file: need be open during the call only, so that any number of jobs may wait. Raises OSError.
        """
        lines: list[BatchLine | BadLine] = []
        file.seek(self._offset)
        ended, number = True, self._number
        for number, raw in _raw_lines(file, self._number, self._longest):
            if raw is None or raw.strip():
                line = self._checked(number, raw)
                if number not in without:
                    lines.append(line)
            if len(lines) >= most or file.tell() - self._offset >= PAGE_BYTES:
                ended = False
                break
        # Only now, so that a page that could not be read whole is read again.
        self._offset, self._number, self.ended = file.tell(), number, ended
        if ended:
            self._checker = LineChecker(self._endpoint)  # nothing more is compared with what it has seen
        return lines

    def _checked(self, number: int, raw: bytes | None) -> BatchLine | BadLine:
        """Also of lines that are left out, because their custom ids are taken."""
        if raw is None:
            return BadLine(number, "line_too_long", f"The line has more than {self._longest} bytes; shorten it.")
        try:
            return self._checker.check(number, raw)
        except BadLine as bad:
            return bad


def count_lines(file: BufferedReader, longest_line: int, most: int) -> int:
    """Lines that `InputFile` gives; no more than one beyond `most` are counted. Raises OSError."""
    given = (number for number, raw in _raw_lines(file, 0, longest_line) if raw is None or raw.strip())
    return sum(1 for _ in islice(given, most + 1))


def _raw_lines(file: BufferedReader, number: int, longest: int) -> Iterator[tuple[int, bytes | None]]:
    """Lines behind line `number`, with their numbers; None for one that is too long. Of empty lines in a row perhaps
    only the first."""
    if number == 0 and file.peek(len(_BYTE_ORDER_MARK)).startswith(_BYTE_ORDER_MARK):
        file.read(len(_BYTE_ORDER_MARK))
    while line := file.readline(longest + 2):
        number += 1
        if len(line.rstrip(b"\r\n")) <= longest:
            yield number, line
            if not line.strip():
                number += _skip_blank(file, longest)
            continue
        while line and not line.endswith(b"\n"):
            line = file.readline(PAGE_BYTES)
        yield number, None


def _skip_blank(file: BufferedReader, longest: int) -> int:
    """Read on behind the empty lines that come next, as far as the file's buffer goes: there may be millions of them.
    Returns how many were passed."""
    ahead = file.peek()[:longest]
    blank = ahead[: len(ahead) - len(ahead.lstrip())]
    file.read(blank.rfind(b"\n") + 1)
    return blank.count(b"\n")
