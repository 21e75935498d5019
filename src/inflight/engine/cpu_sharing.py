"""CPU sharing: several engine processes alternate on the cores of one machine, so that a chat is not slowed down.

Each engine has a thread on every core, so two that compute at once slow each other down. Instead, an engine pauses
between two layers while another one goes first. An engine with foreground requests goes before one that has background
requests only; equals share by weight. Each process writes one slot of shared memory and reads the others. There is no
lock: two engines that decide at the same moment compute side by side for a layer, and the claim of a process that died
expires. Each wait is bounded, whatever others do. `nice` and SCHED_IDLE serve an engine that is always in the
background as well; but without privileges a process may not raise itself again when it gets foreground requests.
"""

from __future__ import annotations

import math
import mmap
import os
import sys
import tempfile
import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from msgspec import structs

from inflight.core.types.events import Event, FinishedEvent
from inflight.core.types.executor import Executor, ExecutorWrapper, Pending
from inflight.core.types.plan import BatchPlan, StepResult
from inflight.core.types.request import Request
from inflight.engine.observers import EngineObserver

BACKGROUND, FOREGROUND, OVERDUE = 0.0, 1.0, 2.0  # levels: a higher one goes first
MAX_WAIT_RATIO, MAX_WAIT_SECONDS = 99, 30.0  # of waiting over its longest layer; then an engine computes one anyway
SLICE_SECONDS = 0.005  # that an engine computes beyond its share before an equal goes first
CREDIT_SECONDS = 0.02  # of its share that an engine may make up for after a rest
RETURN_SECONDS = 0.002  # after a step, in which the next step of foreground requests is expected
CLAIM_SECONDS = 1.0  # after which a claim that was not renewed is void: its process is gone or stopped
LOOK_SECONDS = 0.001  # between two looks at the other slots while an engine computes
MIN_POLL_SECONDS, MAX_POLL_SECONDS = 0.0005, 0.004  # between two looks while it waits


class Claim(NamedTuple):
    """An engine's claim to the cores."""

    expires: float = 0.0  # when it becomes void, on the clock that all processes share; 0: the engine has none
    level: float = BACKGROUND
    computes: float = 0.0  # 1 while the engine computes, 0 while it waits
    used: float = 0.0  # virtual time of the engine: seconds computed over its weight


class ClaimTable:
    """The claims of all engines, in memory that processes share through an inherited descriptor."""

    def __init__(self, descriptor: int):
        self.descriptor = descriptor
        self._memory = mmap.mmap(descriptor, 0)
        self._numbers = memoryview(self._memory).cast("d")
        self.slots = len(self._numbers) // len(Claim._fields)

    @classmethod
    def create(cls, slots: int) -> ClaimTable:
        """Return a table without claims in new memory, which goes with the last process that has it."""
        if sys.platform == "linux":
            descriptor = os.memfd_create("inflight-cpu-sharing")
        else:
            with tempfile.TemporaryFile() as file:
                descriptor = os.dup(file.fileno())
        os.ftruncate(descriptor, slots * len(Claim._fields) * 8)
        return cls(descriptor)

    def read(self, slot: int) -> Claim:
        width = len(Claim._fields)
        return Claim(*self._numbers[slot * width : (slot + 1) * width])

    def write(self, slot: int, claim: Claim) -> None:
        """Replace a slot's claim. Called by the engine at that slot, or by its supervisor once the engine has ended."""
        for index, value in enumerate(claim, slot * len(claim)):
            self._numbers[index] = value

    def close(self) -> None:
        self._numbers.release()
        self._memory.close()
        os.close(self.descriptor)


def goes_first(other: Claim, mine: Claim, slack: float, now: float) -> bool:
    """Return whether an engine with one claim waits for an engine with the other claim. An engine that computes may be
    ahead of an equal that waits by `slack` of virtual time."""
    if other.expires <= now or other.level < mine.level:
        return False
    if other.level > mine.level or other.computes > mine.computes:
        return True
    return other.used + (slack if mine.computes > other.computes else 0.0) < mine.used


class CoreShare:
    """One engine's share of the cores. Only the thread that computes the engine's steps uses it."""

    def __init__(
        self,
        table: ClaimTable,
        slot: int,
        weight: float,
        has_foreground: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ):
        """weight: of the time, in proportion to its equals' weights. has_foreground: whether the engine has foreground
        requests; asked again while it waits. clock, sleep: of a clock that all processes share, in seconds."""
        self._table, self._slot, self._weight = table, slot, weight
        self._has_foreground, self._clock, self._sleep = has_foreground, clock, sleep
        self._claim = Claim()
        self._in_step = False
        self._looked = 0.0  # when the claims of others were read last; what was computed since is not in `used` yet
        self._layer_seconds = LOOK_SECONDS  # longest time between two looks since the last wait
        self.paused_seconds = 0.0  # between the layers of the last step

    def begin(self) -> None:
        """Wait until a step may begin."""
        now = self._clock()
        self._join(now)
        self._wait(now)
        self._in_step, self.paused_seconds = True, 0.0

    def between_layers(self) -> None:
        """Wait while another engine goes first. Return at once outside of a step."""
        if not self._in_step or (now := self._clock()) < self._looked + LOOK_SECONDS:
            return
        self._charge(now)
        self._join(now)
        self._wait(now)

    def end(self) -> None:
        """End the step. If there are more foreground requests, others leave the cores to the next step for a moment."""
        now = self._clock()
        if self._in_step:
            self._charge(now)
        self._in_step = False
        self._join(now)
        self._publish(expires=now + RETURN_SECONDS if self._claim.level == FOREGROUND else 0.0, computes=0.0)

    def _wait(self, now: float) -> None:
        began = now
        overdue = began + min(MAX_WAIT_RATIO * max(self._layer_seconds, LOOK_SECONDS), MAX_WAIT_SECONDS)
        while any(goes_first(one, self._claim, SLICE_SECONDS / self._weight, now) for one in self._others()):
            if now >= overdue:
                self._claim = self._claim._replace(level=OVERDUE)
                break
            self._publish(expires=now + CLAIM_SECONDS, computes=0.0)
            self._sleep(min(max((now - began) / 8, MIN_POLL_SECONDS), MAX_POLL_SECONDS))
            now = self._looked = self._clock()
            self._join(now)
        if now > began:
            self.paused_seconds += now - began
            self._layer_seconds = 0.0
        self._looked = now
        self._publish(expires=now + CLAIM_SECONDS, computes=1.0)

    def _others(self) -> list[Claim]:
        return [self._table.read(slot) for slot in range(self._table.slots) if slot != self._slot]

    def _join(self, now: float) -> None:
        """Take the level of the engine's requests. After a rest or a change of level, start near the engine there that
        used most: an engine does not make up for time that it did not want, nor pays for what it used at another level.
        """
        claim, level = self._claim, FOREGROUND if self._has_foreground() else BACKGROUND
        changes = level != claim.level != OVERDUE
        if changes or claim.expires <= now:
            least = max((one.used for one in self._others() if one.level == level), default=-math.inf)
            least -= CREDIT_SECONDS / self._weight
            claim = claim._replace(used=least if changes and least > -math.inf else max(claim.used, least))
        self._claim = claim._replace(level=level)

    def _charge(self, now: float) -> None:
        seconds = now - self._looked
        self._layer_seconds = max(self._layer_seconds, seconds)
        self._claim = self._claim._replace(used=self._claim.used + seconds / self._weight)

    def _publish(self, expires: float, computes: float) -> None:
        self._claim = self._claim._replace(expires=expires, computes=computes)
        self._table.write(self._slot, self._claim)


class _OwnTime:
    """A step's result without the seconds in which it was paused: latency models learn what steps take alone."""

    def __init__(self, pending: Pending, paused_seconds: float):
        self._pending, self._paused_seconds = pending, paused_seconds

    def result(self) -> StepResult:
        result = self._pending.result()
        return structs.replace(result, seconds=max(0.0, result.seconds - self._paused_seconds))


class SharingExecutor(ExecutorWrapper):
    """An executor that computes steps in `submit`, each in its engine's share of the cores."""

    def __init__(self, executor: Executor, share: CoreShare):
        super().__init__(executor)
        self._share = share

    def submit(self, plan: BatchPlan) -> Pending:
        if not plan.chunks:
            return super().submit(plan)
        try:
            self._share.begin()
            pending = super().submit(plan)
        finally:
            self._share.end()
        paused = self._share.paused_seconds
        return pending if not paused else _OwnTime(pending, paused)


class ForegroundRequests(EngineObserver):
    """An observer that counts the requests that are not in a background lane."""

    def __init__(self, background_lanes: AbstractSet[str]):
        self._background_lanes = background_lanes
        self._ids: set[str] = set()

    def any(self) -> bool:
        """Return whether one is in flight. Any thread may call it."""
        return bool(self._ids)

    def added(self, request: Request, now: float) -> None:
        if request.lane not in self._background_lanes:
            self._ids.add(request.request_id)

    def events(self, events: list[Event], now: float) -> None:
        self._ids.difference_update(one.request_id for one in events if isinstance(one, FinishedEvent))

    def close(self) -> None:
        self._ids.clear()
