"""Adaptive batching: as chunked, with the token budget and the row limit set each step to hold an ITL target.

Sarathi-Serve (arXiv 2403.02310) chooses its budget by profiling against a target; here an online model of step time
chooses it before every step, so that the budget follows the batch and the machine. The step may take as long as the
target allows: the largest budget that the model still predicts to fit gives the highest throughput that holds it."""

from __future__ import annotations

from collections.abc import Callable

from inflight.core.estimation.latency import LatencyModel
from inflight.core.options import seconds
from inflight.core.strategies import StepShape, StepView, StrategyEntry
from inflight.core.strategies.chunked import EARLY_END_TOKENS
from inflight.core.types.features import Features

HEADROOM = 0.9  # of the target: predictions err, and a percentile is to be held, not a mean
MIN_CHUNK = 16  # prompt tokens that always advance, or prompts would starve under an impossible target
FIRST_CHUNK = 32  # prompt tokens beside the decodes before anything is learnt: no machine takes long for them
SHRINK, GROW = 0.7, 1.05  # of the correction, when steps miss the target and when they keep it


class Adaptive:
    name = "adaptive"

    def __init__(self, token_budget: int, itl_target: float, latency: LatencyModel, early_end: int = 0):
        """token_budget: the most that is ever proposed. early_end: as in chunked.

        itl_target: seconds between two tokens of a running stream. latency: the scheduler's model; it learns from
        every step.
        """
        self._token_budget = token_budget
        self._target = itl_target
        self._model = latency
        self._early_end = early_end
        self._correction = 1.0

    def shape(self, view: StepView) -> StepShape:
        rows = self._row_limit(view)
        prompts = self._prompt_tokens(view) if self._model.ready else FIRST_CHUNK
        return StepShape(min(self._token_budget, view.decoding + prompts), row_limit=rows, early_end=self._early_end)

    def observe(self, features: Features, seconds: float) -> None:
        factor = SHRINK if seconds > self._target else GROW
        self._correction = min(1.0, max(0.05, self._correction * factor))

    def _prompt_tokens(self, view: StepView) -> int:
        """Return the most prompt tokens beside the decodes that the model expects to fit the target."""
        allowed = self._target * HEADROOM * self._correction
        return largest_fitting(
            lambda tokens: self._model.seconds(_step(view, view.decoding, tokens)) <= allowed,
            MIN_CHUNK,
            self._token_budget - view.decoding,
        )

    def _row_limit(self, view: StepView) -> int:
        """Return the most decodes whose step alone still fits the target; at least those that run."""
        if not self._model.ready:
            return view.max_rows
        allowed = self._target * HEADROOM
        return largest_fitting(
            lambda rows: self._model.seconds(_step(view, rows, 0)) <= allowed, max(1, view.running), view.max_rows
        )


def largest_fitting(fits: Callable[[int], bool], low: int, high: int) -> int:
    """Return the largest number up to `high` that fits, as all smaller ones do; `low` where none above it does."""
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _step(view: StepView, rows: int, prompt_tokens: int) -> Features:
    """Return the features of a step with so many decodes (of the length that they have now) and prompt tokens."""
    context = view.decode_context / view.decoding if view.decoding else 0.0
    return Features(
        tokens=rows + prompt_tokens,
        rows=rows + (prompt_tokens > 0),
        samples=rows + (prompt_tokens > 0),
        decode_context=round(context * rows),
        prefill_context=prompt_tokens * (prompt_tokens / 2),
    )


ITL_TARGET = seconds("itl_target", "Seconds between tokens that adaptive batching holds.", 0.2)
ENTRY = StrategyEntry(
    name="adaptive",
    reason="as chunked, with the budget set each step to hold the ITL target",
    options=(ITL_TARGET, EARLY_END_TOKENS),
    make=lambda context, options: Adaptive(
        context.token_budget, options[ITL_TARGET], context.latency, options[EARLY_END_TOKENS]
    ),
)
