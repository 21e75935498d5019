"""Errors of ranks that are gone, or have failed."""

from __future__ import annotations


class PeerLost(RuntimeError):
    """Another rank is gone, or has not come to where this one is."""


class WorkerFault(RuntimeError):
    """Which rank, and what became of it. by_peer: another one was the cause."""

    def __init__(self, sentence: str, by_peer: bool = False) -> None:
        super().__init__(sentence)
        self.by_peer = by_peer


class RanksLost(RuntimeError):
    """Ranks are no longer at the same step, and why: no further one can be computed."""
