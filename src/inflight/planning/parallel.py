"""Independent jobs on several processor cores. Their results do not depend on how many there are."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

Jobs = Mapping[str, Callable[[], Any]]
_jobs: Jobs = {}  # of the processes that are forked next: closures cannot be sent to them


def cores() -> int:
    """Return the processor cores that this process may use for jobs; 1 where processes are not forked."""
    # A fork of a process with threads may copy a lock that a thread holds; on macOS system libraries forbid it.
    if sys.platform != "linux" or threading.active_count() > 1:
        return 1
    return len(os.sched_getaffinity(0))


def run_all(jobs: Jobs, workers: int, ended: Callable[[str], None]) -> dict[str, Any]:
    """Run jobs and return their results by name.

    Args:
        jobs: By name; the longest first keep all cores busy to the end. Results must be picklable.
        workers: Processes at once; with 1 the jobs run here.
        ended: Called here with the name of each that ended.

    Raises:
        Exception: that of a job.
    """
    global _jobs
    if workers <= 1 or len(jobs) <= 1:
        found = {}
        for name, job in jobs.items():
            found[name] = job()
            ended(name)
        return found
    _jobs, results = jobs, dict[str, Any]()
    try:
        with multiprocessing.get_context("fork").Pool(min(workers, len(jobs)), _begin_worker) as pool:
            for name, result in pool.imap_unordered(_run, jobs):
                results[name] = result
                ended(name)
    finally:
        _jobs = {}
    return {name: results[name] for name in jobs}


def _begin_worker() -> None:
    """Leave Ctrl-C to the process that began the jobs, which ends them, and errors to it, which raises them: where it
    is killed, its workers have nothing to say."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (for as long as the process lives)


def _run(name: str) -> tuple[str, Any]:
    return name, _jobs[name]()
