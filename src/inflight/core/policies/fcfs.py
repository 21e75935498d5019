"""First come, first served, by arrival time; the latest arrival is preempted first (Orca, OSDI 2022; vLLM)."""

from __future__ import annotations

from inflight.core.policies import Policy, PolicyEntry, Rank
from inflight.core.sequence import SequenceView


class Fcfs(Policy):
    name = "fcfs"
    steady = True
    by_arrival = True

    def rank(self, view: SequenceView, now: float) -> Rank:
        return (view.arrival,)


ENTRY = PolicyEntry(
    name="fcfs",
    reason="first come, first served",
    make=lambda context: Fcfs(),
)
