"""The CPUs that this process may use: which of them share a core, which stand at one memory, and how many a quota pays.

A CPU is what the system numbers: with SMT (hyperthreads) two of them are one core, and share its arithmetic. Reads
/sys, and /proc by the scheduler's call; decides nothing. Uses the standard library alone.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

SYSTEM = Path("/sys")
MAX_CPUS = 1024  # numbers that the system's call for a thread's CPUs takes


class BadCpuList(ValueError):
    """A list of CPUs that is none; the message says why."""


@dataclass(frozen=True, slots=True)
class Cpus:
    """CPUs and memory nodes that the process may use.

    Attributes:
        usable: Numbers of the CPUs, ascending.
        cores: The same by core: those of one core stand together.
        nodes: The same by NUMA node; one where the system does not say.
        quota: CPUs that the control group pays for, None without a limit.
    """

    usable: tuple[int, ...]
    cores: tuple[tuple[int, ...], ...]
    nodes: tuple[tuple[int, ...], ...]
    quota: float | None

    @property
    def paid_for(self) -> int:
        """CPUs, at most as many as the quota pays for."""
        return len(self.usable) if self.quota is None else max(1, min(len(self.usable), math.floor(self.quota)))

    @property
    def num_threads(self) -> int:
        """Threads that compute at full speed: one for each core, at most as many as the quota pays for."""
        return min(len(self.cores), self.paid_for)

    @property
    def by_core(self) -> tuple[int, ...]:
        """All CPUs, each core's first before any core's second."""
        depth = max(map(len, self.cores))
        return tuple(core[i] for i in range(depth) for core in self.cores if i < len(core))

    def node_of(self, cpu: int) -> tuple[int, ...]:
        """Return the usable CPUs of a CPU's node."""
        return next(node for node in self.nodes if cpu in node)


@dataclass(frozen=True, slots=True)
class ThreadCpus:
    """Where kernel threads run.

    Attributes:
        cpus: Of each thread those that it may run on, the caller's first. Empty: wherever the system puts them.
        hold_caller: The caller is held to its CPUs, too. Processes and threads that it starts inherit them.
        first_touch: Each thread first writes the pages of packed weights that it will read, so that they lie at its
            node.
    """

    cpus: tuple[tuple[int, ...], ...] = ()
    hold_caller: bool = False
    first_touch: bool = False


ANYWHERE = ThreadCpus()


def usable_cpus(system: Path = SYSTEM) -> Cpus:
    """Read what this process may use. system: where /sys is."""
    numbers = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    usable = tuple(numbers)
    return Cpus(usable, _cores(usable, system), _nodes(usable, system), _quota(system))


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """Return the numbers of a list such as 0-7,16-23, in its order. Raises BadCpuList."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,9})(?:-([0-9]{1,9}))?\s*", part)
        if match is None:
            raise BadCpuList(f"{part.strip()!r} is neither a number nor a range such as 0-7")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise BadCpuList(f"the range {part.strip()} ends before it begins")
        if last >= MAX_CPUS:
            raise BadCpuList(f"CPU {last} is beyond {MAX_CPUS - 1}, the highest number that can be given")
        if twice := [cpu for cpu in range(first, last + 1) if cpu in found]:
            raise BadCpuList(f"CPU {twice[0]} is named twice")
        found += range(first, last + 1)
    return tuple(found)


def in_short(cpus: Iterable[int]) -> str:
    """Write numbers as the system writes them: 0-7,16-23."""
    ranges: list[list[int]] = []
    for cpu in sorted(cpus):
        if ranges and ranges[-1][1] == cpu - 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in ranges)


def place_threads(cpus: Cpus, threads: int, pinned: tuple[int, ...] = (), hold_caller: bool = False) -> ThreadCpus:
    """Return where so many threads run.

    Args:
        cpus: What the process may use.
        threads: How many there are, the caller included.
        pinned: A CPU for each thread; empty: the system moves them, at most within a NUMA node.
        hold_caller: Hold the caller to the pinned CPUs, on several nodes to those of the first one's node.
    """
    several = len(cpus.nodes) > 1
    if not pinned and not several:
        return ANYWHERE
    if not pinned:
        nodes = [cpus.node_of(cpus.by_core[i % len(cpus.usable)]) for i in range(threads)]
        return ThreadCpus(tuple(sorted(nodes)), first_touch=threads > 1)
    caller = tuple(cpu for cpu in pinned if not several or cpu in cpus.node_of(pinned[0]))
    each = (caller, *((cpu,) for cpu in pinned[1:threads]))
    return ThreadCpus(each, hold_caller, first_touch=several and threads > 1)


def _cores(usable: tuple[int, ...], system: Path) -> tuple[tuple[int, ...], ...]:
    cores: dict[object, list[int]] = {}
    for cpu in usable:
        siblings = _line(system / f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        cores.setdefault(siblings if siblings else cpu, []).append(cpu)
    return tuple(map(tuple, cores.values()))


def _nodes(usable: tuple[int, ...], system: Path) -> tuple[tuple[int, ...], ...]:
    """Return the CPUs of each node, by the first CPU of each. CPUs without a known node are of the first."""
    nodes: list[tuple[int, ...]] = []
    for folder in sorted(system.glob("devices/system/node/node[0-9]*")):
        try:
            listed = {*parse_cpu_list(_line(folder / "cpulist"))}
        except BadCpuList:  # one of memory alone
            continue
        nodes.append(tuple(cpu for cpu in usable if cpu in listed))
    nodes = sorted(node for node in nodes if node)
    known = {cpu for node in nodes for cpu in node}
    left = tuple(cpu for cpu in usable if cpu not in known)
    return (tuple(sorted((*left, *nodes[0]))), *nodes[1:]) if nodes else (left,)


def _quota(system: Path) -> float | None:
    """CPUs of the control group (cgroup v2), if it limits them."""
    try:
        quota, period = _line(system / "fs/cgroup/cpu.max").split()
        return None if quota == "max" else int(quota) / int(period)
    except (ValueError, ZeroDivisionError):
        return None


def _line(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
