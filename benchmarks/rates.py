"""The machine's rates, and the share of them that something reaches.

Rates are the machine's, not a program's own best: that at which all threads read memory that no cache holds, and those
of loops of the dot-product and multiply-add instructions over registers. They are probed between the repetitions,
because a shared machine moves. A share is the ceiling, max(bytes / bandwidth, operations / peak), over the time: of the
best probes and the best time, and in brackets the median over the repetitions, each against the probes right before it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.kernel_bodies import Body
from inflight.execution.backends.native import NativeBackend
from inflight.execution.roofline import Machine

CACHED = 2**26  # bytes that may come from a cache


class Probe:
    """The machine's rates now, and the best seen."""

    def __init__(self, backend: NativeBackend, own_time: bool = False) -> None:
        """own_time: leave out what others took of the cores meanwhile, for what is timed so, too (of one thread)."""
        self._backend, self._own_time = backend, own_time
        self._seen: list[Machine] = []

    def now(self) -> Machine:
        peak = self._backend.peak_flops
        peaks = {
            "bfloat16": self._rate(lambda: peak("bf16", 0.01)),
            "int8": self._rate(lambda: peak("int8", 0.01)),
            "float32": self._rate(lambda: peak("f32", 0.01)),
        }
        self._seen.append(Machine(self._rate(lambda: self._backend.read_bandwidth_bytes_per_s(0.25, 1)), peaks))
        return self._seen[-1]

    def _rate(self, probed: Callable[[], float]) -> float:
        """Per second, or per second of our own."""
        began, own_began = time.perf_counter(), time.process_time()
        rate = probed()
        seconds, own = time.perf_counter() - began, time.process_time() - own_began
        return rate * max(1.0, seconds / own) if self._own_time else rate

    @property
    def best(self) -> Machine:
        rates = {name: max(one.flops_per_s[name] for one in self._seen) for name in self._seen[0].flops_per_s}
        return Machine(max(one.read_bytes_per_s for one in self._seen), rates)

    def summary(self) -> str:
        best, middle = self.best, statistics.median(one.read_bytes_per_s for one in self._seen)
        return (
            f"Best of {len(self._seen)} probes: {best.read_bytes_per_s / 1e9:.1f} GB/s read "
            f"(median {middle / 1e9:.1f}), {best.flops_per_s['bfloat16'] / 1e9:.0f} GFLOP/s in bf16, "
            f"{best.flops_per_s['int8'] / 1e9:.0f} GOP/s in int8, "
            f"{best.flops_per_s['float32'] / 1e9:.0f} GFLOP/s in float32."
        )


@dataclass
class Timing:
    """Repetitions of one thing: its seconds, and the ceiling on the machine that was probed right before."""

    ceiling: Callable[[Machine], float]
    seconds: list[float] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)

    def add(self, seconds: float, machine: Machine) -> None:
        self.seconds.append(seconds)
        self.shares.append(self.ceiling(machine) / seconds)

    def cells(self, machine: Machine) -> list[str]:
        best = min(self.seconds)
        share = self.ceiling(machine) / best
        return [f"{best * 1e3:.2f}", f"{share:.2f} ({statistics.median(self.shares):.2f})"]

    def over(self, other: Timing) -> str:
        """Its time over another's of the same repetition: the median, and what the middle half lies between."""
        ratios = [one / two for one, two in zip(self.seconds, other.seconds, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
        return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def body_ceiling(body: Body) -> Callable[[Machine], float]:
    return lambda m: max(body.bytes / m.read_bytes_per_s, body.operations / m.flops_per_s[body.rate])


def timed(body: Callable[[], object], count: int = 1, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of one call, over `count` of them."""
    start = clock()
    for _ in range(count):
        body()
    return (clock() - start) / count


def in_turns(
    rows: Sequence[Sequence[Body]], probe: Probe, repeats: int, clock: Callable[[], float] = time.perf_counter
) -> list[list[Timing]]:
    """The bodies of a row one after the other, row by row, as often as `repeats` says; the machine is probed before
    each row. What fits a cache comes from it, as between the layers of a step."""
    found = [[Timing(body_ceiling(body)) for body in row] for row in rows]
    for _ in range(repeats):
        for row, timings in zip(rows, found, strict=True):
            machine = probe.now()
            for body, timing in zip(row, timings, strict=True):
                if body.bytes * body.calls < CACHED:
                    body.run()
                timing.add(timed(body.run, body.calls, clock), machine)
    return found
