"""Run loading in a thread, log its failure, and end the process while the thread runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Callable
from typing import NoReturn, TypeVar

from inflight.engine.event_stream import set_outcome

T = TypeVar("T")

LOADER = "inflight-loader"  # the thread's name

log = logging.getLogger("inflight.server")


async def in_own_thread(work: Callable[[], T], name: str) -> T:
    """Run work in a thread that does not keep the process from ending."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        outcome: T | BaseException
        try:
            outcome = work()
        except BaseException as error:
            outcome = error
        with contextlib.suppress(RuntimeError):  # the end came first
            loop.call_soon_threadsafe(set_outcome, done, outcome)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await done


def log_failure(why: str, error: Exception | None) -> None:
    ours = error is None or type(error).__module__.startswith("inflight.") or isinstance(error, OSError)
    log.error(why, exc_info=None if ours else error)  # a bug: its report needs the place


def leave_loader(code: int) -> NoReturn:
    """End the process while a thread loads, which cannot be interrupted."""
    logging.shutdown()
    os._exit(code)
