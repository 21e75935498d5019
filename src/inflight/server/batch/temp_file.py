"""A file that is being written: nobody's until its row is in the store, and in its place soon after.

Knows the three steps, each durable on return, and nothing of rows. A crash between them is mended by `sweep`.
"""

from __future__ import annotations

import contextlib
import os

from inflight.private_files import open_private
from inflight.server.batch.data import DataDirectory
from inflight.server.batch.marker import sync_folder


class TempFile:
    def __init__(self, data: DataDirectory, file_id: str):
        """The store must know by now that this id is being written. Raises OSError."""
        self.id = file_id
        self.bytes = 0
        self._partial, self._final = data.partial / self.id, data.files / self.id
        self._file = open(self._partial, "xb", opener=open_private)  # noqa: SIM115  (closed by seal and discard)

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self.bytes += len(data)

    def seal(self) -> None:
        """It is whole, and stays so through a power cut: its row may be committed."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        sync_folder(self._partial.parent)

    def publish(self) -> None:
        """After its row was committed: it takes its place, and nobody else's. Raises OSError."""
        if os.path.lexists(self._final):
            raise FileExistsError(f"{self._final} is there already")
        os.rename(self._partial, self._final)
        sync_folder(self._final.parent)
        sync_folder(self._partial.parent)

    def discard(self) -> None:
        """Instead of a row."""
        with contextlib.suppress(OSError):  # what it holds back cannot be written, and need not be
            self._file.close()
        with contextlib.suppress(OSError):  # the next start removes it
            self._partial.unlink(missing_ok=True)
