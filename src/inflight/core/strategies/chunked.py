"""Chunked prefill: decodes first, the rest of the token budget goes to prompt chunks.

Sarathi-Serve (arXiv 2403.02310): no running stream ever waits for a whole prompt, because a step never computes more
than the budget. Anyone may join at any step. What Sarathi-Serve does not do: a step that completes a prompt may end
with it. Filled up with pieces of the next prompts it would take longer, and the complete one would wait for them.
"""

from __future__ import annotations

from inflight.core.strategies import Fixed, StepShape, StepView


class Chunked(Fixed):
    name = "chunked"

    def __init__(self, token_budget: int, early_end: int = 0):
        """early_end: tokens from which a step ends with the prompt that it completes; 0: it is filled."""
        self._token_budget = token_budget
        self._early_end = early_end

    def shape(self, view: StepView) -> StepShape:
        return StepShape(token_budget=self._token_budget, row_limit=view.max_rows, early_end=self._early_end)
