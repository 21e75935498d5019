"""The worker processes, from the engine's side: started, set up, asked, and ended.

Knows processes and messages; not what is computed.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from multiprocessing import Pipe
from typing import TYPE_CHECKING, TypeVar

from inflight.core.types.plan import BatchPlan, Capacity, Transferred
from inflight.execution.computing import KernelModel
from inflight.execution.parallel.faults import WorkerFault
from inflight.execution.parallel.mailbox import Mailbox, Message
from inflight.execution.parallel.member import SECONDS, Member, device_of
from inflight.execution.parallel.messages import (
    Begin,
    Computed,
    Joining,
    Loaded,
    Ready,
    Setup,
    Step,
    encode,
)
from inflight.execution.parallel.shards import Shard
from inflight.models.gguf.gguf_model import GGUFModel

if TYPE_CHECKING:
    from inflight.execution.parallel.ranks import Ranks

START_SECONDS = 120.0  # to import PyTorch
LOAD_SECONDS = 3600.0  # to load a shard, from a slow disk
_CLOSE_SECONDS = 5.0

T = TypeVar("T")


class Worker:
    """One process, and the pipe that is its life."""

    def __init__(self, rank: int, setup: Setup) -> None:
        self.rank = rank
        self._pipe, theirs = Pipe()
        self._mailbox = Mailbox(rank, self._pipe, self._end)
        command = [sys.executable, "-m", "inflight.execution.parallel.worker", str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        with contextlib.suppress(OSError):  # it has ended: the next request to it raises
            self._pipe.send(setup)

    def send(self, message: Begin | Step) -> None:
        with contextlib.suppress(OSError):
            self._pipe.send_bytes(encode(message))

    def receive(self, kind: type[Message], seconds: float) -> Message:
        return self._mailbox.receive(kind, seconds)

    def ended(self) -> list[Transferred]:
        return self._mailbox.ended()

    def wait(self) -> None:
        self._process.wait()

    def end(self, seconds: float) -> None:
        """Its pipe is closed, at which it ends; else it is killed after so many seconds."""
        self._pipe.close()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _end(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(_CLOSE_SECONDS)
            if code < 0:
                return f"was killed ({signal.Signals(-code).name}); memory may have run out"
            return f"has ended with exit code {code}; see its output above"
        return "has closed its pipe"


class Workers:
    """All ranks but the first, which is this process."""

    def __init__(self, setup: Setup, ranks: int, seconds: float = SECONDS) -> None:
        """Start the workers. setup: of the whole model, whose device is the first rank's. They load while this process
        does. seconds: as of `Member`."""
        model, self.seconds, self._closed = setup.model, seconds, False
        self._folder = tempfile.mkdtemp(prefix="inflight-ranks-")
        files = model.files.path if isinstance(model.files, GGUFModel) else model.files
        models = [
            replace(
                model,
                device=device_of(model.device, rank),
                member=Member(Shard(model.spec, rank, ranks), self._folder, seconds),
            )
            for rank in range(ranks)
        ]
        self._first = models[0]  # of this process
        self._ranks: Ranks | None = None
        self._workers = [
            Worker(rank, replace(setup, model=replace(one, files=files)))
            for rank, one in enumerate(models[1:], start=1)
        ]
        for worker in self._workers:
            threading.Thread(target=self._watch, args=(worker,), daemon=True, name="rank watcher").start()

    @property
    def count(self) -> int:
        return len(self._workers)

    def join(self) -> KernelModel:
        """Join the group once all workers are about to, and return the model as this process computes it. Raises
        WorkerFault or PeerLost."""
        from inflight.execution.parallel.ranks import Ranks  # PyTorch, while they bring theirs

        for worker in self._workers:
            worker.receive(Joining, START_SECONDS)
        assert self._first.member is not None
        self._ranks = Ranks(self._first.member, self._first.device)
        return replace(self._first, ranks=self._ranks)

    def await_loaded(self) -> int:
        """Bytes that are free on the one that has least, when all have loaded. Raises WorkerFault."""
        return min(worker.receive(Loaded, LOAD_SECONDS).available for worker in self._workers)

    def begin(self, capacity: Capacity) -> None:
        """Allocate the capacity on all ranks. Raises WorkerFault."""
        for worker in self._workers:
            worker.send(Begin(capacity))
        for worker in self._workers:
            worker.receive(Ready, START_SECONDS)

    def alone(self) -> AbstractContextManager[None]:
        """While entered, this process's rank waits for none of the others."""
        return nullcontext() if self._ranks is None else self._ranks.alone()

    def shortage(self) -> Exception | None:
        """Return the shortage of memory on this process's rank since the last call."""
        return None if self._ranks is None else self._ranks.shortage()

    def step(self, plan: BatchPlan) -> None:
        message = Step(plan)
        for worker in self._workers:
            worker.send(message)

    def computed(self, seconds: float) -> list[Computed]:
        """Return each worker's result of the oldest step not asked for yet. Raises WorkerFault, of the worker that is
        the cause."""
        last = time.monotonic() + seconds
        return self._of_each(lambda worker: worker.receive(Computed, max(0.0, last - time.monotonic())))

    def ended(self) -> list[list[Transferred]]:
        """Return each worker's transfers that have ended since the last call. Raises WorkerFault, as above."""
        return self._of_each(Worker.ended)

    def close(self) -> None:
        self._closed = True
        for worker in self._workers:
            worker.end(_CLOSE_SECONDS)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _of_each(self, ask: Callable[[Worker], T]) -> list[T]:
        found, faults = [], []
        for worker in self._workers:
            try:
                found.append(ask(worker))
            except WorkerFault as fault:
                faults.append(fault)
        if faults:
            raise min(faults, key=lambda fault: fault.by_peer)
        return found

    def _watch(self, worker: Worker) -> None:
        """Wait for a worker's end: if it ends by itself, others may wait for it without notice."""
        worker.wait()
        if not self._closed and self._ranks is not None:
            self._ranks.abandon()
