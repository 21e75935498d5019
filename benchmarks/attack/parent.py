"""Children that end with their parent: standard input stays open as long as the parent lives."""

from __future__ import annotations

import os
import sys
import threading


def end_with_parent() -> None:
    threading.Thread(target=_wait, daemon=True).start()


def _wait() -> None:
    sys.stdin.buffer.read()
    os._exit(1)
