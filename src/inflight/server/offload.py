"""Work in Python that takes long is offloaded: done beside the event loop, one piece after the other.

Python computes in one thread at a time: several at once would end no sooner, and each would take its share from the
event loop. What waits for disks and sockets has other threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
_THREAD = ThreadPoolExecutor(1, thread_name_prefix="inflight-aside")


async def offload(work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(_THREAD, work)
