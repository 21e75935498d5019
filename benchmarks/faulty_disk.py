"""`inflight`'s command line on a disk that fails, as one word in a file says at the moment.

    python -m benchmarks.faulty_disk STATE FOLDER serve …

Of the system's calls on files in FOLDER some fail, or take their time: `full` writes half and says ENOSPC, `unwritable`
is a read-only file system, `broken` cannot be read (EIO), `slow` takes tenths of a second a call, `stalled` answers
once the word is another. Anything else is a disk as it should be.
"""

from __future__ import annotations

import errno
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SLOW = (0.05, 0.4)  # seconds of a call


class FaultyDisk:
    def __init__(self, state: Path, folder: Path):
        self._state, self._folder = state, str(folder.resolve())

    def install(self) -> None:
        """In this process, for good."""
        for name in ("mkdir", "replace", "unlink", "utime"):
            setattr(os, name, self._refused_where_unwritable(getattr(os, name)))
        os.open = self._opening(os.open)
        os.writev = self._moving(os.writev)
        os.readv = self._moving(os.readv)

    def _refused_where_unwritable(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def changed(path: Any, *rest: Any, **named: Any) -> Any:
            self._check_writable(path)
            return call(path, *rest, **named)

        return changed

    def _opening(self, call: Callable[..., int]) -> Callable[..., int]:
        def changed(path: Any, flags: int, *rest: Any, **named: Any) -> int:
            if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                self._check_writable(path)
            return call(path, flags, *rest, **named)

        return changed

    def _moving(self, call: Callable[..., int]) -> Callable[..., int]:
        """Return a call that reads bytes from a file or writes them, with faults."""

        def changed(file: int, parts: Any) -> int:
            word = self._word() if self._is_ours(os.readlink(f"/proc/self/fd/{file}")) else ""
            writes = call is _WRITEV
            if word == "full" and writes:
                call(file, [memoryview(parts[-1])[: len(parts[-1]) // 2]])
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if word == "broken" and not writes:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            if word == "slow":
                time.sleep(random.uniform(*SLOW))
            while word == "stalled":
                time.sleep(0.1)
                word = self._word()
            return call(file, parts)

        return changed

    def _check_writable(self, path: Any) -> None:
        if isinstance(path, str | Path) and self._is_ours(str(path)) and self._word() == "unwritable":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    def _is_ours(self, path: str) -> bool:
        return path.startswith(self._folder)

    def _word(self) -> str:
        return self._state.read_text(encoding="utf-8").strip()


_WRITEV = os.writev


def main() -> None:
    FaultyDisk(Path(sys.argv[1]), Path(sys.argv[2])).install()
    del sys.argv[1:3]
    from inflight.cli import main as inflight

    inflight()


if __name__ == "__main__":
    main()
