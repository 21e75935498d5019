"""All connections: how many there may be, and which of them have to make room for a new one.

Knows for each whose it is and what it is doing; nothing of HTTP. A connection is idle (nothing has been asked), reading
(a request is on its way in) or at work (a request is being answered). Those at work are never closed for others.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

from inflight.server.ingress.addresses import Networks, address_key
from inflight.server.ingress.refusals import Refusals

NEW_SECONDS = 0.1  # in which the request of a new connection comes, if the client is there to ask
_THROWN_AWAY = 64 << 20  # bytes a second, of all refused clients
_LOOKED_AT = 64  # idle ones, for one to close


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Bytes, counts, seconds.

    url_bytes, header_bytes, headers: of one request; header_bytes is of names and values together. head_bytes: of all
    requests whose headers have begun to come. head_seconds: from a head's first byte to its last.
    connections: at once, of everybody; per_address: of one address, unless it is one of the trusted proxies.
    """

    url_bytes: int = 8 << 10
    header_bytes: int = 32 << 10
    headers: int = 100
    head_bytes: int = 16 << 20
    head_seconds: float
    connections: int
    per_address: int
    trusted: Networks = field(default_factory=lambda: Networks(()))


class Member(Protocol):
    def give_way(self) -> None:
        """Close now, for others need the room."""


class _Address:
    """The connections of one address; idle and reading in the order in which they became so."""

    def __init__(self) -> None:
        self.count = 0
        self.idle: dict[Member, None] = {}
        self.reading: dict[Member, None] = {}


class Connections:
    def __init__(self, limits: ConnectionLimits, refusals: Refusals):
        self.limits = limits
        self.refusals = refusals
        self._addresses: dict[str, _Address] = {}
        self._whose: dict[Member, str] = {}
        self._idle: dict[Member, None] = {}  # the longest idle first
        self._new: dict[Member, float] = {}  # those of them that have not been used yet, and since when
        self._reading: dict[Member, int] = {}  # bytes that are kept of what has come; the oldest first
        self._reading_bytes = 0
        self._ended = False
        self._throw_away = float(_THROWN_AWAY)
        self._thrown_away_at = time.monotonic()

    def __len__(self) -> int:
        return len(self._whose)

    def admit(self, member: Member, host: str) -> str | None:
        """Count it as idle, and make room for it if need be; or say why there is none."""
        if self._ended:
            return "The server is shutting down"
        key = address_key(host)
        address = self._addresses.get(key) or _Address()
        limits = self.limits
        if address.count >= limits.per_address and host not in limits.trusted:
            victim = self._spare(address.idle)
            if victim is None:
                self.refusals.count("connections refused: their address has as many as it may have")
                return f"Your address has {address.count} connections, the most that it may have"
            self._close(victim)
        if len(self._whose) >= limits.connections:
            victim = self._least_needed()
            if victim is None:
                self.refusals.count("connections refused: the server has as many as it takes, all of them at work")
                return f"The server has {len(self._whose)} connections, the most that it takes"
            self._close(victim)
        self._addresses[key] = address
        address.count += 1
        self._whose[member] = key
        self.idle(member)
        self._new[member] = time.monotonic()
        return None

    def end(self) -> None:
        """Admit nobody any more: who was in the line of the socket when it was closed may come still."""
        self._ended = True

    def discard(self, member: Member) -> None:
        """It is closed, or was never admitted."""
        key = self._whose.pop(member, None)
        if key is None:
            return
        address = self._addresses[key]
        self._leave_state(member, address)
        address.count -= 1
        if not address.count:
            del self._addresses[key]

    def may_throw_away(self, size: int) -> bool:
        """Whether to go on reading what refused clients send still, so that they read why. Not at any price: the more
        they send, the less time is left for others."""
        now = time.monotonic()
        self._throw_away = min(_THROWN_AWAY, self._throw_away + (now - self._thrown_away_at) * _THROWN_AWAY) - size
        self._thrown_away_at = now
        return self._throw_away > 0

    # -- what a connection is doing -------------------------------------------------------------------------------

    def idle(self, member: Member) -> None:
        address = self._left(member)
        if address is not None:
            address.idle[member] = None
            self._idle[member] = None

    def at_work(self, member: Member) -> None:
        self._left(member)

    def reading(self, member: Member, kept_bytes: int) -> None:
        """kept_bytes: of what has come of the request, in all."""
        if member in self._reading:
            self._reading_bytes += kept_bytes - self._reading[member]
            self._reading[member] = kept_bytes
        else:
            address = self._left(member)
            if address is None:
                return
            address.reading[member] = None
            self._reading[member] = kept_bytes
            self._reading_bytes += kept_bytes
        while self._reading_bytes > self.limits.head_bytes and len(self._reading) > 1:
            self._close(next(iter(self._reading)))

    def _left(self, member: Member) -> _Address | None:
        """Its address, once it has left the state it was in; None when it is gone."""
        key = self._whose.get(member)
        if key is None:
            return None
        address = self._addresses[key]
        self._leave_state(member, address)
        return address

    def _leave_state(self, member: Member, address: _Address) -> None:
        self._new.pop(member, None)
        if member in self._idle:
            del self._idle[member], address.idle[member]
        elif member in self._reading:
            self._reading_bytes -= self._reading.pop(member)
            del address.reading[member]

    # -- making room ----------------------------------------------------------------------------------------------

    def _spare(self, idle: dict[Member, None]) -> Member | None:
        """The longest idle of them, but none that is so new that its request may be coming: of many clients that come
        at once, some are refused then, where each would be cut off for the next."""
        latest = time.monotonic() - NEW_SECONDS
        return next((one for one in islice(idle, _LOOKED_AT) if self._new.get(one, latest) <= latest), None)

    def _least_needed(self) -> Member | None:
        """Return the longest idle; else the oldest half-sent request of the address that has most of them."""
        if (idle := self._spare(self._idle)) is not None:
            return idle
        if self._reading:
            return next(iter(max(self._addresses.values(), key=lambda one: len(one.reading)).reading))
        return None

    def _close(self, member: Member) -> None:
        self.refusals.count("connections closed to make room for others")
        self.discard(member)
        member.give_way()
