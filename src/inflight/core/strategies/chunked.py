"""Chunked prefill: decodes first, the rest of the token budget goes to prompt chunks.

Sarathi-Serve (arXiv 2403.02310): no running stream ever waits for a whole prompt, because a step never computes more
than the budget. Anyone may join at any step. What Sarathi-Serve does not do: a step that completes a prompt may end
with it. Filled up with pieces of the next prompts it would take longer, and the complete one would wait for them.
"""

from __future__ import annotations

from inflight.core.options import Option, Value
from inflight.core.strategies import Fixed, StepShape, StepView, StrategyEntry
from inflight.counted import UNBOUNDED

EARLY_END = 32


class Chunked(Fixed):
    name = "chunked"

    def __init__(self, token_budget: int, early_end: int = 0):
        """early_end: tokens from which a step ends with the prompt that it completes; 0: it is filled."""
        self._token_budget = token_budget
        self._early_end = early_end

    def shape(self, view: StepView) -> StepShape:
        return StepShape(token_budget=self._token_budget, row_limit=view.max_rows, early_end=self._early_end)


def _early_end(value: Value) -> int:
    if not 0 <= int(value) <= UNBOUNDED:
        raise ValueError(f"is {value}; give a whole number from 0 (never) to {UNBOUNDED:,}.")
    return int(value)


EARLY_END_TOKENS = Option(
    name="early_end_tokens",
    kind=int,
    help=f"Tokens from which a step ends with the prompt that it completes: {EARLY_END} on a CPU; 0 fills every step.",
    default=EARLY_END,
    read=_early_end,
    unset=(
        EARLY_END,
        "tokens from which a step that completes a prompt ends with it: the cores are busy by then, and pieces of "
        "other prompts would keep its first token back",
    ),
)
ENTRY = StrategyEntry(
    name="chunked",
    reason="decodes first, the rest of each step goes to prompts",
    options=(EARLY_END_TOKENS,),
    make=lambda context, options: Chunked(context.token_budget, options[EARLY_END_TOKENS]),
)
