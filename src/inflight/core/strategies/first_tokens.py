"""First tokens that cannot all be in time: which prompts are late, so that the most requests meet their targets.

Prompts are taken by deadline. Where one cannot be computed by then, the largest of those so far is late: without it the
others win most time (Moore, Management Science 15, 1968: the fewest late jobs). JITServe (arXiv 2504.20068) and
SLOs-Serve (arXiv 2504.08784) choose by cost whom to serve in time, too. Late prompts come after the others, and have
what these leave; a share of all tokens is theirs in any case, the oldest first, so that none waits for ever.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from inflight.core.sequence import SequenceView

LATE_SHARE = 0.05  # of all tokens, which late prompts have at least
SAFETY = 0.9  # of the rate that is reckoned with: others may come

NONE: frozenset[int] = frozenset()


class FirstTokens:
    def __init__(self) -> None:
        self._credit = 0.0  # tokens that are due to late prompts
        self._due: set[int] = set()  # numbers of those whose turn it is by their share: they are late no more
        self._any_late = False

    def observe(self, tokens: int) -> None:
        self._credit = self._credit + LATE_SHARE * tokens if self._any_late else 0.0

    def choose_late(
        self, prompts: Sequence[SequenceView], waiting: SequenceView | None, begin: float, rate: float
    ) -> tuple[frozenset[int], frozenset[int]]:
        """Choose the prompts that are late.

        Args:
            prompts: Sequences with uncomputed tokens, running or waiting.
            waiting: The oldest of the waiting ones that are late already, and not among these.
            begin: When the step begins, in seconds.
            rate: Prompt tokens per second that can be computed.

        Returns:
            Numbers of those that are late, and of the waiting one that is late no more, if any.
        """
        late = self._fewest_late(prompts, begin, SAFETY * rate)
        found = [one for one in prompts if one.number in late]
        oldest = min(found if waiting is None else [*found, waiting], key=arrival_order, default=None)
        self._any_late = oldest is not None
        if oldest is None or self._credit < oldest.uncomputed_tokens:
            return late, NONE
        self._credit -= oldest.uncomputed_tokens
        self._due.add(oldest.number)
        return late - {oldest.number}, frozenset((oldest.number,)) if oldest is waiting else NONE

    def _fewest_late(self, prompts: Sequence[SequenceView], begin: float, rate: float) -> frozenset[int]:
        self._due &= {one.number for one in prompts}
        late, tokens = set(), 0
        chosen: list[tuple[int, int]] = []  # heap, the largest first
        for one in sorted(prompts, key=_due):
            if one.output_tokens or one.number in self._due:  # resumed, or its turn
                tokens += one.uncomputed_tokens
            elif one.ttft_target is not None:
                tokens += one.uncomputed_tokens
                heapq.heappush(chosen, (-one.uncomputed_tokens, one.number))
                while chosen and tokens > rate * (one.arrival + one.ttft_target - begin):
                    size, number = heapq.heappop(chosen)
                    tokens += size
                    late.add(number)
        return frozenset(late)


def _due(view: SequenceView) -> tuple[float, int]:
    return view.arrival + (view.ttft_target or 0.0), view.number


def arrival_order(view: SequenceView) -> tuple[float, int]:
    return view.arrival, view.number
