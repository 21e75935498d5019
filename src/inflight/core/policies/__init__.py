"""Policies: the order of the waiting queue, and which sequence is preempted first. One file each.

A policy is chiefly one function, a rank: the lowest rank is served first, and the highest rank among the running is
preempted first. It sees `SequenceView`s only, and cannot break an invariant whatever it answers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

from msgspec import Struct

from inflight.core.estimation.latency import LatencyModel
from inflight.core.sequence import SequenceView
from inflight.core.tenants import TenantWeights

Rank = tuple[Any, ...]


class Policy:
    """Base of policies: one queue, no preemption by rank, no state. A policy defines `name` and `rank` at least."""

    name = ""  # as the policy is chosen and reported
    # 0 if the rank of a waiting sequence never changes (linear ageing does not: all age alike). Above 0 the first so
    # many by arrival are ranked again at every step.
    window = 0
    # Whether ranks of running sequences never change either; then they are sorted when one joins, and not at every step
    steady = False
    # Whether the rank of a group with waiting sequences never falls, except when one of its sequences arrives, leaves
    # or ends; then only the first groups are compared at a choice.
    group_ranks_rise = False
    orders_programs = False  # whether calls leave blocks to acting programs that began earlier (`paused_calls`)
    by_arrival = False  # whether it ranks by arrival alone, so that a short prompt may go before a long one that runs
    # Whether the first sequence of each group is ranked again at each choice, and the least of these goes next; if not,
    # `group_rank` says which group does.
    reranks_heads = False
    reads_priority = False  # whether it reads a request's priority; if not, a request with a priority is refused
    # Weights by which tenants share a queue with a limit; None: first come, first served.
    shares: TenantWeights | None = None

    def rank(self, view: SequenceView, now: float) -> Rank:
        """Return the rank of a sequence. Ties go by order of acceptance. now: seconds on the engine's clock."""
        raise NotImplementedError(f"{type(self).__name__} has no rank")

    def group(self, view: SequenceView) -> Hashable:
        """Return the group of a waiting sequence."""
        return None

    def group_rank(self, group: Hashable, now: float) -> Rank:
        """Return the rank of a group, which may change at any time. The group with the lowest rank is served next."""
        return ()

    def may_preempt(self, waiting: SequenceView, running: SequenceView) -> bool:
        """Return whether a waiting sequence may preempt a running one."""
        return False

    def goes_before(self, waiting: SequenceView, running: SequenceView) -> bool:
        """Return whether the first of the waiting has prompt tokens before a running sequence that is inside its
        prompt. It is asked of policies that have `may_preempt`."""
        return self.may_preempt(waiting, running)

    def arrived(self, view: SequenceView) -> None:
        """Note that a sequence waits for the first time."""

    def started(self, view: SequenceView) -> None:
        """Note that a sequence runs, and waits no longer."""

    def preempted(self, view: SequenceView) -> None:
        """Note that a sequence was preempted: it waits again."""

    def served(self, view: SequenceView, prompt_tokens: int, output_tokens: int, now: float) -> None:
        """Note that tokens were planned (of the prompt, once however often recomputed) or sampled (of the output)."""

    def left(self, view: SequenceView) -> None:
        """Note that a sequence has ended, while it waited or (`is_running`) ran."""

    def take_service(self) -> Mapping[str, float]:
        """Return what each tenant was charged since the last call, if tenants are charged."""
        return {}

    def served_elsewhere(self, service: Mapping[str, float]) -> None:
        """Note what other engines charged tenants, as their `take_service` returned it."""


Ordered = Policy  # the name that plugins derive from


class PolicyContext(Struct, frozen=True):
    """Inputs of a policy. tenant_weights: of tenants whose weight is not 1. latency: the scheduler's model."""

    tenant_weights: Mapping[str, float]
    latency: LatencyModel


class PolicyEntry(Struct, frozen=True, kw_only=True):
    """A policy by its name in `registry`."""

    name: str  # as it is chosen
    reason: str  # a phrase that says what it does, for the start's report
    make: Callable[[PolicyContext], Policy]  # creates it
    asks_predictor: bool = False  # whether it reads predicted output lengths
    weighs_tenants: bool = False  # whether it reads `tenant_weights`
