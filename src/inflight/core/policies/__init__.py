"""Policies: in which order the waiting are taken, and who is preempted. One file each.

A policy is chiefly one function, a rank: the lowest rank is served first, and the highest rank among the running is
preempted first. It sees `SequenceView`s only, and cannot break an invariant whatever it answers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, Protocol

from msgspec import Struct

from inflight.core.estimation.latency import LatencyModel
from inflight.core.sequence import SequenceView
from inflight.core.tenants import TenantWeights

Rank = tuple[Any, ...]


class Policy(Protocol):
    """`Ordered` has sensible answers to all but `rank`; write a policy by deriving from it.

    window: 0 when the rank of a waiting sequence never changes (linear ageing does not: everyone ages alike). Above 0,
    the first so many by arrival are ranked anew at every step. steady: whether ranks of running sequences never change
    either; then they are sorted when somebody joins, and not at every step. group_ranks_rise: whether the rank of a
    group with waiting sequences never falls, but when one of its sequences comes, leaves or ends; then only the first
    groups are asked at a choice. reads_priority: whether a request's priority means something here; where it does not,
    a request that names one is refused.
    """

    name: str
    window: int
    steady: bool
    group_ranks_rise: bool
    reads_priority: bool

    @property
    def shares(self) -> TenantWeights | None:
        """By which tenants share the places of a queue that has a bound. None: first come, first served."""

    def rank(self, view: SequenceView, now: float) -> Rank:
        """Smaller is served sooner; ties go by order of acceptance. now: seconds on the engine's clock."""

    def group(self, view: SequenceView) -> Hashable:
        """Waiting sequences are kept in groups, ..."""

    def group_rank(self, group: Hashable, now: float) -> Rank:
        """... and the group with the smallest rank is served next. May change at any time; asked at every choice."""

    def may_preempt(self, waiting: SequenceView, running: SequenceView) -> bool:
        """Whether a waiting sequence may push out a running one to take its place."""

    def arrived(self, view: SequenceView) -> None:
        """A sequence begins to wait for the first time."""

    def started(self, view: SequenceView) -> None:
        """A sequence takes a row: it waits no longer."""

    def preempted(self, view: SequenceView) -> None:
        """A sequence gave up its row before its end: it waits again."""

    def served(self, view: SequenceView, prompt_tokens: int, output_tokens: int, now: float) -> None:
        """Tokens were planned (of the prompt; told once, however often recomputed) or sampled (of the output)."""

    def left(self, view: SequenceView) -> None:
        """A sequence has ended, while it waited or (`is_running`) in its row."""

    def take_service(self) -> Mapping[str, float]:
        """What each tenant was given since this was last asked, where tenants are charged for it."""

    def served_elsewhere(self, service: Mapping[str, float]) -> None:
        """Other engines gave so much to tenants: as `take_service` tells it."""


class Ordered:
    """One queue, ranks of the waiting that do not change, no preemption by rank, nothing to remember."""

    window = 0
    steady = False
    group_ranks_rise = False
    reads_priority = False
    shares: TenantWeights | None = None

    def group(self, view: SequenceView) -> Hashable:
        return None

    def group_rank(self, group: Hashable, now: float) -> Rank:
        return ()

    def may_preempt(self, waiting: SequenceView, running: SequenceView) -> bool:
        return False

    def arrived(self, view: SequenceView) -> None:
        """Nothing to remember."""

    def started(self, view: SequenceView) -> None:
        """Nothing to remember."""

    def preempted(self, view: SequenceView) -> None:
        """Nothing to remember."""

    def served(self, view: SequenceView, prompt_tokens: int, output_tokens: int, now: float) -> None:
        """Nothing to remember."""

    def left(self, view: SequenceView) -> None:
        """Nothing to remember."""

    def take_service(self) -> Mapping[str, float]:
        return {}

    def served_elsewhere(self, service: Mapping[str, float]) -> None:
        """Nothing to remember."""


class PolicyContext(Struct, frozen=True):
    """What a policy is made for. tenant_weights: of tenants that are not worth 1. latency: the scheduler's model."""

    tenant_weights: Mapping[str, float]
    latency: LatencyModel


class PolicyEntry(Struct, frozen=True, kw_only=True):
    """A policy by its name (`registry`). reason: what it does, shown where it is chosen. asks_predictor: whether it
    orders by predicted output lengths. weighs_tenants: whether `tenant_weights` mean something to it."""

    name: str
    reason: str
    make: Callable[[PolicyContext], Policy]
    asks_predictor: bool = False
    weighs_tenants: bool = False
