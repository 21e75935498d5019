"""Synchronize tenant usage (`core.tenants`) between replicas, several times a second while requests are in flight.

Each round sends every replica the usage of the others and collects its own. The usage of a failed round, as after the
loss of a replica, is dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from inflight.core.tenants import SYNC_PERIOD_S, TenantUsage
from inflight.engine.remote.messages import MessageError

_decoder = msgspec.msgpack.Decoder(dict[str, dict[str, dict[str, float]]])
Sync = Callable[[Mapping[str, TenantUsage]], Awaitable[Mapping[str, TenantUsage]]]

log = logging.getLogger("inflight.server")


def encode_usage(usage: Mapping[str, TenantUsage]) -> bytes:
    """Encode the tenant usage of each replica, by its name."""
    return msgspec.msgpack.encode(usage)


def decode_usage(data: bytes) -> Mapping[str, TenantUsage]:
    """Decode the tenant usage of each replica. Raises MessageError."""
    try:
        return _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise MessageError(f"The tenant usage of replicas is damaged: {error}.") from None


async def sync_periodically(sync: Sync, is_busy: Callable[[], bool]) -> None:
    """Run until cancelled.

    Args:
        sync: Sends all replicas this usage, and returns the usage of each replica since its last call.
        is_busy: Whether any request is in flight.
    """
    usage: Mapping[str, TenantUsage] = {}
    while True:
        await asyncio.sleep(SYNC_PERIOD_S)
        if not (any(usage.values()) or is_busy()):
            continue
        try:
            usage = await sync(usage)
        except Exception:
            log.exception("the tenant usage of replicas could not be synchronized")
            usage = {}
