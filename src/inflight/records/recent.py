"""Find the last seconds of a record, however long it is and while it is written, without reading what comes before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec
from msgspec import Struct

from inflight.counted import Time
from inflight.records.schema import Position

_PIECE = 1 << 20  # bytes


class Recent(NamedTuple):
    """The last part of a record, to the last line that is whole.

    Attributes:
        header: Bytes of the header's line.
        begin: Bytes before the part; those of the header, where the record is no longer.
        end: Bytes before its end.
        last: Time of its last line, on the engine's clock; None where no line has one.
    """

    header: int
    begin: int
    end: int
    last: float | None


class _Timed(Struct):
    """Times of steps and of requests that ended or were refused."""

    committed: Time | None = None
    ended: Time | None = None
    refused: Time | None = None

    @property
    def time(self) -> float | None:
        return next((one for one in (self.committed, self.ended, self.refused) if one is not None), None)


_DECODER = msgspec.json.Decoder(_Timed)


def find_recent(path: Path, seconds: float) -> Recent:
    """Find the lines of the last `seconds` by bisection: lines stand in the order of their times.

    Damaged lines are passed over here; reading the part reports them.
    """
    with path.open("rb") as file:
        header = len(file.readline())
        end = _whole_lines(file)
        last = _last_time(file, header, end)
        begin = header if last is None else _first_since(file, last - seconds, header, end)
    return Recent(header, begin, end, last)


def position_at(path: Path, offset: int, version: int) -> Position:
    """Return the position behind so many bytes, with the number of lines before it. version: the header's."""
    lines, left = 0, offset
    with path.open("rb") as file:
        while left > 0 and (piece := file.read(min(_PIECE, left))):
            lines, left = lines + piece.count(b"\n"), left - len(piece)
    return Position(offset, lines, version)


def _whole_lines(file: BinaryIO) -> int:
    """Return the bytes up to the end of the last whole line."""
    size = end = file.seek(0, 2)
    while end > 0:
        begin = max(0, end - _PIECE)
        file.seek(begin)
        found = file.read(end - begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        end = begin
    return size


def _last_time(file: BinaryIO, first: int, end: int) -> float | None:
    """Return the time of the last line that has one, looking at more and more of the end."""
    length = _PIECE
    while first < end:
        begin = max(first, end - length)
        times = [time for _, time in _timed(file, begin, first, end)]
        if times:
            return times[-1]
        if begin == first:
            return None
        length *= 4
    return None


def _first_since(file: BinaryIO, time: float, first: int, end: int) -> int:
    """Return the position of the first line from this time on."""
    low, high = first, end
    while high - low > _PIECE:
        middle = (low + high) // 2
        found = next(iter(_timed(file, middle, first, high)), None)
        if found is None or found[1] >= time:
            high = middle
        else:
            low = found[0]
    return next((offset for offset, one in _timed(file, low, first, end) if one >= time), end)


def _timed(file: BinaryIO, begin: int, first: int, end: int) -> Iterator[tuple[int, float]]:
    """Yield the positions and times of the whole lines from a position on that have a time. first: the position of the
    first line; another one may lie within a line, which is left out."""
    file.seek(begin)
    offset = begin if begin == first else begin + len(file.readline())
    while offset < end:
        file.seek(offset)
        line = file.readline()
        try:
            time = _DECODER.decode(line).time
        except msgspec.DecodeError:
            time = None
        if time is not None:
            yield offset, time
        offset += len(line)
