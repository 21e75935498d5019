"""Continuous batching: anyone joins at any step, with the whole prompt in that step.

Orca (OSDI 2022), and vLLM before chunked prefill: sequences join and leave between any two steps, but the running
streams wait as long as the prompts that join beside them take.
"""

from __future__ import annotations

from inflight.core.strategies import Fixed, StepShape, StepView, StrategyEntry


class Continuous(Fixed):
    name = "continuous"

    def __init__(self, token_budget: int):
        """token_budget: prompts join up to so many tokens per step; a longer prompt goes alone."""
        self._token_budget = token_budget

    def shape(self, view: StepView) -> StepShape:
        return StepShape(token_budget=self._token_budget, row_limit=view.max_rows, whole_prompts=True)


ENTRY = StrategyEntry(
    name="continuous",
    reason="anyone joins at any step, with the whole prompt",
    bounded_by="prompts",
    unused_lane_settings=("chunk",),
    unused_because="prompts are computed whole",
    # As systems without chunked prefill must: the budget has room for any prompt.
    make=lambda context, options: Continuous(max(context.token_budget, context.max_model_len)),
)
