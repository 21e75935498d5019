"""Samples of a request: the sequences that it becomes, with what bounds and ends each.

Knows the validator's bounds, the predictor and the stop rules. Nobody is told of a sequence here, since a stop text is
made by a tokenizer, which may fail.
"""

from __future__ import annotations

from inflight.core.estimation.output_length import Predictor
from inflight.core.queueing.validation import RequestValidator
from inflight.core.sequence import Sequence
from inflight.core.stopping import StopChecker, StopText, StopTextFactory
from inflight.core.types.request import Request, RequestRefused


class SampleMaker:
    def __init__(
        self,
        validator: RequestValidator,
        predictor: Predictor,
        end_token_ids: frozenset[int],
        stop_text: StopTextFactory | None,
    ):
        self.next_number = 0  # of the sequence that comes next
        self._validator = validator
        self._predictor = predictor
        self._end_token_ids = end_token_ids
        self._stop_text = stop_text

    def make(self, request: Request) -> list[Sequence]:
        """One sequence a sample. Raises RequestRefused where stop strings cannot be looked for."""
        max_output_tokens, banned = self._validator.max_output_tokens(request), self._validator.banned(request)
        predicted = self._predictor.predict(request, max_output_tokens, 0)
        samples = []
        for index in range(request.params.n):
            checker = StopChecker(request, self._end_token_ids, max_output_tokens, self._stop_text_for(request))
            sequence = Sequence(self.next_number + index, request, index, checker, max_output_tokens, banned)
            sequence.predicted = sequence.predicted_first = predicted
            samples.append(sequence)
        self.next_number += len(samples)
        return samples

    def _stop_text_for(self, request: Request) -> StopText | None:
        if self._stop_text is None or not request.params.stop:
            return None
        try:
            return self._stop_text(request)
        except Exception as fault:  # a tokenizer's
            raise RequestRefused(
                f"The {len(request.params.stop)} stop strings cannot be looked for ({fault}); leave them out.",
                field="stop",
            ) from fault
