"""Lanes: queues with their own policy, weight and limits that share one engine.

Knows which lanes there are, who waits in each, what each was served, and how many rows and tokens each may have; takes
and gives nothing itself (`StepBuilder` does). Foreground lanes share a step by weight; background lanes have what those
leave, and give way first, but for what they are owed (`floor`). Beyond that they have no more of a step than keeps its
predicted time within a target, which is learnt from what foreground work takes by itself (`step_target`), or set.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Sequences
from dataclasses import dataclass, field
from typing import Literal

from inflight.core.estimation.arrivals import LIKELY, Forecast
from inflight.core.estimation.latency import LatencyModel
from inflight.core.estimation.step_target import StepTarget
from inflight.core.policies import Policy
from inflight.core.queueing.floor import Floor, Owed
from inflight.core.queueing.waiting_queue import WaitingQueue
from inflight.core.request_timings import QueueWaitMeter
from inflight.core.sequence import Sequence, SequenceView
from inflight.core.tenants.service import Service
from inflight.core.types.features import Features, features
from inflight.core.types.plan import BatchPlan, Chunk

HEAVIEST = 10**6  # weight: shares are to be finite numbers


class LaneError(ValueError):
    """Lanes cannot be set up as asked; the sentence names the numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneSettings:
    """One lane. None: no limit.

    weight: share of the step's prompt tokens beside other foreground lanes. background: has what the others leave.
    min_rows, max_rows: rows kept for this lane, and most rows it may have. min_tokens, max_tokens: the same for prompt
    tokens of a step. chunk: most prompt tokens of one sequence per step. queue_limit: most requests waiting.
    step_target: how long a step may take with this background lane's work in it. "auto": such that foreground work
    hardly notices. Seconds: beside foreground work, or while some is expected before the step's end. "off": any time.
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
    step_target: float | Literal["auto", "off"] = "auto"

    def __post_init__(self) -> None:
        self._check_kinds()
        if not 0 < self.weight <= HEAVIEST:
            raise LaneError(
                f"Lane {self.name!r} has the weight {self.weight}; give a number above 0, at most {HEAVIEST:,}."
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
        """What comes from a file may be of any type."""
        if not isinstance(self.weight, int | float):
            raise LaneError(f"Lane {self.name!r} has the weight {self.weight!r}; give a number.")
        if not isinstance(self.background, bool):
            raise LaneError(f"Lane {self.name!r} has background {self.background!r}; give true or false.")
        for name in ("min_rows", "max_rows", "min_tokens", "max_tokens", "chunk", "queue_limit"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
                raise LaneError(f"Lane {self.name!r} has {name} {value!r}; give a whole number.")


@dataclass(slots=True, eq=False)
class Lane:
    """A lane at work. service: tokens computed for it over its weight, the order in which lanes are served."""

    settings: LaneSettings
    queue: WaitingQueue
    clock: QueueWaitMeter = field(default_factory=QueueWaitMeter)
    forecast: Forecast = field(default_factory=Forecast)
    owed: Owed = field(default_factory=Owed)
    running: int = 0
    service: float = 0.0

    @property
    def weight(self) -> float:
        return self.settings.weight

    @property
    def least_tokens(self) -> int:
        """Prompt tokens of the step under construction that are its own."""
        return max(self.settings.min_tokens, self.owed.tokens)

    @property
    def busy(self) -> bool:
        return bool(self.running or len(self.queue))

    def served(self, tokens: int) -> None:
        self.service += tokens / self.settings.weight


class Lanes:
    def __init__(
        self,
        settings: Iterable[LaneSettings],
        max_rows: int,
        token_budget: int,
        cached_tokens: Callable[[Sequence], int],
        latency: LatencyModel | None = None,
        floor: float = 0.0,
    ):
        """max_rows, token_budget: what there is to share; what lanes keep may not add up to more. floor: share of the
        steps' tokens that background lanes have while they have work."""
        self.floor = Floor(floor)
        self._latency = latency or LatencyModel()
        self._target = StepTarget()
        self._lanes = {one.name: Lane(one, WaitingQueue(one.policy, cached_tokens)) for one in settings}
        self._by_kind = {
            background: [lane for lane in self._lanes.values() if lane.settings.background == background]
            for background in (False, True)
        }
        self._max_rows = max_rows
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
        """Waiting sequences of all lanes."""
        return sum(len(lane.queue) for lane in self._lanes.values())

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
        """Whose work stands before a newcomer to this one. Background lanes give way to foreground ones and do not
        count for them."""
        own = self._lanes[name]
        return [
            one for one in self._lanes.values() if own.settings.background or not one.settings.background or one is own
        ]

    def in_turn(self, background: bool) -> list[Lane]:
        """Lanes of one kind, the least served first."""
        lanes = self._by_kind[background]
        return lanes if len(lanes) < 2 else sorted(lanes, key=lambda lane: lane.service)

    def views(self) -> list[SequenceView]:
        """The waiting of all lanes: foreground first, unless a background lane is owed more than it had."""
        kinds = (True, False) if any(lane.owed.is_due for lane in self._by_kind[True]) else (False, True)
        return [view for kind in kinds for lane in self.in_turn(kind) for view in lane.queue.views()]

    def select(self, numbers: Iterable[int]) -> list[Sequence]:
        found = {one.number: one for lane in self._lanes.values() for one in lane.queue.select(numbers)}
        return [found[number] for number in numbers if number in found]

    def clear(self) -> None:
        """Nobody waits or runs any more."""
        for lane in self._lanes.values():
            lane.queue.clear()
            lane.owed = Owed()
            lane.running = 0

    def predict_arrivals(self, lane: Lane, now: float) -> None:
        """Somebody comes: what that tells of who comes next."""
        if not lane.settings.background:
            self._target.arrives(self.expected(now, 1.0))
        lane.forecast.arrived(now)

    def arrives(self, lane: Lane) -> None:
        """Somebody comes. An idle lane is lifted to the least service of those at work, so that idle time is not
        banked (as VTC does for tenants)."""
        if not lane.busy:
            at_work = [one.service for one in self._lanes.values() if one.busy]
            lane.service = max(lane.service, min(at_work, default=0.0))

    def rows_for(self, lane: Lane, free: int, without: Sequences[Sequence] = ()) -> int:
        """Rows that the lane may still take of those that are free: other lanes' floors and its own cap are kept.

        without: counted as if these gave up their rows; none of them is among those that its lane keeps."""
        kept = sum(
            max(0, other.settings.min_rows - other.running, 0 if lane.settings.background else other.owed.rows)
            for other in self._lanes.values()
            if other is not lane
        )
        cap, running = lane.settings.max_rows, lane.running - sum(self.of(one) is lane for one in without)
        return min(free + len(without) - kept, self._max_rows if cap is None else cap - running)

    def reserved(self, lane: Lane) -> tuple[int, int]:
        """Rows and blocks that newcomers of background lanes have before this one's."""
        owed = [] if lane.settings.background else [one.owed for one in self._by_kind[True]]
        return sum(one.rows for one in owed), sum(one.blocks for one in owed)

    def may_grow(self, lane: Lane) -> bool:
        """Whether a background lane could have one more row, if foreground work gave way."""
        taken = lane.running
        for other in self._lanes.values():
            if other is not lane:
                taken += max(other.settings.min_rows, other.running if other.settings.background else 0)
        cap = lane.settings.max_rows
        return taken < self._max_rows and (cap is None or lane.running < cap)

    def held_up(self) -> list[Lane]:
        """Background lanes with work, while foreground work is there to take everything."""
        behind = [lane for lane in self._by_kind[True] if lane.busy] if self.floor.share else []
        return behind if behind and any(lane.busy for lane in self._by_kind[False]) else []

    def settle(self, tokens: int, now: float) -> None:
        """A step of so many tokens is planned."""
        if self.floor.share and any(lane.busy or lane.owed.credit for lane in self._by_kind[True]):
            self.floor.settle(self._by_kind[True], self.held_up(), tokens, now)

    def expected(self, now: float, horizon: float) -> float:
        """Requests forecast for the foreground lanes from now until `horizon` seconds later."""
        return sum(
            lane.forecast.expected(now, horizon) for lane in self._lanes.values() if not lane.settings.background
        )

    def learn(self, plan: BatchPlan, held: Features, seconds: float, owner: Callable[[int], Sequence]) -> None:
        """A step was computed in so many seconds. What of them its foreground chunks would have taken by themselves
        is the share that the model of step time gives them."""
        own, chunks = seconds, plan.chunks
        if any(lane.running for lane in self._lanes.values() if lane.settings.background):
            chunks = tuple(one for one in chunks if not self.of(owner(one.sequence_id)).settings.background)
            alone, whole = self._latency.seconds(features(BatchPlan(0, chunks))), self._latency.seconds(held)
            own = seconds * min(1.0, alone / whole) if whole > 0 else seconds
        self._target.gap(own, sum(one.length == (one.sample or 1) for one in chunks))

    def exchange_service(self, elsewhere: Service) -> Service:
        """Charge tenants for what other engines gave them; what was given here since the last time."""
        given: dict[str, Mapping[str, float]] = {}
        for name, lane in self._lanes.items():
            policy = lane.queue.policy
            policy.served_elsewhere(elsewhere.get(name, {}))
            if own := policy.take_service():
                given[name] = own
        return given

    def ended(self, sequence: Sequence) -> None:
        """What a foreground request waited for its first token is what the next ones may expect."""
        lane, first = self.of(sequence), sequence.timings.first_token
        if first is not None and not lane.settings.background:
            self._target.first_token(lane.settings.name, first - sequence.request.arrival)

    def background_tokens(self, foreground: Iterable[Chunk], budget: int, now: float) -> int:
        """Tokens that background lanes may add to a step that holds these chunks of foreground lanes."""
        targets = {lane.settings.step_target for lane in self._lanes.values() if lane.settings.background and lane.busy}
        if targets <= {"off"} or not self._latency.ready:
            return budget
        step = features(BatchPlan(0, tuple(foreground)))
        if step.prefill_context:
            return 0  # a step with a foreground prompt is full enough, and its length is somebody's first token
        full_step = self._latency.seconds(Features(budget, 0, 0, 0, 0.0))
        target = min(self._seconds(one, step, full_step, now) for one in targets)
        if math.isinf(target):
            return budget
        # One at least where nothing else is in the step, so that it advances under any target.
        return min(budget, max(not step.tokens, self._latency.max_extra_decodes(step, target)))

    def _seconds(self, target: float | str, step: Features, full_step: float, now: float) -> float:
        """That a step with this foreground work in it may take, for a lane with this target."""
        if target == "auto":
            return self._target.seconds(bool(step.tokens), self.expected(now, 1.0), full_step)
        if target == "off" or not (step.tokens or self.expected(now, full_step) > LIKELY):
            return math.inf
        return float(target)
