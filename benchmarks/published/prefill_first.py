"""SGLang's steps, as a strategy: prompts or decodes, never both.

As long as a waiting request finds a row and memory, the next step computes prompts up to --chunked-prefill-size, and
no running stream gets a token (its scheduler's get_next_batch_to_run in 0.4 and 0.5, without --enable-mixed-chunk).
This engine has no such strategy: its streams would stand still as long as prompts come.
"""

from __future__ import annotations

from inflight.core.strategies import Fixed, StepShape, StepView


class PrefillFirst(Fixed):
    name = "prefill-first"

    def __init__(self, token_budget: int):
        """token_budget: of a step of prompts."""
        self._token_budget = token_budget
        self._refused: int | None = None  # number of the first that waited for a step it would have had room in

    def shape(self, view: StepView) -> StepShape:
        """Decodes yield, to prompts that take the whole step; where memory refused the first one, decodes have what it
        leaves."""
        assert view.foreground is not None
        running = view.foreground.running()
        begun = sum(one.uncomputed_tokens for one in running if one.uncomputed_tokens > 1)
        room = min(view.max_rows - view.running, self._token_budget - begun)
        waiting = view.foreground.waiting(room) if room > 0 else []
        prompts = begun + sum(one.uncomputed_tokens for one in waiting)
        refused = bool(waiting) and not begun and waiting[0].number == self._refused
        self._refused = waiting[0].number if waiting else None
        if not prompts:
            return StepShape(self._token_budget, view.max_rows)
        decodes = tuple(one.number for one in running if one.uncomputed_tokens == 1)
        tokens = self._token_budget if refused else min(self._token_budget, prompts)
        return StepShape(tokens, view.max_rows, yields=decodes)
