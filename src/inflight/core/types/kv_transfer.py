"""KV transfer: peers, what a request says of them, its options, and counts of tiers and transfers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

_GIVE, _TAKE = "peers:give:", "peers:take:"
Role = Literal["prefill", "decode", "both"]
Transport = Literal["auto", "tcp", "shm", "nixl"]  # shm was shared memory of one machine, and means tcp


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
    """KV transfer of one request's prompt."""

    give: str = ""  # id under which its blocks are exported as they are computed; empty: they are not
    take: PeerAddress | None = None  # peer that has them, or will; None: no peer


@dataclass(frozen=True, slots=True, kw_only=True)
class KVTransferOptions:
    """How an engine transfers blocks with peers."""

    role: Role  # whether it exports blocks, imports them, or both
    host: str = "127.0.0.1"  # where peers connect
    port: int = 0  # the same; 0: any free port
    transport: Transport = "auto"  # by which blocks are sent
    timeout: float = 30.0  # seconds of a whole pull, including what the peer has still to compute
    hold: float = 60.0  # seconds for which a computed prompt waits for the peer that imports it

    @property
    def is_producer(self) -> bool:
        """Whether it exports blocks."""
        return self.role != "decode"

    @property
    def is_consumer(self) -> bool:
        """Whether it imports blocks."""
        return self.role != "prefill"


@dataclass(frozen=True, slots=True)
class TierStats:
    """Blocks that went to tiers and peers, and came from them, since the engine began."""

    asked: int = 0  # looked up in tiers and with peers, since the prefix cache lacked them
    brought: int = 0  # loaded instead of computed
    failed: int = 0  # not loaded, after an error
    declined: int = 0  # cheaper to compute
    stored: int = 0  # written to a tier
    unstored: int = 0  # not written, after an error
    missed: int = 0  # evicted before they were written


@dataclass(frozen=True, slots=True)
class KVExportStats:
    """Blocks of computed prompts for peers."""

    held: int = 0  # exported now, until a peer has them
    taken: int = 0  # imported by a peer
    cached: int = 0  # not imported, since the peer that took the rest had them itself
    expired: int = 0  # dropped after the time limit
    displaced: int = 0  # dropped for later ones, since too much was exported
    withdrawn: int = 0  # no longer wanted, or dropped as the engine recovered


@dataclass(frozen=True, slots=True)
class FolderStats:
    """Content of a tier's folder, and its use since the engine began."""

    nbytes: int  # bytes of all models
    max_bytes: int  # limit of these
    blocks: int  # blocks and checkpoints of this model
    read_bytes: int  # bytes read
    written_bytes: int  # bytes written
    evicted: int  # files removed for others
    damaged: int  # files that were damaged
    write_errors: int  # writes that failed
    block_bytes: int = 0  # bytes of each block; 0: unknown
    own_bytes: int = 0  # bytes of this model's blocks and checkpoints
