"""The write-ahead log of a database: does it hold commits that SQLite leaves out without a word?

SQLite reads the log up to the first frame whose checksum is wrong, and takes the rest for what a crash cut off. But
each commit is on the disk before the next one begins, so that a crash cuts off no more than the last: commits behind
that one were durable, and are lost by damage. Behind a commit that failed the database has the log emptied. Reads only;
knows the format of the log (sqlite.org/fileformat2.html, "The Write-Ahead Log") and of its index ("WAL-mode File
Format").
"""

from __future__ import annotations

import sys
from pathlib import Path

_HEADER, _FRAME_HEADER = 32, 24  # bytes
_VALID_AT = 16  # in the index: how many frames are valid, in the machine's byte order
_CUT_OFF = 2  # commit frames: the last commit may be written twice, to fill a sector


def lost_commits(log: Path, index: Path) -> int:
    """How many, at least. While a connection is open that has read the log, and made its index. Raises OSError."""
    if not log.exists() or not index.exists():
        return 0
    behind = 0
    with log.open("rb") as file:
        header = file.read(_HEADER)
        page_bytes, salts = int.from_bytes(header[8:12], "big"), header[16:24]
        frame_bytes = _FRAME_HEADER + page_bytes
        for number in range(_valid(index), (log.stat().st_size - _HEADER) // frame_bytes):
            file.seek(_HEADER + number * frame_bytes)
            frame = file.read(_FRAME_HEADER)
            behind += frame[8:16] == salts and frame[4:8] != bytes(4)  # one that ends a commit of this log
    return max(0, behind - _CUT_OFF)


def _valid(index: Path) -> int:
    """Frames."""
    with index.open("rb") as file:
        file.seek(_VALID_AT)
        return int.from_bytes(file.read(4), sys.byteorder)
