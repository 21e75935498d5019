"""Queue grammars to be compiled in a process of their own: in turn by tenant, bounded, cancelled on demand."""

from __future__ import annotations

import contextlib
import itertools
import logging
import pickle
import socket
import subprocess
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING

from msgspec import Struct

from inflight.core.types.sampling import Grammar
from inflight.execution.grammars.compiling import (
    CancelJob,
    CompileJob,
    GrammarNotNow,
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
LOST = "cannot be compiled now: the process that compiles grammars ended twice; see the server's log, and try again"

log = logging.getLogger(__name__)


class _Job(Struct, eq=False):
    number: int
    tenant: str
    grammar: Grammar
    done: Callable[[Verdict], None]
    was_lost: bool = False


class CompileQueue:
    """Grammars that wait for the worker process, which starts with the first job, and again where it was killed. Jobs
    that were lost so are sent once more. Methods may be called in any thread."""

    def __init__(self, vocabulary: Callable[[], Vocabulary]) -> None:
        """Create an empty queue. vocabulary: called whenever a process is started, in a thread."""
        self._vocabulary = vocabulary
        self._lock = threading.RLock()  # of what stands below
        self._numbers = itertools.count()
        self._waiting: OrderedDict[str, deque[_Job]] = OrderedDict()  # by tenant; the next in turn first
        self._at_work: dict[int, _Job] = {}
        self._process: _Process | None = None
        self._is_closed = False

    def start(self) -> None:
        """Start the process before the first job comes, if the system lets it start."""
        with self._lock, contextlib.suppress(GrammarNotNow):
            self._start()

    def put(self, tenant: str, grammar: Grammar, done: Callable[[Verdict], None]) -> int:
        """Queue a grammar and return the job's number; `done` is called in another thread. Raises GrammarNotNow where
        too many wait, and where no process can be started."""
        with self._lock:
            waiting, total = len(self._waiting.get(tenant, ())), sum(map(len, self._waiting.values()))
            if waiting >= MAX_WAITING_OF_TENANT or total >= MAX_WAITING:
                whose = f"{waiting} of this tenant's" if waiting >= MAX_WAITING_OF_TENANT else f"{total}"
                raise GrammarNotNow(f"cannot be compiled now: {whose} grammars wait already; try again in a moment")
            self._start()
            job = _Job(next(self._numbers), tenant, grammar, done)
            self._waiting.setdefault(tenant, deque()).append(job)
            self._send_next()
        return job.number

    def cancel(self, number: int) -> None:
        """Drop a job that no request waits for any more; `done` is not called unless it was about to be."""
        with self._lock:
            if self._at_work.pop(number, None) is not None:
                assert self._process is not None
                self._process.send(CancelJob(number))
                return self._send_next()
            for tenant, waiting in self._waiting.items():
                for job in waiting:
                    if job.number == number:
                        waiting.remove(job)
                        if not waiting:
                            del self._waiting[tenant]
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
        """Send what may be compiled, one of each tenant in turn."""
        while self._process is not None and len(self._at_work) < MAX_AT_ONCE:
            tenant = next(filter(self._may_start, self._waiting), None)
            if tenant is None:
                return
            job = self._waiting[tenant].popleft()
            self._waiting.move_to_end(tenant)
            if not self._waiting[tenant]:
                del self._waiting[tenant]
            self._at_work[job.number] = job
            self._process.send(CompileJob(job.number, job.grammar.kind, job.grammar.source))

    def _may_start(self, tenant: str) -> bool:
        return sum(job.tenant == tenant for job in self._at_work.values()) < MAX_OF_TENANT

    def _start(self) -> None:
        """Start the process unless it runs. Raises GrammarNotNow."""
        if self._is_closed:
            raise GrammarNotNow("cannot be compiled: the engine was closed")
        if self._process is None:
            try:
                self._process = _Process(self._vocabulary, self._decided, self._process_ended)
            except (OSError, RuntimeError) as error:
                raise GrammarNotNow(
                    f"cannot be compiled now, since no process can be started for it ({error}); try again in a moment"
                ) from None

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
            lost, gone = list(self._at_work.values()), list[_Job]()
            log.warning("the process that compiles grammars ended (%s) with %d at work", process.exit_code, len(lost))
            self._at_work.clear()
            for job in reversed(lost):
                if job.was_lost:
                    gone.append(job)
                else:
                    job.was_lost = True
                    self._waiting.setdefault(job.tenant, deque()).appendleft(job)
            why = LOST
            if self._waiting:
                try:
                    self._start()
                except GrammarNotNow as error:
                    why = str(error)
                    gone += [job for waiting in self._waiting.values() for job in waiting]
                    self._waiting.clear()
            self._send_next()
        for job in gone:
            job.done(Verdict(job.number, error=why, passes=True))


class _Process:
    """The worker process, and the thread that reads from it."""

    def __init__(
        self,
        vocabulary: Callable[[], Vocabulary],
        decided: Callable[[Verdict], None],
        ended: Callable[[_Process], None],
    ) -> None:
        """Start the process. Raises OSError or RuntimeError where the system gives no process, descriptor or thread."""
        self._decided, self._ended = decided, ended
        self._vocabulary = vocabulary
        self._socket, theirs = socket.socketpair()
        command = [sys.executable, "-m", "inflight.execution.grammars.compile_worker", str(theirs.fileno())]
        with theirs:
            try:
                self._process = subprocess.Popen(
                    command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
                )
            except OSError:
                self._socket.close()
                raise
        self._orders = SimpleQueue[bytes | None]()  # None: the thread that writes ends
        for work in (self._read, self._write):
            threading.Thread(target=work, name="grammar-compiles", daemon=True).start()

    def send(self, order: CompileJob | CancelJob) -> None:
        """Queue an order; a process that has ended is noticed by the thread that reads."""
        self._orders.put(encode(order))

    @property
    def exit_code(self) -> int | None:
        return self._process.returncode

    def close(self) -> None:
        """End the process, which kills what it has at work."""
        self._shut_down()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._orders.put(None)

    def _write(self) -> None:
        """Write orders in a thread: the process loads for a while, and a socket buffers little. A fault ends the
        process, which is started again for its jobs."""
        try:
            send(self._socket, pickle.dumps(self._vocabulary()))
            while (order := self._orders.get()) is not None:
                send(self._socket, order)
        except OSError:
            pass
        finally:
            self._shut_down()

    def _read(self) -> None:
        try:
            while True:
                self._decided(decode_verdict(receive(self._socket)))
        except (EOFError, OSError):
            pass
        finally:
            self._shut_down()
            self._process.wait()
            self._orders.put(None)
            self._ended(self)
            self._socket.close()

    def _shut_down(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
