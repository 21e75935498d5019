"""How messages lie in a stream between two processes: the length of each, four bytes, and its msgpack."""

from __future__ import annotations

import asyncio

from inflight.limited_process import LENGTH_BYTES


def frame(data: bytes) -> bytes:
    return len(data).to_bytes(LENGTH_BYTES, "big") + data


async def next_frame(reader: asyncio.StreamReader) -> bytes:
    """Raises EOFError or OSError where the other side has closed."""
    return await reader.readexactly(int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big"))
