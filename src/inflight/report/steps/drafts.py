"""Drafts over a run: how many each step had, how many of them were right, and what making them took.

Knows steps of a record, not who made the drafts: that is a setting.
"""

from __future__ import annotations

from array import array

from inflight.records.drafts import DraftCounts, verified
from inflight.records.schema import StepRecord


class DraftHistory:
    """drafted, accepted: of each step, its drafts, and those that were right. counts: of the run, by chunk. seconds:
    that executors took to make drafts."""

    def __init__(self) -> None:
        self.drafted = array("q")
        self.accepted = array("q")
        self.counts = DraftCounts()
        self.seconds = 0.0

    def step(self, record: StepRecord) -> None:
        drafted = accepted = 0
        for one in verified(record):
            drafted += one.drafts
            accepted += one.accepted
            self.counts.add(one)
        self.drafted.append(drafted)
        self.accepted.append(accepted)
        self.seconds += record.draft_seconds
