"""Independent jobs on several processor cores. Their results do not depend on how many there are."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Any

from inflight.cpus import usable_cpus

_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)

Jobs = Mapping[str, Callable[..., Any]]


class WorkerKilled(ValueError):
    """A process that ran a job was killed. A ValueError, as what the command line shows without a traceback: an OSError
    is shown by its number and path, which this has not."""


def cores() -> int:
    """Return the processor cores that this process may use for jobs, at most as many as a container's quota pays for; 1
    where processes are not forked."""
    # A fork of a process with threads may copy a lock that a thread holds; on macOS system libraries forbid it.
    if sys.platform != "linux" or threading.active_count() > 1:
        return 1
    return usable_cpus().paid_for


def run_all(
    jobs: Jobs, workers: int, ended: Callable[[str], None], needs: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Run jobs and return their results by name.

    Args:
        jobs: By name; the longest first keep all cores busy to the end. Results must be picklable.
        workers: Processes at once, each of one job; with 1, and where the system makes none, the jobs run here.
        ended: Called here with the name of each that ended.
        needs: Job → another one, which ends before it begins, and with whose result it is called.

    Raises:
        Exception: that of a job.
        WorkerKilled: a process was killed.
    """
    results, waiting, needs = dict[str, Any](), dict(jobs), needs or {}
    running: dict[Connection, tuple[str, ForkProcess]] = {}
    workers = max(1, workers) if len(jobs) > 1 else 1
    assert jobs.keys() >= set(needs.values()), "else some would wait for ever"
    try:
        while waiting or running:
            while len(running) < workers and (name := _next(waiting, needs, results)) is not None:
                job = waiting.pop(name)
                if name in needs:
                    job = partial(job, results[needs[name]])
                if workers == 1 or (started := _start(job)) is None:
                    results[name] = job()
                    ended(name)
                    break
                receiver, process = started
                running[receiver] = name, process
            for ready in wait(list(running)) if running else ():
                assert isinstance(ready, Connection)
                name, process = running.pop(ready)
                results[name] = _result(ready, process)
                ended(name)
    finally:
        for receiver, (_, process) in running.items():
            process.kill()
            process.join()
            receiver.close()
    return {name: results[name] for name in jobs}


def _next(waiting: Jobs, needs: Mapping[str, str], results: Mapping[str, Any]) -> str | None:
    """Return the first job of which the needed result is there; None where each waits for one that runs."""
    return next((name for name in waiting if name not in needs or needs[name] in results), None)


def run_ahead(jobs: Sequence[Callable[[], Any]], workers: int) -> None:
    """Run jobs for what they store, which a cache has then; where they cannot run at once, do nothing."""
    if workers > 1 and len(jobs) > 1:
        run_all({str(number): job for number, job in enumerate(jobs)}, workers, lambda name: None)


@contextmanager
def running_beside(job: Callable[[], Any], workers: int) -> Iterator[None]:
    """Run a job for what it stores, beside what this process does in the context, and no longer than that; with one
    worker, and where the system makes no process, do nothing."""
    started = _start(job) if workers > 1 else None
    if started is None:
        yield
        return
    receiver, process = started
    try:
        yield
    finally:
        process.kill()
        process.join()
        receiver.close()


def _start(job: Callable[[], Any]) -> tuple[Connection, ForkProcess] | None:
    """Start a process; None where the system makes none, as where memory or a limit on processes is reached."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(job, sender, os.getpid()))
    try:
        process.start()
    except OSError:
        receiver.close()
        return None
    finally:
        sender.close()  # so that the process's end is the end of the pipe
    return receiver, process


def _run(job: Callable[[], Any], sender: Connection, parent: int) -> None:
    """Run a job in a process of its own, which leaves Ctrl-C to the one that began it, and errors to it, which raises
    them. It ends with that one, however that ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _end_with(parent)
    gc.freeze()  # the collector need not look at what was there before the job
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (for as long as the process lives)
    outcome: tuple[Exception | None, Any]
    try:
        outcome = None, job()
    except Exception as error:
        outcome = error, None
    try:
        sender.send(outcome)
    except Exception as error:  # a result, or an error, that cannot be pickled; nothing of it was sent
        sender.send((TypeError(f"A result of a job cannot be sent between processes: {error}"), None))


def _end_with(parent: int) -> None:
    """Have the system kill this process when the one that forked it ends."""
    import ctypes  # here: only processes of jobs take it

    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # it ended before


def _result(receiver: Connection, process: ForkProcess) -> Any:
    try:
        error, result = receiver.recv()
    except (EOFError, OSError):  # the latter within a result
        process.join()
        cause = ", as where memory runs out" if process.exitcode == -signal.SIGKILL else ""
        raise WorkerKilled(
            f"A process of this command ended with {process.exitcode} before its result came{cause}; try again with "
            "more memory free, or on one core (`taskset -c 0`), which takes less."
        ) from None
    finally:
        receiver.close()
    process.join()
    if error is not None:
        raise error
    return result
