"""A server in a process of its own, for as long as something is measured on it: `inflight serve` with these options.

Knows how it is started, when it is ready and how it ends; nothing of what is asked of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence

from inflight.bench.client_types import BenchError

_READY = re.compile(rb"Ready at (http\S+)")
_START_SECONDS = 600.0  # a large model, Ray, and a machine that does other things, too
_END_SECONDS = 60.0
_LOOK_SECONDS = 0.05
_TELL_SECONDS = 10.0

Tell = Callable[[str], None]


@contextlib.contextmanager
def started(name: str, options: Sequence[str], tell: Tell = lambda sentence: None) -> Iterator[str]:
    """Its address, on a free port. tell: told every few seconds that it starts, and what it said last. Raises
    BenchError with its own last words where it does not start."""
    with tempfile.TemporaryFile() as said:
        words = [sys.executable, "-m", "inflight.cli", "serve", *options, "--host", "127.0.0.1", "--port", "0"]
        # A session of its own: Ctrl-C is ours, and whatever it started ends with it.
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=said, start_new_session=True)
        try:
            yield _address(name, process, said.fileno(), tell)
        finally:
            _end(process)


def _address(name: str, process: subprocess.Popen[bytes], said: int, tell: Tell) -> str:
    began = last = time.monotonic()
    while True:
        ended = process.poll() is not None  # asked before its words are read, so that none is missed
        words = os.pread(said, os.fstat(said).st_size, 0)
        if (found := _READY.search(words)) is not None:
            return found[1].decode()
        if ended:
            raise BenchError(f"The server of --serve {name!r} ended with {process.returncode}: {_last(words)}")
        now = time.monotonic()
        if now - last >= _TELL_SECONDS:
            last = now
            tell(f"The server of --serve {name!r} has been starting for {now - began:.0f} s: {_last(words)}")
        if now - began > _START_SECONDS:
            raise BenchError(f"The server of --serve {name!r} was not ready in {_START_SECONDS:,.0f} s: {_last(words)}")
        time.sleep(_LOOK_SECONDS)


def _last(words: bytes) -> str:
    """What it said last: the message, where that is a line of its log."""
    lines = words.decode(errors="replace").strip().splitlines() or ["it has said nothing."]
    with contextlib.suppress(ValueError):
        told = json.loads(lines[-1])
        if isinstance(told, dict) and isinstance(told.get("message"), str):
            return str(told["message"])
    return lines[-1]


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # what it left behind, itself if need be
    process.wait()
