"""What went to tiers and peers and came from them, in blocks, since the engine began."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TierCounts:
    """brought: from a tier or a peer, instead of being computed. failed: that did not come. declined: that it was
    cheaper to compute. stored, unstored: kept in the tier, and that could not be. missed: given away before their turn
    to be stored had come."""

    brought: int = 0
    failed: int = 0
    declined: int = 0
    stored: int = 0
    unstored: int = 0
    missed: int = 0
