"""Counts of grammars and masks, by those who compile and fill them. Knows no grammar."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from inflight.core.types.grammar_stats import GrammarStats


@dataclass(slots=True)
class GrammarTally:
    """As `GrammarStats` has them."""

    compiled: int = 0
    refused: int = 0
    compile_seconds: float = 0.0
    cache_hits: int = 0
    masks: int = 0
    mask_seconds: float = 0.0
    wait_seconds: float = 0.0
    sit_outs: int = 0

    def stats(self, cached_bytes: int = 0) -> GrammarStats:
        return GrammarStats(**asdict(self), cached_bytes=cached_bytes)
