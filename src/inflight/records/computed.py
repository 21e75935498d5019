"""What a chunk computes: a prompt's tokens, an answer's next one, or what a preemption took and is computed again.

Knows one chunk, and how far its sequence was ever computed before.
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


def computed(most: int, start: int, length: int, in_vain: int, prompt_tokens: int) -> Computed:
    """What a chunk is. most: tokens of its sequence that were ever computed. in_vain: of its own the last ones, drafts
    that were taken back."""
    repeated = max(0, min(start + length, most) - start)
    if repeated:
        return Computed(Work.RECOMPUTE, length - repeated, repeated)
    return Computed(Work.PREFILL if start < prompt_tokens else Work.DECODE, length, 0)
