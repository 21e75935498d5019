"""A guard around a policy that is not ours: when it fails, first come first served takes over, and a sentence says so.

Knows nothing of what the policy means; only that a fault in it must not stop the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from inflight.core.policies import Policy, Rank
from inflight.core.policies.fcfs import Fcfs
from inflight.core.sequence import SequenceView
from inflight.core.tenants.shares import Shares


class Guarded:
    """Ranks become (0, rank) while the policy works and (1, arrival) afterwards, so that all of them compare."""

    steady = False  # a failure changes all
    shares: Shares | None = None

    def __init__(self, policy: Policy, report: Callable[[str], None]):
        """report: told once, in a sentence, when the policy failed."""
        self.name = getattr(policy, "name", type(policy).__name__)
        self._policy = policy
        self._report = report
        self._fallback = Fcfs()
        self._failed = False
        self.reads_priority = bool(getattr(policy, "reads_priority", False))
        window: Any = getattr(policy, "window", 0)
        self.window: int = window if isinstance(window, int) and window >= 0 else 0

    def rank(self, view: SequenceView, now: float) -> Rank:
        rank = self._ask("rank", lambda: self._checked(self._policy.rank(view, now)))
        return (1, *self._fallback.rank(view, now)) if rank is None else (0, rank)

    def group(self, view: SequenceView) -> Hashable:
        group: Hashable = self._ask("group", lambda: self._hashable(self._policy.group(view)))
        return group

    def group_rank(self, group: Hashable, now: float) -> Rank:
        rank = self._ask("group_rank", lambda: self._checked(self._policy.group_rank(group, now)))
        return (1,) if rank is None else (0, rank)

    def may_preempt(self, waiting: SequenceView, running: SequenceView) -> bool:
        return bool(self._ask("may_preempt", lambda: bool(self._policy.may_preempt(waiting, running))))

    def arrived(self, view: SequenceView) -> None:
        self._ask("arrived", lambda: self._policy.arrived(view))

    def started(self, view: SequenceView) -> None:
        self._ask("started", lambda: self._policy.started(view))

    def preempted(self, view: SequenceView) -> None:
        self._ask("preempted", lambda: self._policy.preempted(view))

    def served(self, view: SequenceView, prompt_tokens: int, output_tokens: int, now: float) -> None:
        self._ask("served", lambda: self._policy.served(view, prompt_tokens, output_tokens, now))

    def left(self, view: SequenceView) -> None:
        self._ask("left", lambda: self._policy.left(view))

    def _ask(self, what: str, question: Callable[[], Any]) -> Any:
        if self._failed:
            return None
        try:
            return question()
        except Exception as fault:  # whatever a stranger's code raises
            self._failed = True
            self._report(
                f"The policy {self.name!r} failed in {what} ({type(fault).__name__}: {fault}); "
                "first come, first served has taken over."
            )
            return None

    @staticmethod
    def _hashable(group: Hashable) -> Hashable:
        hash(group)
        return group

    @staticmethod
    def _checked(rank: Any) -> Rank:
        if not isinstance(rank, tuple) or not all(isinstance(part, bool | int | float) for part in rank):
            raise TypeError(f"a rank must be a tuple of numbers, not {rank!r}")
        if any(part != part for part in rank):
            raise ValueError(f"a rank must not hold NaN, but is {rank!r}")
        return rank
