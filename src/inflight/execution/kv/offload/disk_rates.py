"""Measures how fast a folder's disk writes and reads blocks.

Files of the engine's own format are written, forced to the disk, dropped from the system's cache, read, and removed.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from inflight.execution.kv.offload.block_files import read_block, write_block
from inflight.execution.kv.offload.folder_tier import READERS

_MAX_BYTES, _MIN_BLOCKS = 64 << 20, 4  # that are written
_IDENTITY = bytes(16)


@dataclass(frozen=True, slots=True)
class DiskRates:
    """Bytes per second."""

    read: float
    write: float


def measured_rates(folder: Path, block_bytes: int) -> DiskRates:
    """Measure how fast blocks are written and read. Raises OSError where nothing can be written there."""
    count = max(_MIN_BLOCKS, _MAX_BYTES // max(1, block_bytes))
    names = [number.to_bytes(16) for number in range(1, count + 1)]
    content = memoryview(os.urandom(block_bytes))
    aside = Path(tempfile.mkdtemp(prefix=".rates-", dir=folder))
    try:
        paths = [aside / name.hex() for name in names]
        began = time.monotonic()
        for path, name in zip(paths, names, strict=True):
            write_block(path, _IDENTITY, name, content)
        for path in paths:
            _to_disk(path)
        written = time.monotonic() - began
        began = time.monotonic()
        with ThreadPoolExecutor(READERS) as readers:
            list(readers.map(partial(_read, block_bytes), paths, names))
        read = time.monotonic() - began
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return DiskRates(count * block_bytes / read, count * block_bytes / written)


def _to_disk(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _read(block_bytes: int, path: Path, name: bytes) -> None:
    read_block(path, _IDENTITY, name, memoryview(bytearray(block_bytes)))
