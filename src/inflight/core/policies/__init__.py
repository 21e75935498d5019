"""Policies: in which order the waiting are taken, and who is preempted. One file each.

A policy is one function, a rank: the lowest rank is served first, and the highest rank among the running is preempted
first. It sees `SequenceView`s only.
"""

from __future__ import annotations

from typing import Any, Protocol

from inflight.core.sequence import SequenceView

Rank = tuple[Any, ...]


class Policy(Protocol):
    name: str

    def rank(self, view: SequenceView) -> Rank:
        """Smaller is served sooner. Ranks of one policy compare with each other; ties go by order of acceptance."""
