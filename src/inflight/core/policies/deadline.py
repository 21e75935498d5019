"""Deadlines: least slack to the request's TTFT target first; those that cannot be met any more yield.

Earliest latest-start first, as QLM (arXiv 2407.00047) orders by slack from an estimate of service time; early
rejection of the hopeless (Mooncake, arXiv 2407.00079) becomes yielding here: they are served when nobody else can
still be in time. The estimate of prefill time comes from what prompts took so far.
"""

from __future__ import annotations

from inflight.core.latency import LatencyModel, prefill_seconds
from inflight.core.policies import Ordered, Rank
from inflight.core.sequence import SequenceView

NO_TARGET = 60.0  # seconds to the first token that a request without a target is taken to expect


class Deadline(Ordered):
    name = "deadline"
    window = 512  # whether a deadline can still be met changes as time passes

    def __init__(self, latency: LatencyModel):
        self._latency = latency

    def rank(self, view: SequenceView, now: float) -> Rank:
        target = view.ttft_target if view.ttft_target is not None else NO_TARGET
        left = max(0, view.prompt_tokens - view.computed_tokens)
        latest_start = view.arrival + target - prefill_seconds(self._latency, left)
        hopeless = not view.output_tokens and latest_start < now
        # The hopeless go by work, so that of them too as many as possible are soon done.
        return (hopeless, float(view.prompt_tokens) if hopeless else latest_start, view.arrival)
