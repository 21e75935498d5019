"""Highest response ratio next: 1 + tokens processed since arrival / own tokens; the highest goes first.

A ratio grows with the wait, faster for short sequences, so that these go first and long ones never starve (Magnus,
arXiv 2406.04785, for predicted lengths; SGLang 0.5.23's `hrrn`, whose own tokens are those of the prompt that are not
cached). Own tokens here are these and the predicted output. The clock is the tokens that the lane had processed, not
seconds, so that a replay is exact. The long pass sooner than under `sjf`: the order is nearer to first come, first
served.

Running sequences with the lowest ratio are preempted first.
"""

from __future__ import annotations

from collections.abc import Hashable

from inflight.core.policies import Policy, PolicyEntry, Rank
from inflight.core.sequence import SequenceView


class Hrrn(Policy):
    name = "hrrn"
    reranks_heads = True  # ratios grow at different speeds

    def __init__(self) -> None:
        self._clock = 0  # tokens that were processed
        self._arrivals: dict[int, int] = {}  # by number

    def rank(self, view: SequenceView, now: float) -> Rank:
        own = max(1, view.prompt_tokens - view.cached_tokens) + view.predicted_output_tokens
        arrival = self._arrivals.get(view.number, 0)  # it may have ended, with a token in flight
        return ((arrival - self._clock) / own,)

    def group(self, view: SequenceView) -> Hashable:
        """Return a bin of like own tokens, within which ratios are by arrival."""
        return int(view.prompt_tokens + view.predicted_output_tokens).bit_length()

    def arrived(self, view: SequenceView) -> None:
        self._arrivals[view.number] = self._clock

    def served(self, view: SequenceView, prompt_tokens: int, output_tokens: int, now: float) -> None:
        self._clock += prompt_tokens + output_tokens

    def left(self, view: SequenceView) -> None:
        self._arrivals.pop(view.number, None)


ENTRY = PolicyEntry(
    name="hrrn",
    reason="highest response ratio next, on a clock of tokens",
    asks_predictor=True,
    make=lambda context: Hrrn(),
)
