"""Shortest predicted remaining work first, with ageing.

The order is what matters, not the exact length (learning to rank, arXiv 2408.15792): the work of a sequence is its
prompt and its predicted output, the latter counted more because a decode step serves fewer tokens than a prompt's. Each
second of waiting makes up for `WORK_PER_SECOND` units, so that a long request is passed over for a bounded time only.
Running sequences with the most work left are preempted first.
"""

from __future__ import annotations

from inflight.core.policies import Policy, PolicyEntry, Rank
from inflight.core.sequence import SequenceView

OUTPUT_WEIGHT = 4.0  # work of an output token, in prompt tokens
WORK_PER_SECOND = 20.0  # in prompt tokens, that a second of waiting makes up for


class Sjf(Policy):
    name = "sjf"

    def rank(self, view: SequenceView, now: float) -> Rank:
        prompt = max(0, view.prompt_tokens - view.computed_tokens)
        output = max(1.0, view.predicted_output_tokens - view.output_tokens)
        # work - WORK_PER_SECOND * (now - arrival) orders alike for every `now`: a waiting one's rank is constant.
        return (prompt + OUTPUT_WEIGHT * output + WORK_PER_SECOND * view.arrival,)


ENTRY = PolicyEntry(
    name="sjf",
    reason="shortest predicted remaining work first, with ageing",
    asks_predictor=True,
    make=lambda context: Sjf(),
)
