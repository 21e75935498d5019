"""Static batching: a batch starts when nothing runs and ends with its last sequence.

As FasterTransformer serves (Orca, OSDI 2022, section 3, describes it as request-level batching): `batch_size` waiting
requests start together, or as many as there are when the oldest has waited `max_wait`. Prompts are padded to the
longest, ended rows go on as padding, and answers are delivered when the batch ends.
"""

from __future__ import annotations

from inflight.core.plan import WaitUntil
from inflight.core.strategies import Fixed, StepShape, StepView


class Static(Fixed):
    name = "static"

    def __init__(self, batch_size: int, max_wait: float):
        """max_wait: seconds that an incomplete batch waits for company, counted from its oldest request's arrival."""
        self._batch_size = batch_size
        self._max_wait = max_wait

    def shape(self, view: StepView) -> StepShape | WaitUntil:
        if view.running:
            return together(())
        waiting = list(view.waiting.views())
        batch = waiting[: self._batch_size]
        if len(batch) < self._batch_size and batch:
            start = min(one.arrival for one in batch) + self._max_wait
            if view.now < start:
                return WaitUntil(start)
        return together(tuple(one.number for one in batch))


def together(joins: tuple[int, ...]) -> StepShape:
    """A step of a batch that starts and ends as one. What joins is bounded by count, so no budget is needed."""
    return StepShape(token_budget=UNBOUNDED, row_limit=UNBOUNDED, whole_prompts=True, joins=joins, together=True)


UNBOUNDED = 2**31 - 1
