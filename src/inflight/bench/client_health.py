"""Whether the client kept up: how late it read and sent, and whether its own work or another process caused that.

A tick that should run every 10 ms shows how late all other events were noticed. The time in which the process was ready
to run while others had its core is subtracted (the second figure of Linux's schedstat, Documentation/scheduler/
sched-stats); the rest is the client's own.
"""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from inflight.bench.client_types import Health
from inflight.metrics.definitions import quantile

TICK_S = 0.010
OWN_LIMIT_S = 0.005
"""p99 of lateness through the client's own work. A tenth of 50 ms, a strict target for gaps between tokens: above it
the client's part begins to show in its figures of a server."""
MACHINE_LIMIT_S = 0.025
"""p99 of lateness when others had the cores. Some slices of 3 to 4 ms of the kernel's scheduler are a normal share of a
machine where server and client live together, and the server pays them too; beyond, the figures are the machine's."""
BUSY_LIMIT = 0.95
"""Share of a core above which a closed loop, which sends when it has read an answer, runs at the client's own pace."""
_NOTABLE_S = 0.001  # lateness from which its cause is looked up


@dataclass(frozen=True, slots=True)
class WorkerHealth:
    """Lateness of one process; p99 in seconds. lag: of reading, delay: of sending after it was due; own: the greater of
    the two, counting only its own work. worst: greatest lag. busy: share of a core."""

    lag: float = 0.0
    delay: float = 0.0
    own: float = 0.0
    worst: float = 0.0
    busy: float = 0.0


class HealthMonitor:
    """Measures one thread. Times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._lags, self._own_lags = array("d"), array("d")
        self._delays, self._own_delays = array("d"), array("d")

    def begin(self, now: float) -> None:
        self._run_queue = RunQueueDelay()
        self._began = self._last = now
        self._cpu_began = time.process_time()
        self._waited = self._waited_before = self._run_queue.waited()  # at the last tick, at the one before

    def tick(self, now: float) -> None:
        """Note a tick, TICK_S after the last one, or as soon after that as the loop ran it."""
        lag = max(now - self._last - TICK_S, 0.0)
        self._last = now
        self._waited_before, self._waited = self._waited, self._run_queue.waited()
        own = max(lag - (self._waited - self._waited_before), 0.0)
        while True:  # reads that were due in the meantime were late too
            self._lags.append(lag)
            self._own_lags.append(own)
            if lag <= TICK_S:
                return
            lag, own = lag - TICK_S, max(own - TICK_S, 0.0)

    def sent(self, late: float) -> None:
        """Note a request that was sent so late after it was due and had room."""
        own = late
        if late > _NOTABLE_S:
            own = max(late - (self._run_queue.waited() - self._waited_before), 0.0)
        self._delays.append(late)
        self._own_delays.append(own)

    def health(self, now: float) -> WorkerHealth:
        self._run_queue.close()
        busy = (time.process_time() - self._cpu_began) / max(now - self._began, 1e-9)
        own = max(_p99(self._own_lags), _p99(self._own_delays))
        return WorkerHealth(_p99(self._lags), _p99(self._delays), own, max(self._lags, default=0.0), max(busy, 0.0))


class RunQueueDelay:
    """Seconds in which the thread that made this waited for a core, while it could have run."""

    def __init__(self) -> None:
        try:
            self._file: int | None = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        except OSError:  # no such figure here: all lateness counts as the client's own
            self._file = None

    def waited(self) -> float:
        """Return the seconds since the thread began."""
        return 0.0 if self._file is None else int(os.pread(self._file, 96, 0).split()[1]) / 1e9

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)


def assess(workers: Sequence[WorkerHealth], closed: bool) -> Health:
    """Judge the lateness of all processes. closed: whether the workload is a closed loop."""
    worst = max(workers, key=lambda one: one.own)
    lag, delay, busy = (max(getattr(one, name) for one in workers) for name in ("lag", "delay", "busy"))
    count = len(workers)
    more = f"Send from more processes (--processes {2 * count}), each with a core of its own."
    faults = []
    if worst.own > OWN_LIMIT_S:
        faults.append(
            f"The client was overloaded: its own work made it {_ms(worst.own)} late at p99 (limit {_ms(OWN_LIMIT_S)}) "
            f"to send and to read, so that latencies are partly its own. {more}"
        )
    elif closed and busy > BUSY_LIMIT:
        faults.append(
            f"The client used {busy:.0%} of a core (limit {BUSY_LIMIT:.0%}): the pace of a closed loop is then its "
            f"own. {more}"
        )
    elif max(lag, delay) > MACHINE_LIMIT_S:
        faults.append(
            f"The client waited for a core: while others had it, it was {_ms(max(lag, delay))} late at p99 (limit "
            f"{_ms(MACHINE_LIMIT_S)}) to send or to notice what came. Leave it a core, by fewer threads of the server "
            "or by taskset, or run it on another machine."
        )
    latest = max(one.worst for one in workers)
    return Health(count, lag, latest, busy, tuple(faults), own_p99_s=worst.own, delay_p99_s=delay)


def _p99(values: array[float]) -> float:
    return quantile(sorted(values), 0.99) if values else 0.0


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"
