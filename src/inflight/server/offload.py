"""Work in Python that takes long is offloaded: done beside the event loop, one piece after the other.

Python computes in one thread at a time: several at once would end no sooner, and each would take its share from the
event loop. What waits for disks and sockets has other threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from inflight.engine.event_stream import set_outcome

T = TypeVar("T")
_THREAD = ThreadPoolExecutor(1, thread_name_prefix="inflight-aside")


async def offload(work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(_THREAD, work)


async def in_own_thread(work: Callable[[], T], name: str) -> T:
    """In one that does not keep the process from ending."""
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
