"""Deadlines: least slack to the request's TTFT target first; those that cannot be met any more yield.

Earliest latest-start first, as QLM (arXiv 2407.00047) orders by slack from an estimate of service time; early
rejection of the hopeless (Mooncake, arXiv 2407.00079) becomes yielding here: they are served when nobody else can
still be in time. Prefill time is estimated from what prompts took so far. Under overload this order starts everyone at
the last moment, when the decodes and prompts beside it decide whether it is in time: so a margin is learnt, such that
of those that were started as hopeful a twentieth is late.
"""

from __future__ import annotations

import math
from collections.abc import Hashable

from inflight.core.estimation.latency import LatencyModel, prefill_seconds
from inflight.core.policies import Ordered, PolicyEntry, Rank
from inflight.core.sequence import SequenceView

NO_TARGET = 60.0  # seconds to the first token that a request without a target is taken to expect
GRAIN = 0.25  # seconds: who must start within the same grain waits in the same group, in order of slack
LATE = 0.05  # share of those started in hope that the margin allows to be late
LEARNING = 0.05  # seconds that the margin grows by when one is late


class Deadline(Ordered):
    name = "deadline"

    def __init__(self, latency: LatencyModel):
        self._latency = latency
        self._margin = 0.0
        self._hopeful: dict[int, float] = {}  # those started in time and without a token: number → deadline

    def rank(self, view: SequenceView, now: float) -> Rank:
        latest_start = self._latest_start(view)
        return (not view.output_tokens and latest_start < now, latest_start, view.arrival)

    def group(self, view: SequenceView) -> Hashable:
        if view.output_tokens:
            return None  # preempted: its stream stands still
        return math.ceil(self._latest_start(view) / GRAIN)

    def group_rank(self, group: Hashable, now: float) -> Rank:
        if not isinstance(group, int):
            return (False, -math.inf)
        return (group * GRAIN < now + self._margin, group)

    def served(self, view: SequenceView, prompt_tokens: int, output_tokens: int, now: float) -> None:
        if view.output_tokens == output_tokens > 0:
            self._first_token(view, now)
        elif prompt_tokens and view.computed_tokens == prompt_tokens and self._latest_start(view) >= now:
            self._hopeful[view.number] = _deadline(view)

    def left(self, view: SequenceView) -> None:
        self._hopeful.pop(view.number, None)

    def _first_token(self, view: SequenceView, now: float) -> None:
        """The margin follows the share of the late (a quantile, tracked by Robbins and Monro's steps)."""
        deadline = self._hopeful.pop(view.number, None)
        if deadline is not None:
            step = LEARNING if now > deadline else -LEARNING * LATE / (1 - LATE)
            self._margin = max(0.0, self._margin + step)

    def _latest_start(self, view: SequenceView) -> float:
        left = max(0, view.prompt_tokens - view.computed_tokens)
        return _deadline(view) - prefill_seconds(self._latency, left)


def _deadline(view: SequenceView) -> float:
    return view.arrival + (NO_TARGET if view.ttft_target is None else view.ttft_target)


ENTRY = PolicyEntry(
    name="deadline",
    reason="least slack to its target first",
    make=lambda context: Deadline(context.latency),
)
