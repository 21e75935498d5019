"""Resolve the number of kernel threads of an engine, and the CPUs that they run on, with reasons."""

from __future__ import annotations

import os

from inflight.config.engine import EngineSettings
from inflight.config.setting import Resolved, SettingsError
from inflight.counted import counted
from inflight.cpus import Cpus, ThreadCpus, in_short, parse_cpu_list, place_threads, usable_cpus

_BLAS_THREADS = "OPENBLAS_NUM_THREADS"


def resolve_threads(settings: EngineSettings, cpus: Cpus | None = None) -> Resolved:
    """Return the number of threads. cpus: what the process may use; read if not given. Raises SettingsError."""
    cpus = cpus or usable_cpus()
    if settings.cpu_list is not None:
        listed = _listed(settings.cpu_list, cpus)
        return Resolved(
            settings.threads or len(listed), "as set" if settings.threads else "one for each CPU of the list"
        )
    usable = len(cpus.usable)
    if settings.threads is not None:
        if settings.threads > 4 * usable:
            raise SettingsError(
                f"--threads is {settings.threads}, but this process may use {usable} cores; give at most {4 * usable}."
            )
        return Resolved(settings.threads, "as set")
    if settings.tensor_parallel_size > 1:
        each = max(1, cpus.num_threads // settings.tensor_parallel_size)
        return Resolved(each, f"the cores this process may use, shared by {settings.tensor_parallel_size} ranks")
    return Resolved(cpus.num_threads, _why(cpus))


def _why(cpus: Cpus) -> str:
    if cpus.paid_for < len(cpus.cores):
        return f"the CPU quota of this process, of {len(cpus.usable)} CPUs"
    if len(cpus.cores) < len(cpus.usable):
        return f"the cores this process may use; they have {len(cpus.usable)} CPUs (hyperthreads)"
    return "the cores this process may use"


def thread_cpus(settings: EngineSettings, cpus: Cpus | None = None) -> ThreadCpus:
    """Return where the threads run. Raises SettingsError where there are fewer CPUs than threads."""
    cpus = cpus or usable_cpus()
    threads = int(resolve_threads(settings, cpus).value)
    if settings.cpu_list is not None:
        listed = _listed(settings.cpu_list, cpus)
        if threads > len(listed):
            raise SettingsError(
                f"--cpu-list names {counted(len(listed), 'CPU')}, one for each thread, but --threads is {threads}; "
                "name more, or leave --threads out."
            )
        return place_threads(cpus, threads, listed, hold_caller=True)
    if not settings.pin_threads:
        return place_threads(cpus, threads)
    if not hasattr(os, "sched_getaffinity"):
        raise SettingsError("--pin-threads needs Linux: this system does not report its cores; leave it out.")
    if threads > len(cpus.usable):
        raise SettingsError(
            f"--pin-threads gives each thread a core, but --threads is {threads} and this process may use "
            f"{len(cpus.usable)} cores; give at most {len(cpus.usable)} threads."
        )
    first = cpus.by_core[:threads]
    return place_threads(cpus, threads, tuple(cpu for node in cpus.nodes for cpu in node if cpu in first))


def _listed(text: str, cpus: Cpus) -> tuple[int, ...]:
    if not hasattr(os, "sched_getaffinity"):
        raise SettingsError("--cpu-list needs Linux: this system pins no threads; leave it out.")
    listed = parse_cpu_list(text)
    if missing := [cpu for cpu in listed if cpu not in cpus.usable]:
        raise SettingsError(
            f"--cpu-list names CPU {missing[0]}, but this process may use {in_short(cpus.usable)}; name some of these."
        )
    return listed


def load_numpy() -> None:
    """Import numpy without threads of its BLAS, of which an engine asks nothing: they spin for a tenth of a small
    model's start. A number of threads that the environment names stays, and libraries loaded later see none."""
    if _BLAS_THREADS in os.environ:
        return
    os.environ[_BLAS_THREADS] = "1"
    try:
        import numpy  # noqa: F401
    finally:
        del os.environ[_BLAS_THREADS]
