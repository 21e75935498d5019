"""Names by which the server knows itself.

A page of another site can have its own name point at this server (DNS rebinding) and then call it as its own origin. It
needs a name with a dot for that, and the browser tells it in the header Host: addresses and plain names are no danger,
any other name must be known.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable


class Hosts:
    def __init__(self, names: Iterable[str]):
        """names: with "*.NAME" for all below NAME, "*" for any."""
        given = [name.lower().rstrip(".") for name in names]
        self._any = "*" in given
        self._names = frozenset(given)
        self._ends = tuple(name[1:] for name in given if name.startswith("*."))

    def knows(self, header: str) -> bool:
        """header: of Host, with or without a port."""
        if self._any:
            return True
        name = without_port(header).lower().rstrip(".")
        return "." not in name or _is_address(name) or name in self._names or name.endswith((".localhost", *self._ends))


def without_port(host: str) -> str:
    """Brackets of an IPv6 address go too."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0] if host.count(":") <= 1 else host


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
