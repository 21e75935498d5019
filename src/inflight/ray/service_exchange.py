"""Tells each replica, several times a second, what the others gave to tenants, and asks what it gave (`core.tenants`).

Knows rounds and names of replicas; how they are asked, whoever makes this says. While nothing is under way nobody is
asked. A round that fails, as with a replica that is lost, is told to nobody, and the next one goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from inflight.core.tenants import SYNC_PERIOD_S, TenantUsage
from inflight.engine.remote.messages import MessageError

_decoder = msgspec.msgpack.Decoder(dict[str, dict[str, dict[str, float]]])
Exchange = Callable[[Mapping[str, TenantUsage]], Awaitable[Mapping[str, TenantUsage]]]

log = logging.getLogger("inflight.server")


def encode_given(given: Mapping[str, TenantUsage]) -> bytes:
    """given: what each replica gave, by its name."""
    return msgspec.msgpack.encode(given)


def decode_given(data: bytes) -> Mapping[str, TenantUsage]:
    """Raises MessageError."""
    try:
        return _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise MessageError(f"What replicas tell of tenants is damaged: {error}.") from None


async def exchange_for_ever(exchange: Exchange, is_busy: Callable[[], bool]) -> None:
    """exchange: tells all replicas this, and returns what each has given since. is_busy: whether anything is under way
    anywhere."""
    given: Mapping[str, TenantUsage] = {}
    while True:
        await asyncio.sleep(SYNC_PERIOD_S)
        if not (any(given.values()) or is_busy()):
            continue
        try:
            given = await exchange(given)
        except Exception:
            log.exception("replicas could not be told of each other's tenants")
            given = {}
