"""Spread a workload over processes that begin together, and collect their results.

Each process has its own interpreter, so that neither a progress display nor another's work delays its clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import itertools
import multiprocessing
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import FrameType
from typing import Any

from inflight.bench.client_types import BenchError, Bodies, Progress, Target
from inflight.bench.sender import Sender, Shard, ShardResult
from inflight.workload.workload import Entry, Workload

_LEAD_S = 0.05  # from the order to begin until the workload's beginning: it may take so long to reach every process
_PATIENCE_S = 30.0  # for a process to stop


def shards_of(workload: Workload, processes: int) -> list[Shard]:
    """Divide a workload among processes: conversations whole, in turn to each; the bound on concurrency divided, with a
    part for each process."""
    count = max(1, min(processes, len(workload.entries), workload.concurrency or processes))
    turn = itertools.count()
    home: dict[int, int] = {}  # of each conversation, by its first entry
    placed: list[list[int]] = [[] for _ in range(count)]
    for index in range(len(workload.entries)):
        first = index
        while (before := workload.entries[first].after) is not None:
            first = before
        if first not in home:
            home[first] = next(turn) % count
        placed[home[first]].append(index)
    return [_shard(workload, indexes, number, count) for number, indexes in enumerate(placed)]


def _shard(workload: Workload, indexes: list[int], number: int, count: int) -> Shard:
    positions = {index: position for position, index in enumerate(indexes)}

    def moved(entry: Entry) -> Entry:
        return entry if entry.after is None else dataclasses.replace(entry, after=positions[entry.after])

    bound = workload.concurrency
    part = None if bound is None else bound // count + (number < bound % count)
    entries = tuple(moved(workload.entries[index]) for index in indexes)
    return Shard(dataclasses.replace(workload, entries=entries, concurrency=part), indexes)


class WorkerPool:
    """The processes of one run, which end with the context."""

    def __init__(self, shards: Sequence[Shard], target: Target, bodies: Bodies):
        self._shards = shards
        self._pipes: list[Connection] = []
        self._processes: list[SpawnProcess] = []
        context = multiprocessing.get_context("spawn")
        # They ignore Ctrl-C, which a terminal sends to all; the pool stops them.
        with on_interrupt(signal.SIG_IGN):
            for shard in shards:
                ours, theirs = context.Pipe()
                process = context.Process(target=_main, args=(theirs, shard, target, bodies), daemon=True)
                process.start()
                theirs.close()
                self._pipes.append(ours)
                self._processes.append(process)
        self._progress = [Progress(len(shard.indexes), 0, 0, 0, 0, 0, 0.0) for shard in shards]
        self._results: dict[int, ShardResult] = {}
        self.began = 0.0  # of the workload, on time.perf_counter

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *exception: object) -> None:
        for process in self._processes:
            process.terminate()
            process.join()
        for pipe in self._pipes:
            pipe.close()

    def run(self, progress: Callable[[Progress], None] | None, interrupted: Callable[[], bool]) -> list[ShardResult]:
        """Run all shards, and return their results in order."""
        reported = stopped = 0.0
        ready = 0
        while len(self._results) < len(self._shards):
            for message in self._messages():
                ready += message == "ready"
                if message == "ready" and ready == len(self._shards):
                    self.began = time.perf_counter() + _LEAD_S
                    self._order(("begin", self.began))
            now = time.perf_counter()
            if progress is not None and now - reported >= 0.25 and ready == len(self._shards):
                reported = now
                progress(self._sum())
            if not stopped and interrupted():
                stopped = now
                self._order(("stop", 0.0))
            if stopped and now - stopped > _PATIENCE_S:
                raise BenchError(f"A process of the load client did not stop within {_PATIENCE_S:g} s.")
        if progress is not None:
            progress(self._sum())
        return [self._results[number] for number in range(len(self._shards))]

    def _messages(self) -> Iterator[object]:
        """Yield received messages, with results and counts stored."""
        open_pipes = [pipe for number, pipe in enumerate(self._pipes) if number not in self._results]
        for pipe in wait(open_pipes, timeout=0.05):
            number = self._pipes.index(pipe)  # type: ignore[arg-type]
            try:
                message = self._pipes[number].recv()
            except (EOFError, OSError):
                self._processes[number].join()
                raise BenchError(
                    f"Process {number + 1} of {len(self._shards)} of the load client ended by itself, with code "
                    f"{self._processes[number].exitcode}; its messages are above. Was there too little memory?"
                ) from None
            if isinstance(message, Exception):
                raise message
            if isinstance(message, ShardResult):
                self._results[number] = message
            elif isinstance(message, Progress):
                self._progress[number] = message
            yield message

    def _order(self, order: tuple[str, float]) -> None:
        for pipe in self._pipes:
            with contextlib.suppress(OSError):  # it has ended: its pipe says so when it is read
                pipe.send(order)

    def _sum(self) -> Progress:
        names = [one.name for one in dataclasses.fields(Progress) if one.name != "elapsed_s"]
        sums = {name: sum(getattr(one, name) for one in self._progress) for name in names}
        return Progress(**sums, elapsed_s=max(one.elapsed_s for one in self._progress))


@contextlib.contextmanager
def on_interrupt(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> Iterator[None]:
    """Set the handler of Ctrl-C in the context; without effect in other threads than the main one, which gets
    signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _main(pipe: Connection, shard: Shard, target: Target, bodies: Bodies) -> None:
    """Run one process. A terminal's Ctrl-C reaches it, too, but its parent says when it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _lift_file_limit()
    try:
        sender = Sender(shard, target, bodies)
        sender.prepare()
        gc.collect()
        gc.freeze()  # objects that live through the whole run are not traversed again
        gc.set_threshold(20_000, 20, 100)
        pipe.send("ready")
        order, start = pipe.recv()
        if order == "begin":  # a message after that is the order to stop, or the end of the parent
            with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                pipe.send(runner.run(sender.run(start, pipe.poll, lambda counts: _send(pipe, counts))))
        else:
            pipe.send(sender.unsent())
    except EOFError:
        return  # the parent has ended
    except Exception as problem:
        _send(pipe, problem)


def _send(pipe: Connection, message: Any) -> None:
    with contextlib.suppress(OSError):
        pipe.send(message)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if sys.platform == "win32":
        return None
    import uvloop

    return uvloop.new_event_loop


def _lift_file_limit() -> None:
    """Raise the limit of open files, such as connections: the usual 1,024 is soft."""
    if sys.platform != "win32":
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with contextlib.suppress(OSError, ValueError):  # some systems call it unlimited and mean less
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
