"""Counts of what binding outputs to grammars took, since the engine began. Knows the meanings; who counts, execution
knows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GrammarStats:
    """compiled, refused: grammars that were compiled, and those that could not be; compile_seconds: that both took, in
    processes of their own. cache_hits: times that a grammar was there already. masks: positions whose tokens a grammar
    decided. mask_seconds: that these took, beside the forward passes; wait_seconds: those of them that steps waited.
    sit_outs: draws that waited for a slow mask, while others drew. cached_bytes: of compiled grammars that are kept."""

    compiled: int
    refused: int
    compile_seconds: float
    cache_hits: int
    masks: int
    mask_seconds: float
    wait_seconds: float
    sit_outs: int = 0
    cached_bytes: int = 0
