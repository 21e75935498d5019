"""A strategy of one's own: small pieces of prompts beside running streams, whole budgets while nobody reads.

Streams wait for the steps that they are in; see how long, on a simulated GPU:

    PYTHONPATH=examples inflight simulate --model llama-3-8b --hardware a100-80 --rate 4 \\
        --strategy gentle_chunks:GentleChunks
"""

from __future__ import annotations

from inflight.core.strategies import Fixed, StepShape, StepView

BESIDE = 128  # prompt tokens of a step in which streams wait for it


class GentleChunks(Fixed):
    name = "gentle-chunks"

    def __init__(self, token_budget: int):
        """token_budget: most tokens of a step; it is what --max-num-batched-tokens says."""
        self._token_budget = token_budget

    def shape(self, view: StepView) -> StepShape:
        # Everybody in a step waits for all of it: with streams in it, it is to be short.
        beside = view.decoding + BESIDE if view.decoding else self._token_budget
        return StepShape(token_budget=min(beside, self._token_budget), row_limit=view.max_rows)
