"""Counts of batch jobs, for metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal


class JobCounts:
    """Receives counts of jobs, for metrics; this one drops them."""

    def jobs(self, by_status: Mapping[str, int]) -> None:
        """Replace the numbers of jobs, by status."""

    def ended(self, status: str) -> None:
        """Count a job that has ended."""

    def lines(self, outcome: Literal["completed", "failed"], count: int = 1) -> None:
        """Count answered lines."""
