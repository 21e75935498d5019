"""A guard around a policy that is not ours: what it answers compares, or first come, first served takes over.

Knows what an answer may be, and that work must go forward: a policy under which sequences push each other out again and
again, and none gets a new token, counts as failed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

from inflight.core.plugin import Plugin
from inflight.core.policies import Policy, Rank
from inflight.core.policies.fcfs import Fcfs
from inflight.core.sequence import SequenceView
from inflight.core.tenants.shares import Shares

MOST_PREEMPTIONS = 1000  # one after the other, before a new token


class Guarded:
    """Ranks become (0, rank) while the policy works and (1, arrival) afterwards, so that all of them compare."""

    steady = False  # a failure changes all
    group_ranks_rise = False
    shares: Shares | None = None

    def __init__(self, policy: Policy, report: Callable[[str], None]):
        """report: told once, in a sentence, when the policy failed."""
        self._plugin = Plugin("policy", policy, "first come, first served", report)
        self.name = self._plugin.name
        self._policy = policy
        self._fallback = Fcfs()
        self._preemptions = 0  # since a sequence last had a new token
        self.reads_priority = bool(
            self._plugin.ask("reads_priority", lambda: bool(getattr(policy, "reads_priority", False)))
        )
        self.window: int = self._plugin.ask("window", lambda: _checked_window(getattr(policy, "window", 0))) or 0

    def rank(self, view: SequenceView, now: float) -> Rank:
        rank = self._plugin.ask("rank", lambda: _checked_rank(self._policy.rank(view, now)))
        return (1, *self._fallback.rank(view, now)) if rank is None else (0, rank)

    def group(self, view: SequenceView) -> Hashable:
        return self._plugin.ask("group", lambda: _Group(self._policy.group(view)))

    def group_rank(self, group: Hashable, now: float) -> Rank:
        name = group.name if isinstance(group, _Group) else group
        rank = self._plugin.ask("group_rank", lambda: _checked_rank(self._policy.group_rank(name, now)))
        return (1,) if rank is None else (0, rank)

    def may_preempt(self, waiting: SequenceView, running: SequenceView) -> bool:
        return bool(self._plugin.ask("may_preempt", lambda: bool(self._policy.may_preempt(waiting, running))))

    def arrived(self, view: SequenceView) -> None:
        self._plugin.ask("arrived", lambda: self._policy.arrived(view))

    def started(self, view: SequenceView) -> None:
        self._plugin.ask("started", lambda: self._policy.started(view))

    def preempted(self, view: SequenceView) -> None:
        self._preemptions += 1
        if self._preemptions == MOST_PREEMPTIONS and not self._plugin.failed:
            self._plugin.fail(f"lets sequences push each other out, {MOST_PREEMPTIONS} times without a new token")
        self._plugin.ask("preempted", lambda: self._policy.preempted(view))

    def served(self, view: SequenceView, prompt_tokens: int, output_tokens: int, now: float) -> None:
        self._preemptions = 0
        self._plugin.ask("served", lambda: self._policy.served(view, prompt_tokens, output_tokens, now))

    def left(self, view: SequenceView) -> None:
        self._plugin.ask("left", lambda: self._policy.left(view))

    def take_service(self) -> Mapping[str, float]:
        return {}  # as with `shares`: tenants are ours to share

    def served_elsewhere(self, service: Mapping[str, float]) -> None:
        """Nobody is charged."""


class _Group:
    """A name of a plugin's making, as a key of a table: it is hashed here, and may fail when it is compared."""

    __slots__ = ("_hash", "name")

    def __init__(self, name: Hashable):
        self.name = name
        self._hash = hash(name)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        try:
            return self is other or (isinstance(other, _Group) and bool(self.name == other.name))
        except Exception:
            return False


def _checked_window(window: Any) -> int:
    return window if isinstance(window, int) and window >= 0 else 0


def _checked_rank(rank: Any) -> Rank:
    if not isinstance(rank, tuple) or not all(isinstance(part, bool | int | float) for part in rank):
        raise TypeError(f"a rank must be a tuple of numbers, not {rank!r}")
    if any(part != part for part in rank):
        raise ValueError(f"a rank must not hold NaN, but is {rank!r}")
    return rank
