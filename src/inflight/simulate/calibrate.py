"""Calibrate: measure what the steps of an engine take on this machine, in a few minutes, and fit a step model to them.

Each round measures designed steps on the executor, then training and holdout traffic through the engine
(`profile_run`); every round makes the same plans. Of equal steps the trimmed mean is fitted, since the machine's speed
drifts, and their scatter is its noise; errors are those on holdout steps, which are never fitted.
"""

from __future__ import annotations

import itertools
import os
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs

from inflight.core.types.executor import Executor
from inflight.core.types.features import features
from inflight.core.types.plan import Capacity
from inflight.engine.loop import EngineLoop
from inflight.records.checked import converted
from inflight.simulate.fitted import EngineSize, FittedModel, Provenance, StepModelError
from inflight.simulate.nnls import nnls
from inflight.simulate.profile_run import Design, ProfileRun, Traffic
from inflight.simulate.sources import machine
from inflight.simulate.step_fit import fit, median_ratio, normalized, scaled
from inflight.simulate.steps import Step, equal_steps, errors_of, noise_of, rounds
from inflight.workload.lengths import Lognormal

# Rounds that the time is planned for; that are measured on a machine that turns out slower: of three, two remain where
# others used the processors, and in one alone nothing would have an equal that shows the noise.
ROUNDS, MIN_ROUNDS = 5, 3
MAX_ERROR = 0.05  # error, or noise, above which a reader must know of it
MAX_OTHERS_SHARE = 0.03  # of the processors' time
SHARES = (0.5, 0.35, 0.15)  # of a round's time: designed steps, training traffic, holdout traffic
MIN_LOAD_STEPS, MAX_LOAD_STEPS = 12, 150  # in a round: fewer show nothing, more show nothing new
MIN_PROMPT_TOKENS, MAX_PROMPT_TOKENS = 1000, 24_000  # in a round of designed steps
# Where narrow steps are short, little of the rows is much of the time: hence the low loads.
TRAINING = Traffic(Lognormal(60, 500), Lognormal(40, 200), loads=(0.04, 0.15, 0.4, 1.0), seed=1)
HOLDOUT = Traffic(Lognormal(100, 600), Lognormal(60, 160), loads=(0.08, 0.3, 0.75), seed=2)
Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class CalibrationTarget:
    """The engine that is measured.

    Args:
        executor: computes the designed steps. Rows that the design leaves behind are forgotten when they start again.
        loop: around the executor (or around one like it), for traffic; its clock measures how long all that takes.
        budget: maximum tokens of a step.
        settings: in force, to be kept with the model.
        bytes_per_token: of keys and values, if known.
        gpu: the name of the one that computes; empty where the CPU does.
    """

    executor: Executor
    loop: EngineLoop
    budget: int
    settings: Mapping[str, Any]
    bytes_per_token: float | None = None
    gpu: str = ""


@dataclass(frozen=True, slots=True)
class Round:
    """Measured steps of one round.

    designed: seconds of the steps themselves. training, holdout: of rounds of the loop, from plan to plan. seconds:
    that the three parts took. others: share of the processors' time that others had meanwhile, None: not known."""

    designed: list[Step]
    training: list[Step]
    holdout: list[Step]
    seconds: tuple[float, float, float]
    others: float | None


def calibrate(target: CalibrationTarget, seconds: float, report: Report = lambda sentence: None) -> FittedModel:
    """Measure an engine and fit a step model.

    Args:
        target: the engine.
        seconds: to measure, about, on the engine's clock.
        report: receives a sentence on what is measured, and one on what was.

    Returns:
        The model, with its errors on the holdout steps in its provenance.

    Raises:
        StepModelError: a step failed.
    """
    clock = target.loop.clock
    began = clock.now()
    profiler, measured = Rounds(target, seconds / (ROUNDS + 1), report), list[Round]()
    longest = 0.0
    while len(measured) < MIN_ROUNDS or clock.now() + longest < began + seconds:
        measured.append(profiler.measure())
        longest = max(longest, sum(measured[-1].seconds))
    used = filter_noisy(measured)
    noisy = len(measured) - len(used)
    left_out = f", of which {noisy} are left out: others used the processors" if noisy else ""
    report(f"Measured {len(measured)} rounds in {clock.now() - began:.0f} s{left_out}.")
    return _fit_with_errors(used, target)


def _fit_with_errors(measured: Sequence[Round], target: CalibrationTarget) -> FittedModel:
    """Fit the rounds' designed and training steps, and add the errors on their holdout steps."""
    designed, training, holdout = (
        list(itertools.chain.from_iterable(getattr(one, name) for one in measured))
        for name in ("designed", "training", "holdout")
    )
    model = _with_copies(fit_rounds(designed, [one.training for one in measured]), target.executor.capacity)
    others = [one.others for one in measured if one.others is not None]
    median = median_ratio(model, trimmed_means(training))
    return replace(
        model,
        provenance=Provenance(
            source="this machine's engine",
            machine=f"{target.gpu}, {machine()}" if target.gpu else machine(),
            measured=datetime.now(UTC).date().isoformat(),
            steps=len(designed) + len(training),
            held_out=errors_of(scaled(model, median), trimmed_means(holdout)),
            single=errors_of(model, holdout),
            noise=noise_of(holdout),
            usual=median,
            others=statistics.fmean(others) if others else None,
            settings=target.settings,
            capacity=_size_of(target.executor.capacity, target.bytes_per_token),
        ),
    )


def fit_rounds(designed: Sequence[Step], training: Sequence[Sequence[Step]]) -> FittedModel:
    """Fit one model to both kinds of steps.

    Args:
        designed: with the seconds of the steps themselves.
        training: with the seconds of rounds of the loop, by rounds of measuring.
    """
    alone, serving = trimmed_means(designed), trimmed_means(itertools.chain(*training))
    model = fit([*_as_served(alone, serving), *serving])
    return replace(normalized(model, *training), ranges=model.ranges)


def _as_served(alone: Sequence[Step], serving: Sequence[Step]) -> list[Step]:
    """Designed steps with what serving adds to them: a share (caches have seen other things in between), and what the
    host does for every step and every row of it. None of it is negative."""
    own = fit(alone)
    seconds = np.array([one.seconds for one in serving])
    modelled = np.array([own.seconds(one.features) for one in serving])
    rows = np.array([float(one.features.rows) for one in serving])
    columns = np.stack([modelled, np.ones(len(seconds)), rows], axis=1)
    share, step, row = nnls(columns / seconds[:, None], 1.0 - modelled / seconds)
    return [Step(one.features, (1 + share) * one.seconds + step + row * one.features.rows) for one in alone]


def _with_copies(model: FittedModel, capacity: Capacity) -> FittedModel:
    """Add the seconds of moving a block, which an engine that swaps has measured; no block was moved meanwhile."""
    known = {name: both for name, both in model.ranges.items() if name != "moved_blocks" or not capacity.copy_seconds}
    return replace(model, moved_block=capacity.copy_seconds, ranges=known)


def _size_of(capacity: Capacity, bytes_per_token: float | None) -> EngineSize:
    size = converted(structs.asdict(capacity), EngineSize)
    if capacity.windows == (0,):
        del size["windows"]
    if not capacity.state_snapshots:
        del size["state_snapshots"], size["state_blocks"]
    if bytes_per_token is not None:
        size["bytes_per_token"] = bytes_per_token
    return size


def warnings(model: FittedModel) -> list[str]:
    """Return sentences on what makes the model doubtful."""
    provenance = model.provenance
    if provenance is None:
        return []
    found = []
    if provenance.others is not None and provenance.others > MAX_OTHERS_SHARE:
        found.append(
            f"Others had {provenance.others:.0%} of the processors' time meanwhile; calibrate again when this machine "
            "is left alone."
        )
    noise, error = (each.get("all", (0.0, 0))[0] for each in (provenance.noise, provenance.held_out))
    if noise > MAX_ERROR:
        found.append(
            f"Equal steps are {noise:.1%} off their median on average: so much is this machine's noise, and no model "
            "can predict single steps better."
        )
    if error > MAX_ERROR:
        found.append(f"Steps that were not fitted are {error:.1%} off on average; look at the kinds above.")
    return found


def trimmed_means(steps: Iterable[Step]) -> list[Step]:
    """Return one of equal steps, with the mean of the middle half of their seconds: a stall does not move it, and where
    the machine has two speeds by turns it does not jump from one to the other, as a median would."""
    found = []
    for size, ordered in equal_steps(steps).items():
        quarter = len(ordered) // 4
        found.append(Step(size, statistics.fmean(ordered[quarter : len(ordered) - quarter])))
    return found


def filter_noisy(measured: Sequence[Round]) -> list[Round]:
    """Return the rounds in which others left the processors alone; if these are few, the quieter half."""
    ordered = sorted(measured, key=lambda one: one.others or 0.0)
    alone = [one for one in ordered if (one.others or 0.0) <= MAX_OTHERS_SHARE]
    return max(alone, ordered[: -(-len(ordered) // 2)], key=len)


@dataclass(frozen=True, slots=True)
class _RoundSize:
    """Prompt tokens of a round's design, and steps of each load of its traffics."""

    tokens: int
    training: int
    holdout: int

    def grown(self, factors: Sequence[float]) -> _RoundSize:
        tokens, training, holdout = factors
        return _RoundSize(
            int(min(MAX_PROMPT_TOKENS, max(MIN_PROMPT_TOKENS, tokens * self.tokens))),
            *(int(min(MAX_LOAD_STEPS, max(MIN_LOAD_STEPS, each * MIN_LOAD_STEPS))) for each in (training, holdout)),
        )


class Rounds:
    """Measures one round after the other."""

    def __init__(self, target: CalibrationTarget, seconds: float, report: Report):
        """Measure a small round, which also warms the machine up, and size the others by it.

        seconds: of a round, about."""
        self._target, self._profile_run = target, ProfileRun(target.loop)
        self._plans = 0  # that went to the executor by hand
        self._left_behind: tuple[int, ...] = ()
        self._runs = 0
        self._size = _RoundSize(MIN_PROMPT_TOKENS, MIN_LOAD_STEPS, MIN_LOAD_STEPS)
        first = self.measure()
        # Decodes of the design take as long however many prompt tokens there are to grow the contexts.
        fixed = sum(one.seconds for one in first.designed if one.features.decode_context)
        growing = [max(each, 1e-9) for each in (first.seconds[0] - fixed, *first.seconds[1:])]
        asked = [share * seconds - each for share, each in zip(SHARES, (fixed, 0.0, 0.0), strict=True)]
        self._size = self._size.grown([each / taken for each, taken in zip(asked, growing, strict=True)])
        design = self._design()
        levels = ", ".join(f"{context:,} tokens in {rows} rows" for context, rows in design.levels())
        report(
            f"A round: decodes of 1 to {design.widths()[-1]} sequences, chunks of 2 to {target.budget} tokens "
            f"({levels}); {self._size.training} steps of traffic at each of {len(TRAINING.loads)} loads to be fitted, "
            f"{self._size.holdout} at each of {len(HOLDOUT.loads)} others to judge the fit by."
        )

    def measure(self) -> Round:
        """Measure one round. Raises StepModelError where a step fails."""
        now = self._target.loop.clock.now
        before, times = read_account(), [now()]
        designed = self._run(self._design())
        times.append(now())
        training = self._traffic(TRAINING, self._size.training)
        times.append(now())
        holdout = self._traffic(HOLDOUT, self._size.holdout)
        times.append(now())
        self._runs += 1
        first, second, third = (later - one for one, later in itertools.pairwise(times))
        return Round(designed, training, holdout, (first, second, third), others_share(before, read_account()))

    def _design(self) -> Design:
        return Design(self._target.executor.capacity, self._target.budget, self._size.tokens)

    def _run(self, design: Design) -> list[Step]:
        """Run the designed steps. Steps that start rows are left out of what is returned: what starting costs depends
        on how long the prompts are."""
        found = []
        for plan in design.round(self._plans, self._left_behind):
            result = self._target.executor.submit(plan).result()
            if result.error is not None:
                raise StepModelError(f"A step of the calibration failed: {result.error}")
            self._target.loop.clock.passed(result.seconds)
            self._plans += 1
            if not plan.new_requests:
                found.append(Step(features(plan), result.seconds))
        self._left_behind = tuple(range(design.capacity.max_rows))
        return found

    def _traffic(self, traffic: Traffic, steps: int) -> list[Step]:
        """Run so many steps at each load. Lengths are cut to what the model's positions allow."""
        capacity = self._target.executor.capacity
        longest = capacity.max_model_len // 2 - 1
        prompts, outputs = (
            Lognormal(min(each.p50, max(1.0, longest / 4)), min(each.p99, longest), longest)
            for each in (traffic.prompts, traffic.outputs)
        )
        fitting = replace(traffic, prompts=prompts, outputs=outputs)
        arrivals = fitting.arrivals(capacity, self._target.budget, steps, self._runs)
        return rounds(self._profile_run.run(arrivals, steps * len(traffic.loads)))


STAT = Path("/proc/stat")
IDLE, WAITING = 3, 4  # indices in a processor's line: user nice system idle iowait irq softirq steal …
COUNTED = 8  # what follows is part of user's time


@dataclass(frozen=True, slots=True)
class Account:
    """Seconds of the usable processors up to now: in all, and worked for others than this process, other guests of the
    host among them."""

    total: float
    others: float


def read_account(stat: Path = STAT) -> Account | None:
    """Read the processors' account; None where the system does not say."""
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
    idle = sum(one[IDLE] + one[WAITING] for one in ticks) / second
    own = os.times()
    return Account(total, total - idle - own.user - own.system)


def others_share(before: Account | None, after: Account | None) -> float | None:
    """Return the share of the processors' time between the two that others had."""
    if before is None or after is None or after.total <= before.total:
        return None
    return max(0.0, after.others - before.others) / (after.total - before.total)
