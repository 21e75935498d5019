"""Measuring the steps of an engine, in rounds that are alike; and how much of this machine others had meanwhile (other
processes, and other guests of its host), from Linux's own account of its processors (/proc/stat).

A round has three parts: designed steps (`design`) go to the executor itself; traffic through the whole engine
(`served`) tells what serving adds to them; other traffic, with other lengths and at other loads, is kept apart for
judging. Each round makes the plans of the one before it, so that equal steps lie far apart in time. Knows engines and
how long a round may take; not what is made of the steps.
"""

from __future__ import annotations

import itertools
import os
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from inflight.core.types.features import features
from inflight.core.types.plan import BatchPlan, Executor
from inflight.engine.loop import EngineLoop
from inflight.simulate.design import Design
from inflight.simulate.fitted import StepModelError
from inflight.simulate.served import Served, Traffic
from inflight.simulate.steps import Step, equal_steps, rounds
from inflight.workload.lengths import Lognormal

STAT = Path("/proc/stat")
IDLE, WAITING, STOLEN = 3, 4, 7  # places in a processor's line: user nice system idle iowait irq softirq steal …
COUNTED = 8  # what follows is part of user's time


@dataclass(frozen=True, slots=True)
class Account:
    """Seconds of the usable processors up to now: in all, worked, and worked by this process. stolen: that they wanted
    to work while the host gave the time to others, part of neither."""

    total: float
    worked: float
    own: float
    stolen: float


def account(stat: Path = STAT) -> Account | None:
    """None where the system does not say."""
    usable = {f"cpu{number}" for number in os.sched_getaffinity(0)} if hasattr(os, "sched_getaffinity") else set()
    try:
        lines = [line.split() for line in stat.read_text().splitlines() if line.startswith("cpu")]
        ticks = [[int(one) for one in line[1 : 1 + COUNTED]] for line in lines if line[0] in usable]
        second = os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return None
    if not ticks or any(len(one) < COUNTED for one in ticks):
        return None
    total = sum(map(sum, ticks)) / second
    stolen = sum(one[STOLEN] for one in ticks) / second
    idle = sum(one[IDLE] + one[WAITING] for one in ticks) / second
    times = os.times()
    return Account(total, total - idle - stolen, times.user + times.system, stolen)


def others_share(before: Account | None, after: Account | None) -> float | None:
    """Of the processors' time between the two, what others had."""
    if before is None or after is None or after.total <= before.total:
        return None
    others = (after.worked - before.worked) - (after.own - before.own) + (after.stolen - before.stolen)
    return max(0.0, others) / (after.total - before.total)


SHARES = (0.4, 0.4, 0.2)  # of a round's time: designed steps, fitted traffic, judged traffic
CROWDED = 0.03  # of the processors' time, that others may have
FEWEST_STEPS, MOST_STEPS = 12, 150  # of a load in a round: fewer tell nothing, more tell nothing new
FEWEST_TOKENS, MOST_TOKENS = 1000, 24_000  # of prompts in a round of designed steps
# Where narrow steps are short, little of the rows is much of the time: hence the low loads.
LEARNT = Traffic(Lognormal(60, 500), Lognormal(40, 200), loads=(0.04, 0.15, 0.4, 1.0), seed=1)
JUDGED = Traffic(Lognormal(100, 600), Lognormal(60, 160), loads=(0.08, 0.3, 0.75), seed=2)
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Measured:
    """What is measured: the executor for designed steps, and the loop around it (or around one like it) for traffic,
    whose clock tells how long all that takes; rows that the design leaves behind are forgotten when they are started
    anew. budget: most tokens of a step.
    settings: in force, to be kept with the model. gpu: the name of the one that computes; none where the CPU does."""

    executor: Executor
    loop: EngineLoop
    budget: int
    settings: Mapping[str, Any]
    bytes_per_token: float | None = None
    gpu: str = ""


@dataclass(frozen=True, slots=True)
class _Size:
    """Of a round: prompt tokens of its design, and steps of each load of its traffics."""

    tokens: int
    learnt: int
    judged: int

    def grown(self, factors: Sequence[float]) -> _Size:
        tokens, learnt, judged = factors
        return _Size(
            int(min(MOST_TOKENS, max(FEWEST_TOKENS, tokens * self.tokens))),
            *(int(min(MOST_STEPS, max(FEWEST_STEPS, each * FEWEST_STEPS))) for each in (learnt, judged)),
        )


@dataclass(frozen=True, slots=True)
class Round:
    """designed: seconds of the steps themselves; learnt, judged: of rounds of the loop, from plan to plan. others:
    share of the processors' time that others had meanwhile, None where that is not known."""

    designed: list[Step]
    learnt: list[Step]
    judged: list[Step]
    seconds: tuple[float, float, float]  # that the three parts took
    others: float | None


class Rounds:
    """Makes one round after the other."""

    def __init__(self, measured: Measured, seconds: float, tell: Tell):
        """seconds: of a round, about. How much fits into them, a small round tells that also warms the machine up."""
        self._measured, self._served = measured, Served(measured.loop)
        self._plans = 0  # that went to the executor by hand
        self._left_behind: tuple[int, ...] = ()
        self._runs = 0
        self._size = _Size(FEWEST_TOKENS, FEWEST_STEPS, FEWEST_STEPS)
        taken = self.measure().seconds
        self._size = self._size.grown([share * seconds / each for share, each in zip(SHARES, taken, strict=True)])
        design = self._design()
        levels = ", ".join(f"{context:,} tokens in {rows} rows" for context, rows in design.levels())
        tell(
            f"A round: decodes of 1 to {design.widths()[-1]} sequences, chunks of 2 to {measured.budget} tokens "
            f"({levels}); {self._size.learnt} steps of traffic at each of {len(LEARNT.loads)} loads to be fitted, "
            f"{self._size.judged} at each of {len(JUDGED.loads)} others to judge the fit by."
        )

    def measure(self) -> Round:
        """One round. Raises StepModelError where a step fails."""
        now = self._measured.loop.clock.now
        before, times = account(), [now()]
        designed = self._run(self._design())
        times.append(now())
        learnt = self._traffic(LEARNT, self._size.learnt)
        times.append(now())
        judged = self._traffic(JUDGED, self._size.judged)
        times.append(now())
        self._runs += 1
        first, second, third = (later - one for one, later in itertools.pairwise(times))
        return Round(designed, learnt, judged, (first, second, third), others_share(before, account()))

    def _design(self) -> Design:
        return Design(self._measured.executor.capacity, self._measured.budget, self._size.tokens)

    def _run(self, design: Design) -> list[Step]:
        """Steps that start rows are left out: what starting costs depends on how long the prompts are."""
        found = []
        for plan in design.round(self._plans, self._left_behind):
            step = Step(features(plan), _seconds(self._measured.executor, plan))
            self._measured.loop.clock.passed(step.seconds)
            self._plans += 1
            if not plan.new_rows:
                found.append(step)
        self._left_behind = tuple(range(design.capacity.max_rows))
        return found

    def _traffic(self, traffic: Traffic, steps: int) -> list[Step]:
        """So many steps at each load. Lengths are cut to what the model's positions allow."""
        capacity = self._measured.executor.capacity
        longest = capacity.max_model_len // 2 - 1
        prompts, outputs = (
            Lognormal(min(each.p50, max(1.0, longest / 4)), min(each.p99, longest), longest)
            for each in (traffic.prompts, traffic.outputs)
        )
        fitting = replace(traffic, prompts=prompts, outputs=outputs)
        arrivals = fitting.arrivals(capacity, self._measured.budget, steps, self._runs)
        return rounds(self._served.run(arrivals, steps * len(traffic.loads)))


def middles(steps: Iterable[Step]) -> list[Step]:
    """Of equal steps one, with the mean of the middle half of their seconds: a stall does not move it, and where the
    machine has two speeds by turns it does not jump from one to the other, as a median would."""
    return [Step(held, _middle(seconds)) for held, seconds in equal_steps(steps).items()]


def _middle(ordered: list[float]) -> float:
    quarter = len(ordered) // 4
    return statistics.fmean(ordered[quarter : len(ordered) - quarter])


def quiet(rounds: Sequence[Round]) -> list[Round]:
    """Those in which others left the processors alone; if these are few, the quieter half."""
    ordered = sorted(rounds, key=lambda one: one.others or 0.0)
    alone = [one for one in ordered if (one.others or 0.0) <= CROWDED]
    return max(alone, ordered[: -(-len(ordered) // 2)], key=len)


def _seconds(executor: Executor, plan: BatchPlan) -> float:
    result = executor.submit(plan).result()
    if result.error is not None:
        raise StepModelError(f"A step of the calibration failed: {result.error}")
    return result.seconds
