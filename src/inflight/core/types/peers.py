"""Places of transfers with other engines, and what a request says of them.

Knows how a peer is named in a plan. Nothing here calls anybody.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

_GIVE, _TAKE = "peers:give:", "peers:take:"


class PeerPlace(NamedTuple):
    """Where another engine gives blocks that it has computed. export_id: for which request."""

    host: str
    port: int
    export_id: str

    @property
    def place(self) -> str:
        return f"{_TAKE}{self.port}:{len(self.host)}:{self.host}{self.export_id}"


def giving_place(export_id: str) -> str:
    """Of blocks that are held for whoever comes for them."""
    return _GIVE + export_id


def is_of_peers(place: str) -> bool:
    return place.startswith((_GIVE, _TAKE))


def export_of(place: str) -> str | None:
    """The id under which blocks are held; None: it is no such place."""
    return place.removeprefix(_GIVE) if place.startswith(_GIVE) else None


def peer_of(place: str) -> PeerPlace:
    """Of `PeerPlace.place`. Raises ValueError for another."""
    if not place.startswith(_TAKE):
        raise ValueError(f"{place!r} is no place of a peer")
    port, length, rest = place.removeprefix(_TAKE).split(":", 2)
    return PeerPlace(rest[: int(length)], int(port), rest[int(length) :])


@dataclass(frozen=True, slots=True)
class KVHandover:
    """What of a request's prompt other engines are to have, or have. give: the id under which the blocks of its prompt
    are held for others as they are computed; empty: they are not. take: where another engine has them, or will; None:
    nowhere."""

    give: str = ""
    take: PeerPlace | None = None
