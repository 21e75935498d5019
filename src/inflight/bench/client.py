"""The load client: send a workload to a server by several processes, and return what was observed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import FrameType

from inflight.bench.client_health import assess
from inflight.bench.client_types import Bodies, Progress, RunResult, Target
from inflight.bench.processes import WorkerPool, on_interrupt, shards_of
from inflight.bench.sender import Shard, ShardResult
from inflight.metrics.observation import Observation
from inflight.workload.workload import Workload


def send(
    workload: Workload,
    target: Target,
    bodies: Bodies,
    *,
    processes: int = 1,
    progress: Callable[[Progress], None] | None = None,
    interrupt: Callable[[], bool] | None = None,
) -> RunResult:
    """Send every entry of the workload at its time, and watch every answer to its end. Blocks until the last one.

    An open loop never waits for an answer before it sends. A turn of a conversation whose turn before failed is sent
    all the same, with the part of the answer that came. A server that is down, disconnects or sends garbage makes
    failed observations, not an exception: call `served_model.look` first.

    Args:
        workload: Requests with their times.
        target: The server.
        bodies: Makes the body of entry i by its index in `workload.entries`, in other processes.
        processes: Over which the entries are spread, conversations (`Entry.after`) whole, and the bound on concurrency
            divided; more than one when `RunResult.health` says that one cannot keep up.
        progress: Called about four times a second, and once at the end, in the calling thread.
        interrupt: Called about twenty times a second; once it returns True (without it: after Ctrl-C), no more requests
            are sent, those in flight end as "unfinished", and the result so far has `interrupted` set.

    Raises:
        BenchError: where no run is possible, as when a process of the client ends by itself; errors of `bodies` too.
    """
    shards = shards_of(workload, processes)
    with contextlib.ExitStack() as stack:
        asked = stack.enter_context(_interrupts()) if interrupt is None else interrupt
        pool = stack.enter_context(WorkerPool(shards, target, bodies))
        results = pool.run(progress, asked)
    return RunResult(
        observations=_in_order(shards, results, len(workload.entries)),
        health=assess([result.health for result in results], workload.closed),
        frames=sum(result.frames for result in results),
        token_counts="usage" if all(result.counted for result in results) else "frames",
        interrupted=any(result.interrupted for result in results),
        began=pool.began,
    )


def _in_order(shards: list[Shard], results: list[ShardResult], count: int) -> tuple[Observation, ...]:
    found: dict[int, Observation] = {}
    for shard, result in zip(shards, results, strict=True):
        found.update(zip(shard.indexes, result.observations, strict=True))
    return tuple(found[index] for index in range(count))


@contextlib.contextmanager
def _interrupts() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether Ctrl-C was pressed; pressed again, it stops at once."""
    heard = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal heard
        if heard:
            raise KeyboardInterrupt
        heard = True

    with on_interrupt(note):
        yield lambda: heard
