"""Static batching: a batch starts when nothing runs and ends with its last sequence.

As FasterTransformer serves (Orca, OSDI 2022, section 3, describes it as request-level batching): `batch_size` waiting
requests start together, or as many as there are when the oldest has waited `max_wait`. Prompts are padded to the
longest, ended rows go on as padding, and answers are delivered when the batch ends.
"""

from __future__ import annotations

from collections.abc import Iterable

from inflight.core.options import BadOption, OptionValues, count, seconds
from inflight.core.sequence import SequenceView
from inflight.core.strategies import Fixed, StepShape, StepView, StrategyContext, StrategyEntry
from inflight.core.types.plan import WaitUntil
from inflight.counted import UNBOUNDED


class Static(Fixed):
    name = "static"

    def __init__(self, batch_size: int, max_wait: float):
        """max_wait: seconds that an incomplete batch waits for company, counted from its oldest request's arrival."""
        self._batch_size = batch_size
        self._max_wait = max_wait

    def shape(self, view: StepView) -> StepShape | WaitUntil:
        if view.running:
            return batch((), self._batch_size)
        waiting = list(view.waiting.views())
        if waiting and not fills(waiting, self._batch_size):
            start = min(one.arrival for one in waiting) + self._max_wait
            if view.now < start:
                return WaitUntil(start)
        return batch(waiting, self._batch_size)


def batch(waiting: Iterable[SequenceView], batch_size: int) -> StepShape:
    """Return the step of a batch that starts and ends as one: the waiting in their order, up to `batch_size` sequences.

    Of a request with more samples than that, some run in the next batch. The batch is bounded by its count, so that it
    needs no token budget.
    """
    taken: list[int] = []
    room = batch_size
    for one in waiting:
        room -= one.sequences
        if taken and room < 0:
            break
        taken.append(one.number)
    return StepShape(UNBOUNDED, row_limit=batch_size, whole_prompts=True, admit=tuple(taken), run_to_completion=True)


def fills(waiting: Iterable[SequenceView], batch_size: int) -> bool:
    return sum(one.sequences for one in waiting) >= batch_size


def size_of_batch(context: StrategyContext, options: OptionValues) -> int:
    """Return the sequences of a batch. Raises BadOption."""
    size = options[BATCH_SIZE] or context.max_rows
    if size > context.max_rows:
        raise BadOption(
            BATCH_SIZE.name,
            f"is {size}, but {context.max_rows} sequences may run at once; raise --max-num-seqs to match.",
        )
    return size


BATCH_SIZE = count("batch_size", "Sequences of a static or dynamic batch.")
MAX_WAIT = seconds("max_wait", "Seconds that an incomplete static batch waits.", 0.05)
UNUSED_LANE_SETTINGS = ("min_rows", "max_rows", "min_tokens", "max_tokens", "chunk", "step_target")
UNUSED_BECAUSE = "a batch takes the first requests, with whole prompts, and none joins until it ends"
ENTRY = StrategyEntry(
    name="static",
    reason="a batch starts when nothing runs and ends with its last sequence",
    options=(BATCH_SIZE, MAX_WAIT),
    bounded_by="sequences",
    unused_lane_settings=UNUSED_LANE_SETTINGS,
    unused_because=UNUSED_BECAUSE,
    make=lambda context, options: Static(size_of_batch(context, options), options[MAX_WAIT]),
)
