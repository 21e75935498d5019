"""KV transfer: peers and what a request says of them, options of the exchange, and counts of tiers and transfers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

_GIVE, _TAKE = "peers:give:", "peers:take:"
Role = Literal["prefill", "decode", "both"]
Way = Literal["auto", "tcp", "shm", "nixl"]


class PeerAddress(NamedTuple):
    """Address of blocks that another engine has computed. export_id: for which request."""

    host: str
    port: int
    export_id: str

    @property
    def tier(self) -> str:
        """The address as `Transfer.tier`."""
        return f"{_TAKE}{self.port}:{len(self.host)}:{self.host}{self.export_id}"


def export_tier(export_id: str) -> str:
    """Return the `Transfer.tier` of blocks that are exported under this id."""
    return _GIVE + export_id


def is_of_peers(tier: str) -> bool:
    """Return whether a `Transfer.tier` is an export or a peer's."""
    return tier.startswith((_GIVE, _TAKE))


def export_of(tier: str) -> str | None:
    """Return the id under which blocks are exported; None for another `Transfer.tier`."""
    return tier.removeprefix(_GIVE) if tier.startswith(_GIVE) else None


def peer_of(tier: str) -> PeerAddress:
    """Return the address that `PeerAddress.tier` was made of.

    Raises:
        ValueError: It is another `Transfer.tier`.
    """
    if not tier.startswith(_TAKE):
        raise ValueError(f"{tier!r} is not the address of a peer")
    port, length, rest = tier.removeprefix(_TAKE).split(":", 2)
    return PeerAddress(rest[: int(length)], int(port), rest[int(length) :])


@dataclass(frozen=True, slots=True)
class KVTransfer:
    """KV transfer of one request's prompt.

    Attributes:
        give: Id under which its blocks are exported as they are computed; empty: they are not.
        take: Peer that has them, or will; None: no peer.
    """

    give: str = ""
    take: PeerAddress | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KVExchangeOptions:
    """How an engine exchanges blocks with peers.

    Attributes:
        role: Whether it exports blocks, imports them, or both.
        host: Where peers connect.
        port: The same; 0: any free port.
        way: How blocks travel.
        timeout: Seconds of a whole pull, including what the peer has still to compute.
        hold: Seconds for which a computed prompt waits for the peer that imports it.
    """

    role: Role
    host: str = "127.0.0.1"
    port: int = 0
    way: Way = "auto"
    timeout: float = 30.0
    hold: float = 60.0

    @property
    def gives(self) -> bool:
        """Whether it exports blocks."""
        return self.role != "decode"

    @property
    def takes(self) -> bool:
        """Whether it imports blocks."""
        return self.role != "prefill"


@dataclass(frozen=True, slots=True)
class TierStats:
    """Blocks that went to tiers and peers, and came from them, since the engine began.

    Attributes:
        asked: Looked up in tiers and with peers, since the prefix cache lacked them.
        brought: Loaded instead of computed.
        failed: Not loaded, after an error.
        declined: Cheaper to compute.
        stored: Written to a tier.
        unstored: Not written, after an error.
        missed: Evicted before they were written.
    """

    asked: int = 0
    brought: int = 0
    failed: int = 0
    declined: int = 0
    stored: int = 0
    unstored: int = 0
    missed: int = 0


@dataclass(frozen=True, slots=True)
class KVExportStats:
    """Blocks of computed prompts for peers.

    Attributes:
        held: Exported now, until a peer has them.
        taken: Imported by a peer.
        cached: Not imported, since the peer that took the rest had them itself.
        expired: Dropped after the time limit.
        displaced: Dropped for later ones, since too much was exported.
        withdrawn: No longer wanted, or dropped as the engine recovered.
    """

    held: int = 0
    taken: int = 0
    cached: int = 0
    expired: int = 0
    displaced: int = 0
    withdrawn: int = 0


@dataclass(frozen=True, slots=True)
class FolderStats:
    """Content of a tier's folder, and its use since the engine began.

    Attributes:
        nbytes: Bytes of all models.
        max_bytes: Limit of these.
        blocks: Blocks of this model.
        read_bytes: Bytes read.
        written_bytes: Bytes written.
        evicted: Files removed for others.
        damaged: Files that were damaged.
        write_errors: Writes that failed.
        block_bytes: Bytes of each block; 0: unknown.
    """

    nbytes: int
    max_bytes: int
    blocks: int
    read_bytes: int
    written_bytes: int
    evicted: int
    damaged: int
    write_errors: int
    block_bytes: int = 0
