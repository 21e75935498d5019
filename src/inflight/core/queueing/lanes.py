"""Lanes: queues with their own policy, weight and limits that share one engine.

Foreground lanes share a step by weight. Background lanes have what those leave, and are preempted first, but for their
minimum share; beyond that they have no more of a step than keeps its predicted time within `step_target`. Lanes know
what each may have; the plan builder gives it to them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Sequences
from dataclasses import dataclass, field

from msgspec import Struct

from inflight.core.estimation.latency import LatencyModel
from inflight.core.policies import Policy
from inflight.core.queueing.step_target import StepTarget, Target
from inflight.core.queueing.waiting_queue import WaitingQueue
from inflight.core.request_timings import OTHER, QueueWaitMeter, StepTime
from inflight.core.sequence import Sequence, SequenceView
from inflight.core.tenants import TenantUsage
from inflight.core.types.plan import Chunk

MAX_WEIGHT = 10**6  # weight: shares are to be finite numbers
CHUNK = 16  # tokens of a prompt that are worth a row
MAX_DEFICIT = 16 * CHUNK  # tokens, above and below 0: a lane that cannot use its share loses the rest
MAX_RESERVED_STEPS = 32  # for which foreground newcomers wait for a reserved one; then foreground work is preempted
MAX_SHARE_OF_STEP = 0.25  # of a step's tokens that are reserved at once, where the share itself is not larger


class LaneError(ValueError):
    """Lanes cannot be set up as asked; the sentence names the numbers."""


class MinShareError(ValueError):
    """The share cannot be kept; the message names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneSettings:
    """One lane. None: no limit.

    weight: share of the step's prompt tokens beside other foreground lanes. background: has what the others leave.
    min_rows, max_rows: rows kept for this lane, and most rows it may have. min_tokens, max_tokens: the same for prompt
    tokens of a step. chunk: most prompt tokens of one sequence per step. queue_limit: most requests waiting.
    step_target: how long a step may take that holds foreground work and this background lane's. "auto": the ITL target
    where one is set (`--itl-target`), else that of the shortest step that is worth its setup time. Seconds. "off": any
    time.
    """

    name: str
    policy: Policy
    weight: float = 1.0
    background: bool = False
    min_rows: int = 0
    max_rows: int | None = None
    min_tokens: int = 0
    max_tokens: int | None = None
    chunk: int | None = None
    queue_limit: int | None = None
    step_target: Target = "auto"

    def __post_init__(self) -> None:
        self._check_kinds()
        if not 0 < self.weight <= MAX_WEIGHT:
            raise LaneError(
                f"Lane {self.name!r} has the weight {self.weight}; give a number above 0, at most {MAX_WEIGHT:,}."
            )
        for what, least, most in (("rows", self.min_rows, self.max_rows), ("tokens", self.min_tokens, self.max_tokens)):
            if least < 0 or (most is not None and most < max(1, least)):
                raise LaneError(f"Lane {self.name!r} keeps {least} {what} but may have at most {most}; change one.")
        for name in ("chunk", "queue_limit"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise LaneError(f"Lane {self.name!r} has {name} {value}; give a whole number above 0.")
        given = self.step_target
        is_time = isinstance(given, int | float) and not isinstance(given, bool) and 0 < given < math.inf
        if given != "auto" and not (self.background and (is_time or given == "off")):
            raise LaneError(
                f"Lane {self.name!r} has step_target {given}; give auto, off or seconds above 0, to a background lane."
            )

    def _check_kinds(self) -> None:
        """Check the types of values that come from a file."""
        if not isinstance(self.weight, int | float):
            raise LaneError(f"Lane {self.name!r} has the weight {self.weight!r}; give a number.")
        if not isinstance(self.background, bool):
            raise LaneError(f"Lane {self.name!r} has background {self.background!r}; give true or false.")
        for name in ("min_rows", "max_rows", "min_tokens", "max_tokens", "chunk", "queue_limit"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
                raise LaneError(f"Lane {self.name!r} has {name} {value!r}; give a whole number.")


class Deficit(Struct, eq=False):
    """The account of one background lane.

    Attributes:
        tokens: What the lane has still to get; below 0: what it had ahead.
        reserved_tokens: Tokens of the step under construction that are its own.
        reserved_rows: Rows that its newcomers have before others.
        reserved_blocks: Blocks that its newcomers have before others.
        reserved_steps: For so many steps in turn a newcomer has had a row reserved, and has not joined.
    """

    tokens: float = 0.0
    reserved_tokens: int = 0
    reserved_rows: int = 0
    reserved_blocks: int = 0
    reserved_steps: int = 0

    @property
    def is_due(self) -> bool:
        """Whether one more sequence of the lane is to be protected."""
        return self.tokens >= CHUNK

    def take(self, tokens: int) -> None:
        """Subtract tokens that the lane was served, also those that foreground work left: a burst of that costs the
        lane its share for as long as what it had just before makes up for it."""
        self.tokens = max(-MAX_DEFICIT, self.tokens - tokens)

    def reserve_row(self, blocks: int) -> None:
        """Reserve the next free row and blocks for a newcomer of the lane."""
        self.reserved_rows, self.reserved_blocks = 1, blocks
        self.reserved_steps += 1

    def cancel_reservation(self) -> None:
        self.reserved_tokens = self.reserved_rows = self.reserved_blocks = 0


@dataclass(slots=True, eq=False)
class Lane:
    """A lane at work. service: tokens computed for it over its weight, the order in which lanes are served."""

    settings: LaneSettings
    queue: WaitingQueue
    clock: QueueWaitMeter = field(default_factory=QueueWaitMeter)
    deficit: Deficit = field(default_factory=Deficit)
    running: int = 0
    service: float = 0.0

    @property
    def weight(self) -> float:
        return self.settings.weight

    @property
    def min_tokens(self) -> int:
        """Prompt tokens of the step under construction that are its own."""
        return max(self.settings.min_tokens, self.deficit.reserved_tokens)

    @property
    def busy(self) -> bool:
        return bool(self.running or len(self.queue))

    def served(self, tokens: int, chunks: int = 1) -> None:
        """Add the tokens of so many equal chunks to the service, and subtract them from a background lane's deficit.
        Service is rounded as if each chunk were added by itself: lanes with equal service go in the given order."""
        if self.settings.background:
            self.deficit.take(chunks * tokens)
        each, service = tokens / self.settings.weight, self.service
        if each.is_integer() and service.is_integer():
            self.service = service + chunks * each
            return
        for _ in range(chunks):
            service += each
        self.service = service


class MinShare:
    """The minimum share of background lanes, which yield to the foreground in everything else.

    While both have work, each step adds its share to the lanes' deficits. A lane whose deficit is worth a chunk of a
    prompt has one more sequence protected: it has the next free row and the blocks that it needs, has its tokens in
    every step, is not preempted by foreground work, and runs to its end, since its work would otherwise be computed
    twice. All tokens that a lane is served are taken off its deficit, within a bound.
    """

    def __init__(self, share: float):
        """Keep a share of the steps' tokens for all background lanes together; 0: none.

        Raises:
            MinShareError: The share is below 0, or leaves nothing to others.
        """
        if not 0 <= share < 1:
            raise MinShareError(
                f"The lane floor is {share}; give a share of the steps' tokens from 0 (none) to below 1."
            )
        self.share = share

    def max_tokens(self, token_budget: int) -> int:
        """Return the tokens of a step that may be reserved; one is left to others, where there are two."""
        return max(1, min(token_budget - 1, math.ceil(token_budget * max(MAX_SHARE_OF_STEP, self.share))))

    def add(self, lanes: Iterable[Lane], held_up: Iterable[Lane], tokens: int) -> None:
        """Add a step's share to the deficits, by weight. held_up: lanes with work that foreground work holds up."""
        waiting = list(held_up)
        weights = sum(lane.weight for lane in waiting)
        for lane in lanes:
            deficit = lane.deficit
            if lane in waiting:
                deficit.tokens = min(MAX_DEFICIT, deficit.tokens + self.share * tokens * lane.weight / weights)
            else:
                deficit.tokens = min(0.0, deficit.tokens)


class Lanes:
    def __init__(
        self,
        settings: Iterable[LaneSettings],
        max_rows: int,
        token_budget: int,
        cached_tokens: Callable[[Sequence], int],
        time: StepTime,
        latency: LatencyModel | None = None,
        min_share: float = 0.0,
        *,
        is_timed: bool = True,
    ):
        """max_rows, token_budget: what there is to share; what lanes keep may not add up to more. min_share: share of
        the steps' tokens that background lanes have while they have work. is_timed: whether waiting time is attributed
        to what blocks the queues."""
        self.min_share = MinShare(min_share)
        self.step_target = StepTarget(latency or LatencyModel())
        self._lanes = {one.name: Lane(one, WaitingQueue(one.policy, cached_tokens, time)) for one in settings}
        self._queues = [lane.queue for lane in self._lanes.values()]
        self._by_kind = {
            background: [lane for lane in self._lanes.values() if lane.settings.background == background]
            for background in (False, True)
        }
        self._max_rows, self._time, self._is_timed = max_rows, time, is_timed
        for what, total in (("rows", max_rows), ("tokens", token_budget)):
            kept = sum(getattr(lane.settings, f"min_{what}") for lane in self._lanes.values())
            if kept > total:
                raise LaneError(
                    f"The lanes keep {kept} {what} for themselves, but a step has {total}; lower min_{what}."
                )
        without = [lane.settings.name for lane in self._lanes.values() if not lane.settings.min_rows]
        if without and sum(lane.settings.min_rows for lane in self._lanes.values()) == max_rows:
            raise LaneError(
                f"The lanes keep all {max_rows} rows for themselves, so that {', '.join(without)} would never have "
                "one; lower min_rows."
            )

    def __len__(self) -> int:
        """Return the number of waiting sequences of all lanes."""
        waiting = 0
        for queue in self._queues:
            waiting += queue.backlog.total.sequences
        return waiting

    @property
    def names(self) -> list[str]:
        return list(self._lanes)

    def of(self, sequence: Sequence) -> Lane:
        return self._lanes[sequence.request.lane]

    def named(self, name: str) -> Lane | None:
        return self._lanes.get(name)

    def all(self) -> Iterable[Lane]:
        return self._lanes.values()

    def before(self, name: str) -> list[Lane]:
        """Return the lanes whose work is before a newcomer's to this one: not background lanes for foreground ones."""
        own = self._lanes[name]
        return [
            one for one in self._lanes.values() if own.settings.background or not one.settings.background or one is own
        ]

    def in_turn(self, background: bool) -> list[Lane]:
        """Return the lanes of one kind, the least served first."""
        lanes = self._by_kind[background]
        return lanes if len(lanes) < 2 else sorted(lanes, key=lambda lane: lane.service)

    def views(self) -> list[SequenceView]:
        """Return the waiting sequences of all lanes: foreground first, unless a background lane has a deficit."""
        kinds = (True, False) if any(lane.deficit.is_due for lane in self._by_kind[True]) else (False, True)
        return [view for kind in kinds for lane in self.in_turn(kind) for view in lane.queue.views()]

    @property
    def background_runs(self) -> bool:
        """Whether a sequence of a background lane has a row."""
        return any(lane.running for lane in self._by_kind[True])

    def select(self, numbers: Iterable[int]) -> list[Sequence]:
        found = {one.number: one for lane in self._lanes.values() for one in lane.queue.select(numbers)}
        return [found[number] for number in numbers if number in found]

    def clear(self) -> None:
        """Remove all waiting sequences, and forget the running ones."""
        for lane in self._lanes.values():
            lane.queue.clear()
            lane.deficit = Deficit()
            lane.running = 0

    def arrives(self, lane: Lane) -> None:
        """Note that a request comes. An idle lane is lifted to the least service of the busy ones, so that idle time is
        not banked (as VTC does for tenants)."""
        if not lane.busy:
            at_work = [one.service for one in self._lanes.values() if one.busy]
            lane.service = max(lane.service, min(at_work, default=0.0))

    def rows_for(self, lane: Lane, free: int, without: Sequences[Sequence] = ()) -> int:
        """Return the free rows that a lane may take, within its max_rows and the min_rows of others.

        without: Counted as if these had no rows; none of them is among those that its lane keeps.
        """
        kept, background = 0, lane.settings.background
        for other in self._lanes.values():
            if other is not lane:
                reserved = 0 if background else other.deficit.reserved_rows
                kept += max(0, other.settings.min_rows - other.running, reserved)
        cap, running = lane.settings.max_rows, lane.running
        if without:
            running -= sum(self.of(one) is lane for one in without)
        return min(free + len(without) - kept, self._max_rows if cap is None else cap - running)

    def reserved(self, lane: Lane) -> tuple[int, int]:
        """Rows and blocks that newcomers of background lanes have before this one's."""
        rows = blocks = 0
        if not lane.settings.background:
            for one in self._by_kind[True]:
                rows += one.deficit.reserved_rows
                blocks += one.deficit.reserved_blocks
        return rows, blocks

    def held_up(self) -> list[Lane]:
        """Return the background lanes with work, while a foreground lane has work."""
        behind = [lane for lane in self._by_kind[True] if lane.busy] if self.min_share.share else []
        return behind if behind and any(lane.busy for lane in self._by_kind[False]) else []

    def add_min_share(self, tokens: int) -> None:
        """Add the minimum share of a planned step of so many tokens to the deficits."""
        if self.min_share.share and any(lane.busy or lane.deficit.tokens > 0 for lane in self._by_kind[True]):
            self.min_share.add(self._by_kind[True], self.held_up(), tokens)

    def charge_waiting(
        self,
        reasons: Mapping[str, str],
        prompt_tokens: Mapping[str, int],
        blocks_by_lane: Callable[[], Mapping[str, int]],
    ) -> None:
        """Attribute waiting time from now on to what blocks the head of each queue.

        Args:
            reasons: By lane; a lane that is missing waits for the step in flight.
            prompt_tokens: Of this step, by lane; where decodes fill it, the lane with most rows has most of it.
            blocks_by_lane: Counts the blocks that each lane's sequences hold.
        """
        if not self._is_timed:
            return
        for lane in self._lanes.values():
            reason = reasons.get(lane.settings.name, OTHER) if len(lane.queue) else OTHER
            lane.clock.charge(self._time.now, reason, self._behind(lane, reason, prompt_tokens, blocks_by_lane))

    def charge_all_waiting(self, reason: str, blocks_by_lane: Callable[[], Mapping[str, int]]) -> None:
        """Attribute waiting time from now on to one reason."""
        if not self._is_timed:
            return
        for lane in self._lanes.values():
            lane.clock.charge(self._time.now, reason, self._behind(lane, reason, {}, blocks_by_lane))

    def _behind(
        self,
        lane: Lane,
        reason: str,
        prompt_tokens: Mapping[str, int],
        blocks_by_lane: Callable[[], Mapping[str, int]],
    ) -> str:
        """Return the lane that has most of what this one lacks: itself, where its own limit blocks it, or none has
        more."""
        own, settings = lane.settings.name, lane.settings
        if reason == OTHER:
            return own
        amounts: Mapping[str, int]
        if reason == "blocks":
            amounts = blocks_by_lane()
        elif reason in ("budget", "share") and any(prompt_tokens.values()):
            amounts = prompt_tokens
        else:
            amounts = {one.settings.name: one.running for one in self._lanes.values()}
        limit = {"rows": settings.max_rows, "share": settings.max_tokens}.get(reason)
        if limit is not None and amounts.get(own, 0) >= limit:
            return own
        return max(self._lanes, key=lambda name: (amounts.get(name, 0), name == own))

    def sync_tenant_usage(self, elsewhere: TenantUsage) -> TenantUsage:
        """Charge tenants for what other engines gave them; what was given here since the last time."""
        given: dict[str, Mapping[str, float]] = {}
        for name, lane in self._lanes.items():
            policy = lane.queue.policy
            policy.served_elsewhere(elsewhere.get(name, {}))
            if own := policy.take_service():
                given[name] = own
        return given

    def background_tokens(self, foreground: Iterable[Chunk], budget: int) -> int:
        """Return how many tokens background lanes may add to a step that holds these chunks of foreground lanes."""
        return self.step_target.background_tokens(self._step_targets(), foreground, budget)

    @property
    def divides_prompts(self) -> bool:
        """Whether foreground prompts may be computed in even parts (`StepTarget.even_part`): a background lane with an
        automatic target has work."""
        return "auto" in self._step_targets()

    def _step_targets(self) -> set[Target]:
        return {lane.settings.step_target for lane in self._by_kind[True] if lane.busy}
