"""What came of a trace file: its entries, and what was dropped, noticed and estimated on the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from inflight.workload.workload import Entry, Workload


@dataclass(frozen=True, slots=True)
class Trace:
    """entries: by arrival, the first at 0. format: name of the format. rows: read, dropped ones too. dropped: reason →
    rows. notes: sentences for whoever reads results. bucket_s: the raster that all times lie on, where it is a tenth of
    a second or coarser; 0: none.
    """

    entries: tuple[Entry, ...]
    format: str
    rows: int
    dropped: Mapping[str, int]
    notes: tuple[str, ...] = ()
    bucket_s: float = 0.0

    @property
    def span_s(self) -> float:
        """From the first arrival to the last."""
        return self.entries[-1].arrival - self.entries[0].arrival if self.entries else 0.0

    def workload(self, name: str, concurrency: int | None = None, closed: bool = False) -> Workload:
        return Workload(self.entries, name, concurrency, closed, self.notes)
