"""Grammars that wait to be compiled in processes of their own: in turn by tenant, bounded, and cancelled on demand.

The process (`compile_worker`) is started with the first job, and anew when it was killed; jobs that were lost so are
sent once more.
"""

from __future__ import annotations

import contextlib
import itertools
import pickle
import socket
import subprocess
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from inflight.core.types.grammar import Grammar
from inflight.execution.grammars.compile_wire import (
    CancelJob,
    CompileJob,
    Verdict,
    decode_verdict,
    encode,
)
from inflight.limited_process import receive, send

if TYPE_CHECKING:
    from inflight.execution.grammars.vocabulary import Vocabulary

MAX_AT_ONCE = 16  # children
MAX_OF_TENANT = 4  # of these, so that one tenant's slow grammars leave room for another's
MAX_WAITING = 1024
MAX_WAITING_OF_TENANT = 256
_END_SECONDS = 1.0  # which it may take to end by itself
LOST = "cannot be compiled: the process that compiles grammars ended twice; see the server's log"


class TooManyGrammars(RuntimeError):
    """The queue is full; the sentence holds the number."""


@dataclass(slots=True, eq=False)
class _Job:
    number: int
    tenant: str
    grammar: Grammar
    done: Callable[[Verdict], None]
    was_lost: bool = False


class CompileQueue:
    """Its methods may be called in any thread."""

    def __init__(self, vocabulary: Callable[[], Vocabulary]) -> None:
        """vocabulary: asked for when the process is started."""
        self._vocabulary = vocabulary
        self._lock = threading.RLock()  # of what stands below
        self._numbers = itertools.count()
        self._waiting: OrderedDict[str, deque[_Job]] = OrderedDict()  # by tenant; the next in turn first
        self._at_work: dict[int, _Job] = {}
        self._process: _Process | None = None
        self._is_closed = False

    def start(self) -> None:
        """Start the process before the first job comes."""
        with self._lock:
            self._running_process()

    def put(self, tenant: str, grammar: Grammar, done: Callable[[Verdict], None]) -> int:
        """Queue a grammar and return the job's number; `done` is called in another thread. Raises TooManyGrammars."""
        with self._lock:
            waiting = self._waiting.setdefault(tenant, deque())
            total = sum(map(len, self._waiting.values()))
            if len(waiting) >= MAX_WAITING_OF_TENANT or total >= MAX_WAITING:
                whose = f"{len(waiting)} of this tenant's" if len(waiting) >= MAX_WAITING_OF_TENANT else f"{total}"
                raise TooManyGrammars(f"{whose} grammars wait to be compiled already; try again in a moment.")
            job = _Job(next(self._numbers), tenant, grammar, done)
            waiting.append(job)
            self._send_next()
        return job.number

    def cancel(self, number: int) -> None:
        """Drop a job that no request waits for any more; `done` is not called unless it was about to be."""
        with self._lock:
            if self._at_work.pop(number, None) is not None:
                assert self._process is not None
                self._process.send(CancelJob(number))
                return self._send_next()
            for waiting in self._waiting.values():
                for job in waiting:
                    if job.number == number:
                        waiting.remove(job)
                        return None

    def close(self) -> None:
        """End the process, and with it all that it compiles; jobs that are left are not answered."""
        with self._lock:
            self._is_closed = True
            self._waiting.clear()
            self._at_work.clear()
            process, self._process = self._process, None
        if process is not None:
            process.close()

    def _send_next(self) -> None:
        """Start what may be started, one of each tenant in turn."""
        while len(self._at_work) < MAX_AT_ONCE and not self._is_closed:
            tenant = next(filter(self._may_start, self._waiting), None)
            if tenant is None:
                return
            job = self._waiting[tenant].popleft()
            self._waiting.move_to_end(tenant)
            if not self._waiting[tenant]:
                del self._waiting[tenant]
            self._at_work[job.number] = job
            self._running_process().send(CompileJob(job.number, job.grammar.kind, job.grammar.source))

    def _may_start(self, tenant: str) -> bool:
        at_work = sum(job.tenant == tenant for job in self._at_work.values())
        return bool(self._waiting[tenant]) and at_work < MAX_OF_TENANT

    def _running_process(self) -> _Process:
        if self._process is None and not self._is_closed:
            self._process = _Process(self._vocabulary(), self._decided, self._process_ended)
        assert self._process is not None
        return self._process

    def _decided(self, verdict: Verdict) -> None:
        with self._lock:
            job = self._at_work.pop(verdict.number, None)
            self._send_next()
        if job is not None:
            job.done(verdict)

    def _process_ended(self, process: _Process) -> None:
        """Send again what was lost with a process that was killed; what is lost a second time has no verdict."""
        with self._lock:
            if self._process is not process:
                return
            self._process = None
            lost = list(self._at_work.values())
            self._at_work.clear()
            for job in lost:
                if not job.was_lost:
                    job.was_lost = True
                    self._waiting.setdefault(job.tenant, deque()).appendleft(job)
            gone = [job for job in lost if job not in self._waiting.get(job.tenant, ())]
            self._send_next()
        for job in gone:
            job.done(Verdict(job.number, error=LOST))


class _Process:
    """The worker process, and the thread that reads from it."""

    def __init__(
        self, vocabulary: Vocabulary, decided: Callable[[Verdict], None], ended: Callable[[_Process], None]
    ) -> None:
        self._decided, self._ended = decided, ended
        self._socket, theirs = socket.socketpair()
        command = [sys.executable, "-m", "inflight.execution.grammars.compile_worker", str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
            )
        self._orders: deque[bytes] = deque([pickle.dumps(vocabulary)])
        self._has_orders = threading.Semaphore(1)
        for work in (self._read, self._write):
            threading.Thread(target=work, name="grammar-compiles", daemon=True).start()

    def send(self, order: CompileJob | CancelJob) -> None:
        """Queue an order; a process that has ended is noticed by the thread that reads."""
        self._orders.append(encode(order))
        self._has_orders.release()

    def close(self) -> None:
        """End the process, which kills what it has at work."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._has_orders.release()

    def _write(self) -> None:
        """In a thread of its own: the process loads for a while, and a socket holds little."""
        while True:
            self._has_orders.acquire()
            if not self._orders:
                return self._socket.close()
            try:
                send(self._socket, self._orders.popleft())
            except OSError:
                return

    def _read(self) -> None:
        try:
            while True:
                self._decided(decode_verdict(receive(self._socket)))
        except (EOFError, OSError):
            pass
        self._process.wait()
        self._ended(self)
