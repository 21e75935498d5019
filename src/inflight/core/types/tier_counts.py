"""What went to tiers and peers and came from them, in blocks, since the engine began."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TierCounts:
    """asked: of prompts that were looked for in tiers and with peers, since the prefix cache did not have them.
    brought: from there, instead of being computed. failed: that did not come. declined: that it was cheaper to compute.
    stored, unstored: kept in the tier, and that could not be. missed: given away before their turn to be stored had
    come."""

    asked: int = 0
    brought: int = 0
    failed: int = 0
    declined: int = 0
    stored: int = 0
    unstored: int = 0
    missed: int = 0


@dataclass(frozen=True, slots=True)
class HandedOver:
    """Blocks of computed prompts for other engines. held: now, until a peer has them. What became of those that are
    held no more: taken by a peer; cached, which the peer that took the rest had itself; expired, since nobody came in
    time; displaced by later ones, since too much was held; withdrawn, since nobody wants them any more or the engine
    lost its accounts."""

    held: int = 0
    taken: int = 0
    cached: int = 0
    expired: int = 0
    displaced: int = 0
    withdrawn: int = 0


@dataclass(frozen=True, slots=True)
class FolderStats:
    """What lies in a folder: bytes of all models, of at most max_bytes, and blocks of this one, each of block_bytes
    (0: not known). Since the engine began: bytes read and written, files that gave way to others, files that were
    damaged, writes that failed."""

    nbytes: int
    max_bytes: int
    blocks: int
    read_bytes: int
    written_bytes: int
    evicted: int
    damaged: int
    write_errors: int
    block_bytes: int = 0
