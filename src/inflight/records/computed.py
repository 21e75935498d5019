"""The work of a chunk: tokens of a prompt, the next of an output, or tokens that a preemption had dropped."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Work(Enum):
    """Work of a row during a step."""

    PREFILL = "prefill"  # prompt tokens, computed for the first time
    RECOMPUTE = "recomputed"  # tokens that a preemption had dropped
    DECODE = "decode"
    PADDING = "padding"  # ended, and computed until its batch ends
    IDLE = "held, not computed"  # waits with its row and blocks


class Computed(NamedTuple):
    """A chunk's work; its tokens that are new, and those that had been computed before."""

    work: Work
    first: int
    repeated: int


def computed(most: int, start: int, length: int, in_vain: int, prompt_tokens: int) -> Computed:
    """Return the work of a chunk.

    Args:
        most: Tokens of its sequence that were ever computed.
        start: First position.
        length: Number of positions.
        in_vain: Wrong drafts among them, the last ones.
        prompt_tokens: Length of its sequence's prompt.
    """
    repeated = max(0, min(start + length, most) - start)
    if repeated:
        return Computed(Work.RECOMPUTE, length - repeated, repeated)
    return Computed(Work.PREFILL if start < prompt_tokens else Work.DECODE, length, 0)
