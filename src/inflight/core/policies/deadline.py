"""Deadlines: least slack to the request's TTFT target first; requests that can no longer meet it yield.

Earliest latest-start first, as QLM (arXiv 2407.00047) orders by slack from an estimate of service time; early
rejection of the hopeless (Mooncake, arXiv 2407.00079) becomes yielding here: they are served when no other request can
still be in time. Prefill time is estimated from what prompts took so far. Under overload this order starts every
request at the last moment, when the decodes and prompts beside it decide whether it is in time. So a margin is learnt,
such that a twentieth of the requests that were started in time misses the target.
"""

from __future__ import annotations

import math
from collections.abc import Hashable

from inflight.core.estimation.latency import LatencyModel, prefill_seconds
from inflight.core.policies import Policy, PolicyEntry, Rank
from inflight.core.sequence import SequenceView

DEFAULT_TTFT_S = 60.0  # target of a request without one
GROUP_S = 0.25  # requests whose latest starts are within it wait in one group, in order of slack
LATE_SHARE = 0.05  # of requests started in time that may miss their target
MARGIN_STEP_S = 0.05  # by which the margin grows when one does


class Deadline(Policy):
    name = "deadline"

    def __init__(self, latency: LatencyModel):
        self._latency = latency
        self._margin = 0.0
        self._deadlines: dict[int, float] = {}  # of sequences that were started in time and have no token yet

    def rank(self, view: SequenceView, now: float) -> Rank:
        latest_start = self._latest_start(view)
        return (not view.output_tokens and latest_start < now, latest_start, view.arrival)

    def group(self, view: SequenceView) -> Hashable:
        if view.output_tokens:
            return None  # preempted: its stream stands still
        return math.ceil(self._latest_start(view) / GROUP_S)

    def group_rank(self, group: Hashable, now: float) -> Rank:
        if not isinstance(group, int):
            return (False, -math.inf)
        return (group * GROUP_S < now + self._margin, group)

    def served(self, view: SequenceView, prompt_tokens: int, output_tokens: int, now: float) -> None:
        if view.output_tokens == output_tokens > 0:
            self._learn_margin(view, now)
        elif prompt_tokens and view.computed_tokens == prompt_tokens and self._latest_start(view) >= now:
            self._deadlines[view.number] = _deadline(view)

    def left(self, view: SequenceView) -> None:
        self._deadlines.pop(view.number, None)

    def _learn_margin(self, view: SequenceView, now: float) -> None:
        """Move the margin after a first token (a quantile, tracked by Robbins and Monro's steps)."""
        deadline = self._deadlines.pop(view.number, None)
        if deadline is not None:
            step = MARGIN_STEP_S if now > deadline else -MARGIN_STEP_S * LATE_SHARE / (1 - LATE_SHARE)
            self._margin = max(0.0, self._margin + step)

    def _latest_start(self, view: SequenceView) -> float:
        left = max(0, view.prompt_tokens - view.computed_tokens)
        return _deadline(view) - prefill_seconds(self._latency, left)


def _deadline(view: SequenceView) -> float:
    return view.arrival + (DEFAULT_TTFT_S if view.ttft_target is None else view.ttft_target)


ENTRY = PolicyEntry(
    name="deadline",
    reason="least slack to its target first",
    make=lambda context: Deadline(context.latency),
)
