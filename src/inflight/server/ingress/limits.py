"""The limits of connections, with the sizes that are not to be set."""

from __future__ import annotations

from dataclasses import dataclass, field

from inflight.server.ingress.addresses import Networks


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
