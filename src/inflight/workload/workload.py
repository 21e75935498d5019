"""A workload: all entries that are offered, and how they follow each other.

Knows what is offered and when; `pacing` turns it into who is due now.
"""

from __future__ import annotations

from dataclasses import dataclass

from inflight.workload.entry import Entry


@dataclass(frozen=True, slots=True)
class Workload:
    """entries: by arrival. name: how they were made, in words. notes: what a reader of results must know of them (rows
    dropped and why, times spread).

    concurrency: most requests under way at once; None: no bound. closed: a closed loop: an entry's turn comes when one
    before it has ended, and its latency counts from then. Otherwise latency counts from `arrival`, also where the bound
    on concurrency held it back. until: from this second on nothing is sent, as in a closed loop of a given time; None:
    all is.
    """

    entries: tuple[Entry, ...]
    name: str
    concurrency: int | None = None
    closed: bool = False
    notes: tuple[str, ...] = ()
    until: float | None = None
