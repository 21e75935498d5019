"""The time of each thread in a recorded step, by operation, and the share of the machine's ceiling that each reaches.

The time of every thread is divided into six: computing; put aside by the system for others; waking, until it comes to a
job of all threads; waiting for a job's last task; idle while the calling thread computes alone; and between operations,
where Python runs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from inflight.execution.backends.native.recording import Recorded, RecordedCall, Span
from inflight.execution.roofline import Machine


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
        """The operations' together."""
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
    return ThreadTime(
        sum(one.busy for one in times),
        sum(one.put_aside for one in times),
        sum(one.waking for one in times),
        sum(one.last_task for one in times),
        sum(one.alone for one in times),
    )
