"""What is wrong with a description of a workload, or with a trace file."""

from __future__ import annotations


class WorkloadError(ValueError):
    """A workload cannot be made as asked; the sentence says why, where, and what to do."""
