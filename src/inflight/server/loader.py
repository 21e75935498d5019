"""The thread that loads an engine, in whatever process: its name, how its failures are told, an end before its own.

Knows threads and logs; not what is loaded.
"""

from __future__ import annotations

import logging
import os
from typing import NoReturn

LOADER = "inflight-loader"  # the thread's name

log = logging.getLogger("inflight.server")


def log_failure(why: str, error: Exception | None) -> None:
    ours = error is None or type(error).__module__.startswith("inflight.") or isinstance(error, OSError)
    log.error(why, exc_info=None if ours else error)  # a bug: whoever reports it needs the place


def leave_loader(code: int) -> NoReturn:
    """The end while an engine is being loaded, whose thread cannot be interrupted."""
    logging.shutdown()
    os._exit(code)
