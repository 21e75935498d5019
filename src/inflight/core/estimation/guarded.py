"""A guard around a predictor that is not ours: what it answers is a number of tokens, or quantiles take over."""

from __future__ import annotations

from collections.abc import Callable

from inflight.core.estimation.output_length import Predictor, Quantiles
from inflight.core.plugin import Plugin, check_finite_number
from inflight.core.types.request import Request


class Guarded:
    """Both learn from the start, so that the successor knows something when it is needed."""

    def __init__(self, predictor: Predictor, report: Callable[[str], None]):
        """report: told once, in a sentence, when the predictor failed."""
        self._plugin = Plugin("predictor", predictor, "the quantiles of output lengths", report)
        self._predictor = predictor
        self._fallback = Quantiles()

    def predict(self, request: Request, most_output: int, so_far: int) -> float:
        expected = self._plugin.ask("predict", lambda: self._checked(request, most_output, so_far))
        return self._fallback.predict(request, most_output, so_far) if expected is None else expected

    def observe(self, request: Request, output_tokens: int) -> None:
        self._fallback.observe(request, output_tokens)
        self._plugin.ask("observe", lambda: self._predictor.observe(request, output_tokens))

    def _checked(self, request: Request, most_output: int, so_far: int) -> float:
        expected = self._predictor.predict(request, most_output, so_far)
        check_finite_number(expected, "the expected output")
        if expected < 0:
            raise ValueError(f"the expected output is {expected} tokens; it must not be below 0")
        return float(expected)
