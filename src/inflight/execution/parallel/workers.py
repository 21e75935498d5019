"""The worker processes, from the engine's side: started, set up, asked and ended."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, TypeVar

from inflight.core.types.plan import BatchPlan, Capacity, Transferred
from inflight.execution.computing import KernelModel
from inflight.execution.parallel import messages
from inflight.execution.parallel.messages import WorkerFault
from inflight.execution.parallel.shards import SECONDS, Member, Shard, device_of
from inflight.models.gguf.gguf_model import GGUFModel

if TYPE_CHECKING:
    from inflight.execution.parallel.ranks import Ranks

START_SECONDS = 120.0  # to import PyTorch
LOAD_SECONDS = 3600.0  # to load a shard, from a slow disk
_CLOSE_SECONDS = 5.0

T = TypeVar("T")
Message = TypeVar("Message", bound=messages.FromWorker)


class Mailbox:
    """A worker's messages: answers in their order, and ended transfers between them."""

    def __init__(self, rank: int, pipe: Connection) -> None:
        self._rank, self._pipe = rank, pipe
        self._answers = deque[messages.FromWorker]()  # that came while transfers alone were asked for
        self._ended: list[Transferred] = []

    def receive(self, kind: type[Message], seconds: float) -> Message:
        """Return the next answer. Raises WorkerFault for one of another kind, or for none in so many seconds."""
        last = time.monotonic() + seconds
        while not self._answers:
            if not self._hears(max(0.0, last - time.monotonic())):
                raise WorkerFault(f"Rank {self._rank} has not answered for {seconds:g} s.")
        message = self._answers.popleft()
        if not isinstance(message, kind):
            raise WorkerFault(f"Rank {self._rank} says {type(message).__name__} where {kind.__name__} was due.")
        return message

    def ended(self) -> list[Transferred]:
        """Return the transfers reported since the last call. Raises WorkerFault where the worker is gone."""
        while self._hears(0.0):
            pass
        ended, self._ended = self._ended, []
        return ended

    def fate(self) -> str:
        """Describe what became of a worker whose pipe is closed."""
        return "has closed its pipe"

    def _hears(self, seconds: float) -> bool:
        """Return whether a message comes within so many seconds. Raises WorkerFault."""
        try:
            if not self._pipe.poll(seconds):
                return False
            message = messages.decode_from_worker(self._pipe.recv_bytes())
        except (EOFError, OSError):
            raise WorkerFault(f"Rank {self._rank} {self.fate()}.") from None
        if isinstance(message, messages.Failed):
            raise WorkerFault(f"Rank {self._rank} failed: {message.sentence}", message.by_peer)
        if isinstance(message, messages.Copied):
            self._ended += message.ended
        else:
            self._answers.append(message)
        return True


class Worker(Mailbox):
    """One process, which ends when its pipe does."""

    def __init__(self, rank: int, setup: messages.Setup) -> None:
        ours, theirs = Pipe()
        super().__init__(rank, ours)
        command = [sys.executable, "-m", "inflight.execution.parallel.worker", str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        self.wait = self._process.wait
        with contextlib.suppress(OSError):  # it has ended: the next request to it raises
            self._pipe.send(setup)

    def send(self, message: messages.Begin | messages.Step) -> None:
        with contextlib.suppress(OSError):
            self._pipe.send_bytes(messages.encode(message))

    def end(self) -> None:
        """Close the pipe, at which the process ends; kill it if it has not in time."""
        self._pipe.close()
        try:
            self._process.wait(_CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def fate(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(_CLOSE_SECONDS)
            if code < 0:
                return f"was killed ({signal.Signals(-code).name}); memory may have run out"
            return f"has ended with exit code {code}; see its output above"
        return super().fate()


class Workers:
    """All ranks but the first, which is this process."""

    def __init__(self, setup: messages.Setup, ranks: int, seconds: float = SECONDS) -> None:
        """Start the workers, which load while this process does.

        Args:
            setup: Of the whole model, whose device is the first rank's.
            seconds: As of `Member`.
        """
        model, self.seconds, self._closed = setup.model, seconds, False
        self._folder = tempfile.mkdtemp(prefix="inflight-ranks-")
        files = model.files.path if isinstance(model.files, GGUFModel) else model.files
        members = [Member(Shard(model.spec, rank, ranks), self._folder, seconds) for rank in range(ranks)]
        first, *others = (replace(model, device=device_of(model.device, one.shard.rank), member=one) for one in members)
        self._first = first  # of this process
        self._ranks: Ranks | None = None
        setups = [replace(setup, model=replace(one, files=files)) for one in others]
        self._workers = [Worker(rank, one) for rank, one in enumerate(setups, 1)]
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
            worker.receive(messages.Joining, START_SECONDS)
        assert self._first.member is not None
        self._ranks = Ranks(self._first.member, self._first.device)
        return replace(self._first, ranks=self._ranks)

    def await_loaded(self) -> int:
        """Return the free bytes of the rank with the least, once all have loaded. Raises WorkerFault."""
        return min(worker.receive(messages.Loaded, LOAD_SECONDS).available for worker in self._workers)

    def begin(self, capacity: Capacity) -> None:
        """Allocate the capacity on all ranks. Raises WorkerFault."""
        for worker in self._workers:
            worker.send(messages.Begin(capacity))
        for worker in self._workers:
            worker.receive(messages.Ready, START_SECONDS)

    def alone(self) -> AbstractContextManager[None]:
        """While entered, this process's rank waits for none of the others."""
        return nullcontext() if self._ranks is None else self._ranks.alone()

    def shortage(self) -> Exception | None:
        """Return the shortage of memory on this process's rank since the last call."""
        return None if self._ranks is None else self._ranks.shortage()

    def step(self, plan: BatchPlan) -> None:
        for worker in self._workers:
            worker.send(messages.Step(plan))

    def computed(self, seconds: float) -> list[messages.Computed]:
        """Return each worker's result of the next step. Raises the WorkerFault of the worker that is the cause."""
        last = time.monotonic() + seconds
        return self._of_each(lambda worker: worker.receive(messages.Computed, max(0.0, last - time.monotonic())))

    def ended(self) -> list[list[Transferred]]:
        """Return each worker's transfers that have ended since the last call. Raises WorkerFault likewise."""
        return self._of_each(Worker.ended)

    def close(self) -> None:
        self._closed = True
        for worker in self._workers:
            worker.end()
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
