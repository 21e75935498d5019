"""Chunked prefill: decodes first, the rest of the token budget goes to prompt chunks.

Sarathi-Serve (arXiv 2403.02310): no running stream ever waits for a whole prompt, because a step never computes more
than the budget. Anyone may join at any step.
"""

from __future__ import annotations

from inflight.core.strategies import Fixed, StepShape, StepView


class Chunked(Fixed):
    name = "chunked"

    def __init__(self, token_budget: int):
        self._token_budget = token_budget

    def shape(self, view: StepView) -> StepShape:
        return StepShape(token_budget=self._token_budget, row_limit=view.max_rows)
