"""What becomes of a victim's blocks: forgotten and recomputed, or kept on the host and copied back.

Knows costs, not blocks: `auto` takes the cheaper of what copying there and back takes, as measured by the executor, and
what recomputing takes, as learnt from the steps.
"""

from __future__ import annotations

from typing import Literal

from inflight.core.estimation.latency import LatencyModel, prefill_seconds

Mode = Literal["recompute", "swap", "auto"]


class Preemption:
    def __init__(self, mode: Mode, latency: LatencyModel, copy_seconds: float):
        """copy_seconds: to copy one block one way."""
        self._mode = mode
        self._latency = latency
        self._copy_seconds = copy_seconds

    def keeps(self, tokens: int, blocks: int) -> bool:
        """Whether a victim with so many computed tokens in so many blocks is swapped."""
        if self._mode != "auto":
            return self._mode == "swap"
        return 2 * blocks * self._copy_seconds < prefill_seconds(self._latency, tokens)
