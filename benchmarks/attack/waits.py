"""Compute what an attack added to waits: percentiles beside those of quiet times, and the limits that the server is
held to.

A gap that is as long as ten steps stands for ten tokens that came late, and a wait for /health for all questions that
were due meanwhile: counted once, a long stop would hide among thousands of short waits (coordinated omission).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from benchmarks.attack.health import EVERY
from benchmarks.attack.sightings import Seen
from inflight.metrics.definitions import percentiles

P99 = 0.050  # seconds that the p99 of waits may rise
WORST = 0.250  # seconds that the longest wait may rise
# That memory may rise above rest: on two cores 252 MB of tokenizer workers (16 + 2 * 112 MiB) and 38 MB of bodies
# (36 MiB), with what is on its way between processes.
BUDGET_MB = 320.0
BACK = 10.0  # seconds until it has gone again
NEAR_MB = 16.0  # what counts as gone
TREE_MB = 1000.0  # that all of the server's processes may have


@dataclass(frozen=True, slots=True)
class Waits:
    """Seconds, and how many waits they rest on."""

    count: int
    p50: float
    p99: float
    worst: float

    def __sub__(self, usual: Waits) -> Waits:
        """Return what is beyond the usual, never less than nothing, which the machine's own unrest would often give."""
        pairs = ((self.p50, usual.p50), (self.p99, usual.p99), (self.worst, usual.worst))
        return Waits(self.count, *(max(0.0, one - other) for one, other in pairs))


def waits(values: Sequence[float]) -> Waits:
    found = percentiles(values)
    return Waits(len(values), found.p50 or 0.0, found.p99 or 0.0, max(values, default=0.0))


def expected(gaps: Iterable[float], step: float) -> list[float]:
    """Waits of all that was to come: a gap of several usual steps stands for as many waits, each a step shorter."""
    found = []
    for gap in gaps:
        found.append(gap)
        while step > 0 and (gap := gap - step) > 0:
            found.append(gap)
    return found


@dataclass(frozen=True, slots=True)
class Outcome:
    """Record what came of one attack, or a mixture. quiet: of the times before and after. Seconds, megabytes.

    back: None: it did not come back while it was watched. died: why the server's process is gone, or "".
    """

    quiet: Seen
    attacked: Seen
    peak_mb: float
    back: float | None
    tree_mb: float
    died: str = ""
    answers: Counter[str] = field(default_factory=Counter)
    visits: int = 0
    sent_mb: float = 0.0

    @property
    def health(self) -> tuple[Waits, Waits]:
        """Quiet, attacked."""
        return waits(expected(self.quiet.health, EVERY)), waits(expected(self.attacked.health, EVERY))

    @property
    def gaps(self) -> tuple[Waits, Waits]:
        step = waits(self.quiet.gaps).p50
        return waits(expected(self.quiet.gaps, step)), waits(expected(self.attacked.gaps, step))

    @property
    def own(self) -> dict[str, tuple[Waits, Waits]]:
        """/health and gaps, without what the server's event loop waited for a core: attackers and others that share the
        machine have it meanwhile, which attackers elsewhere would not."""
        step = waits(self.quiet.gaps).p50
        pairs = {
            "/health": (self.quiet.own_health, self.attacked.own_health, EVERY),
            "streams": (self.quiet.own_gaps, self.attacked.own_gaps, step),
        }
        return {
            name: (waits(expected(quiet, usual)), waits(expected(attacked, usual)))
            for name, (quiet, attacked, usual) in pairs.items()
        }

    @property
    def for_want_of_cores(self) -> list[str]:
        """Limits of waits that were broken, but not by the server's own doing."""
        own = _late(self.own)
        return [name for name in _late({"/health": self.health, "streams": self.gaps}) if name not in own]

    @property
    def broken(self) -> list[str]:
        """Return the limits that the server broke, as text; none: it passed."""
        found = [self.died] if self.died else []
        found += _late(self.own)
        if self.attacked.unanswered:
            found.append(f"/health unanswered {self.attacked.unanswered} times")
        if self.attacked.wrong:
            found += [f"{count} streams: {why}" for why, count in self.attacked.wrong.items()]
        elif not self.attacked.same:
            found.append("no stream came to its end")
        if self.peak_mb > BUDGET_MB:
            found.append("memory")
        if self.back is None or self.back > BACK:
            found.append("memory stays")
        if self.tree_mb > TREE_MB:
            found.append("1 GB")
        return found


def _late(found: dict[str, tuple[Waits, Waits]]) -> list[str]:
    """Names of the limits that are broken."""
    names = []
    for name, (quiet, attacked) in found.items():
        more = attacked - quiet
        names += [f"{name} p99"] if more.p99 > P99 else []
        names += [f"{name} longest"] if more.worst > WORST else []
    return names
