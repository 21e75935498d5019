"""Addresses of clients: what counts as one, and which networks are trusted to speak for others."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from functools import lru_cache

from inflight.config.setting import SettingsError

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@lru_cache(maxsize=4096)
def address_key(host: str) -> str:
    """Return the key by which an address is counted. One machine commonly has a whole /64 of IPv6; all that is no
    address is one client."""
    try:
        address = ipaddress.ip_address(host[:64])
    except ValueError:
        return "unknown"
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((int(address) >> 64 << 64, 64)))
    return str(address)


def is_loopback(host: str) -> bool:
    """Return whether `host`, a name or an address, is this machine for itself."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Networks:
    """Addresses and networks, such as 10.0.0.0/8."""

    def __init__(self, given: Iterable[str]):
        """Raises SettingsError where one of them is neither."""
        self._networks = tuple(_parsed(one) for one in given)

    def __contains__(self, host: str) -> bool:
        if not self._networks:
            return False
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        return any(address in network for network in self._networks)


def _parsed(given: str) -> _Network:
    try:
        return ipaddress.ip_network(given)
    except ValueError as error:
        raise SettingsError(
            f"--trusted-proxies is {given!r} ({error}); give an address or a network, such as 10.0.0.7 or 10.0.0.0/8."
        ) from None
