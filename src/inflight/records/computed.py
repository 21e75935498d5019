"""What a chunk computes: a prompt's tokens, an answer's next one, or what a preemption took and is computed again.

Knows how far each sequence was ever computed. Chunks come in the order of their steps.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Work(Enum):
    """What a row did during a step."""

    PREFILL = "prefill"  # prompt tokens, computed for the first time
    RECOMPUTE = "recomputed"  # tokens that a preemption took
    DECODE = "decode"
    PADDING = "padding"  # ended, and computed all the same until its batch ends
    IDLE = "held, not computed"  # waits for its turn with its row and blocks


class Computed(NamedTuple):
    """A chunk's work; its tokens that are new, and those that had been computed before."""

    work: Work
    first: int
    repeated: int


class ComputedTokens:
    def __init__(self) -> None:
        self._most: dict[int, int] = {}  # sequence → most tokens ever computed

    def seen(self, sequence: int, tokens: int) -> None:
        """It had been computed so far, before the first chunk that is told."""
        self._most[sequence] = tokens

    def forget(self, sequence: int) -> None:
        """It has ended."""
        self._most.pop(sequence, None)

    def chunk(self, sequence: int, start: int, length: int, in_vain: int, prompt_tokens: int) -> Computed:
        """in_vain: of its tokens the last ones, drafts that were taken back."""
        end, most = start + length, self._most.get(sequence, 0)
        repeated = max(0, min(end, most) - start)
        self._most[sequence] = max(most, end - in_vain)
        if repeated:
            return Computed(Work.RECOMPUTE, length - repeated, repeated)
        return Computed(Work.PREFILL if start < prompt_tokens else Work.DECODE, length, 0)
