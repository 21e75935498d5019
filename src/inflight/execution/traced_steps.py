"""Steps of a model at given sizes, recorded: rows that each stand at a context, or one prompt.

Knows plans and blocks; keys and values are whatever their memory holds, which changes no time. Scheduling is not in
these steps: an executor is given its plans.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from inflight.core.types.plan import BatchPlan, Capacity, Chunk, NewRequest
from inflight.core.types.sampling import SamplingParams
from inflight.execution.backends.native.backend import NativeBackend
from inflight.execution.backends.native.recording import Recorded
from inflight.execution.runner import ModelRunner

UNTRACED = 2  # steps before those that are recorded
SAMPLING = SamplingParams(temperature=1.0, top_p=0.95)


@dataclass(frozen=True, slots=True)
class StepSize:
    """`rows` chunks of `length` tokens, each behind `start` others."""

    rows: int
    start: int
    length: int

    def blocks(self, capacity: Capacity, steps: int) -> int:
        """Return how many blocks so many steps need."""
        return sum(len(table) for table in _tables(self, capacity, steps)) * self.rows


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """A step from its plan to its result, in nanoseconds of the recording's clock."""

    begin: int
    end: int
    recorded: Recorded

    @property
    def nanoseconds(self) -> int:
        return self.end - self.begin


def recorded_steps(runner: ModelRunner, size: StepSize, steps: int) -> list[RecordedStep]:
    """Return so many steps, in their order. Raises RuntimeError with the executor's sentence where one fails."""
    backend, found = runner.backend, []
    assert isinstance(backend, NativeBackend)
    for number, plan in enumerate(_plans(size, runner.capacity, UNTRACED + steps)):
        if number < UNTRACED or not plan.chunks:
            _run(runner, plan)
            continue
        with backend.recorded() as recording:
            begin = recording.now()
            _run(runner, plan)
            end = recording.now()
            found.append(RecordedStep(begin, end, recording.finish()))
    return found


def _run(runner: ModelRunner, plan: BatchPlan) -> None:
    result = runner.submit(plan).result()
    failed = [*([result.error] if result.error else []), *(one.error for one in result.sampled if one.error)]
    if failed:
        raise RuntimeError(failed[0])


def _plans(size: StepSize, capacity: Capacity, steps: int) -> Iterator[BatchPlan]:
    """Yield plans of such steps: decodes go on from step to step; a prompt starts again in each."""
    decodes = size.length == 1
    tables = _tables(size, capacity, steps)
    each = sum(len(table) for table in tables)
    for step in range(steps):
        begins, chunks = step == 0 or not decodes, []
        for row in range(size.rows):
            own = iter(range(row * each, (row + 1) * each))
            of_groups = [tuple(capacity.num_blocks if behind else next(own) for behind in table) for table in tables]
            first, *others = of_groups if begins else [()]
            start = size.start + (step if decodes else 0)
            chunks.append(Chunk(row, row, start, size.length, first, 1, window_blocks=tuple(others)))
        new = [_new_request(row, size, capacity) for row in range(size.rows)] if begins else []
        freed = tuple(range(size.rows)) if begins and step else ()
        yield BatchPlan(step, tuple(chunks), tuple(new), freed)
    yield BatchPlan(steps, (), freed_rows=tuple(range(size.rows)))


def _new_request(row: int, size: StepSize, capacity: Capacity) -> NewRequest:
    tokens = size.start + size.length
    token_ids = tuple((row * 31 + place * 7 + 1) % capacity.vocab_size for place in range(tokens))
    snapshot = 0 if size.start and capacity.state_snapshots else -1  # where a recurrent state is to stand at the start
    return NewRequest(row, token_ids, tokens, SAMPLING, seed=row, sample_index=0, snapshot=snapshot)


def _tables(size: StepSize, capacity: Capacity, steps: int) -> list[list[bool]]:
    """Return, of each KV group a row's blocks, whether each is behind the window, where no query reads it."""
    positions = size.start + size.length + (steps if size.length == 1 else 0)
    blocks = -(-positions // capacity.block_size)
    return [
        [window > 0 and (block + 1) * capacity.block_size <= size.start - window for block in range(blocks)]
        for window in capacity.windows
    ]
