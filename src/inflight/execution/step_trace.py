"""Record steps of a model at given sizes, and divide the time of their threads by operation."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass

from inflight.core.types.plan import BatchPlan, Capacity, Chunk, NewRequest
from inflight.core.types.sampling import SamplingParams
from inflight.execution.backends.native.backend import NativeBackend
from inflight.execution.backends.native.recording import Recorded, RecordedCall, Span
from inflight.execution.roofline import Machine
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


@dataclass(slots=True)
class ThreadTime:
    """Seconds of one thread within an operation, or within a step."""

    busy: float = 0.0
    put_aside: float = 0.0
    waking: float = 0.0
    last_task: float = 0.0
    alone: float = 0.0
    between: float = 0.0


@dataclass(slots=True)
class OperationTime:
    """An operation over all its calls in a step.

    Attributes:
        name: With the sizes of its weights.
        calls: How often it was called.
        seconds: Until its last thread was done.
        bytes: Read at least.
        flops: Computed at least; a multiply-add counts two.
        ceiling_seconds: That the calls take at best on the machine.
        threads: The calling thread first.
    """

    name: str
    calls: int
    seconds: float
    bytes: int
    flops: float
    ceiling_seconds: float
    threads: list[ThreadTime]


@dataclass(frozen=True, slots=True)
class StepTrace:
    """A step, its operations by falling time, and its threads."""

    seconds: float
    operations: list[OperationTime]
    threads: list[ThreadTime]

    @property
    def ceiling_seconds(self) -> float:
        """Return the sum of the operations' ceilings."""
        return sum(one.ceiling_seconds for one in self.operations)


def summarize(recorded: Recorded, nanoseconds: int, machine: Machine) -> StepTrace:
    """Return the division of a step of so many nanoseconds, against the machine's rates."""
    found: dict[str, OperationTime] = {}
    count = len(recorded.workers)
    shared = {job.call for job in recorded.jobs}
    for span in recorded.spans:
        call = recorded.calls[span.call]
        at = found.get(call.operation)
        if at is None:
            at = OperationTime(call.operation, 0, 0.0, 0, 0.0, 0.0, [ThreadTime() for _ in range(count)])
            found[call.operation] = at
        seconds = (span.end - span.begin) / 1e9
        aside = 0.0 if span.call in shared else max(0.0, seconds - span.own / 1e9)
        at.seconds += seconds
        at.threads[0].busy += seconds - aside
        at.threads[0].put_aside += aside
        for thread in at.threads[1:]:
            thread.alone += seconds
    for number in {span.call for span in recorded.spans}:
        call, at = recorded.calls[number], found[recorded.calls[number].operation]
        at.calls += 1
        at.bytes += call.bytes
        at.flops += call.flops
        at.ceiling_seconds += ceiling(call, machine)
    for worker, spans in enumerate(recorded.workers):
        _divide_jobs(recorded, spans, worker, found)
    threads = [_sum([one.threads[worker] for one in found.values()]) for worker in range(count)]
    between = nanoseconds / 1e9 - sum(one.seconds for one in found.values())
    for thread in threads:
        thread.between = between
    operations = sorted(found.values(), key=lambda one: -one.seconds)
    return StepTrace(nanoseconds / 1e9, operations, threads)


def ceiling(call: RecordedCall, machine: Machine) -> float:
    """Return the seconds that a call takes at best."""
    return max(call.bytes / machine.read_bytes_per_s, call.flops / machine.flops_per_s[call.rate])


def _divide_jobs(recorded: Recorded, spans: Sequence[Span], worker: int, found: dict[str, OperationTime]) -> None:
    """Divide the thread's part of each job: until it came, while it was at it, until the last thread had left."""
    begins = [span.begin for span in spans]
    for job in recorded.jobs:
        time = found[recorded.calls[job.call].operation].threads[worker]
        at = bisect_right(begins, job.end) - 1  # the last that began before the job had ended
        came = at >= 0 and begins[at] >= job.begin
        own = spans[at] if came else Span(job.call, job.end, job.end, 0)
        aside = max(0, own.end - own.begin - own.own) / 1e9
        if worker:
            time.alone -= (job.end - job.begin) / 1e9
            time.busy += (own.end - own.begin) / 1e9 - aside
            time.waking += (own.begin - job.begin) / 1e9
        else:
            time.busy -= (job.end - own.end) / 1e9 + aside
        time.put_aside += aside
        time.last_task += (job.end - own.end) / 1e9


def _sum(times: Sequence[ThreadTime]) -> ThreadTime:
    return ThreadTime(*map(sum, zip(*map(astuple, times), strict=True))) if times else ThreadTime()
