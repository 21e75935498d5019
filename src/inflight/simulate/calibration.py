"""Calibration: what steps take on the machine at hand, from the real engine, in a few minutes.

Three parts. Designed steps (`design`) go to the executor itself, in rounds that are alike; of each step the median over
the rounds is fitted, and how far the rounds lie apart is the machine's noise. Ordinary traffic then runs through the
whole engine: it tells what the host does around the steps, and it is what the fit is judged by, for none of it was
fitted. At the end all of it is fitted together.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from inflight.core.events import Event
from inflight.core.features import Features, features
from inflight.core.plan import BatchPlan, Capacity, Executor, StepResult
from inflight.core.request import Request, RequestRefused
from inflight.engine.loop import EngineLoop
from inflight.simulate.design import Design
from inflight.simulate.fitted import FittedModel, Provenance, StepModelError
from inflight.simulate.fitting import errors_of, fit, settled
from inflight.simulate.least_squares import nnls
from inflight.simulate.requests import Requests
from inflight.simulate.sources import machine
from inflight.simulate.steps import Step, Timed, rounds
from inflight.workload.arrivals import Poisson
from inflight.workload.classes import TrafficClass
from inflight.workload.driving import Driver
from inflight.workload.lengths import Lognormal
from inflight.workload.synthetic import synthesize

ROUNDS = 3  # at least, of designed steps
SHARE = 0.6  # of the time for designed steps, the rest for traffic
MOST_TOKENS = 24_000  # of prompts in a round: more would tell nothing new
NOISY = 0.05  # median deviation of equal steps above which a reader must know of it
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Measured:
    """What is calibrated: the executor for designed steps, and the loop around it (or around one like it) for traffic;
    rows that the design leaves behind are forgotten when they are started anew. settings: in force, to be
    kept with the model."""

    executor: Executor
    loop: EngineLoop
    budget: int
    settings: Mapping[str, Any]
    bytes_per_token: float | None = None


class Watch:
    """A watcher that keeps the steps."""

    def __init__(self) -> None:
        self.steps: list[Timed] = []

    def added(self, request: Request, now: float) -> None:
        """Steps alone are watched."""

    def refused(self, request: Request, refusal: RequestRefused, now: float) -> None:
        """Steps alone are watched."""

    def planned(self, plan: BatchPlan) -> None:
        """It is told again with its result."""

    def step(self, plan: BatchPlan, result: StepResult, planned: float, committed: float) -> None:
        sequences = frozenset(chunk.sequence_id for chunk in plan.chunks)
        self.steps.append(Timed(features(plan), result.seconds, planned, committed, sequences))

    def events(self, events: list[Event], now: float) -> None:
        """Steps alone are watched."""

    def close(self) -> None:
        """There is nothing to give back."""


def calibrate(measured: Measured, seconds: float, tell: Tell = lambda sentence: None) -> FittedModel:
    """seconds: to measure, about. Raises StepModelError where the engine is too slow to see enough steps in them."""
    capacity = measured.executor.capacity
    began = time.monotonic()
    repeats = _designed(measured, began + SHARE * seconds, tell)
    designed = [Step(steps[0].held, statistics.median(one.seconds for one in steps)) for steps in repeats]
    noise = _noise(repeats)
    first = fit(designed)
    traffic = _traffic(measured, first, began + seconds, tell)
    host = _host(traffic)
    designed = [_with_host(one, host) for one in designed]
    raw = [_with_host(one, host) for steps in repeats for one in steps]
    judged = rounds(traffic)
    held_out = errors_of(settled(fit(designed), raw), judged)
    model = settled(fit([*designed, *judged]), [*raw, *judged])
    tell(f"Measured {len(raw) + len(judged):,} steps in {time.monotonic() - began:.0f} s.")
    return replace(
        model,
        provenance=Provenance(
            source="this machine's engine",
            machine=machine(),
            measured=datetime.now(UTC).date().isoformat(),
            steps=len(raw) + len(judged),
            held_out=held_out,
            noise=noise,
            settings=measured.settings,
            capacity=_told(capacity, measured.bytes_per_token),
        ),
    )


def warnings(model: FittedModel) -> list[str]:
    """Sentences for whoever is to trust the model."""
    provenance = model.provenance
    if provenance is None:
        return []
    found = []
    if provenance.noise is not None and provenance.noise > NOISY:
        found.append(
            f"Equal steps differ by {provenance.noise:.0%} in the median: something else uses this machine. Calibrate "
            "again when it is quiet, or expect answers of no better accuracy than that."
        )
    error = provenance.held_out.get("all")
    if error is not None and error[0] > NOISY:
        found.append(f"Steps that were not fitted are {error[0]:.1%} off on average; look at the kinds above.")
    return found


def _told(capacity: Capacity, bytes_per_token: float | None) -> dict[str, Any]:
    told: dict[str, Any] = {name: getattr(capacity, name) for name in Capacity.__dataclass_fields__}
    return told if bytes_per_token is None else {**told, "bytes_per_token": bytes_per_token}


# -- designed steps -------------------------------------------------------------------------------------------------


def _designed(measured: Measured, until: float, tell: Tell) -> list[list[Step]]:
    """Repeats of each step, one from each round."""
    capacity = measured.executor.capacity
    everyone = tuple(range(capacity.max_rows))
    design = Design(capacity, measured.budget, _round_tokens(measured, until))
    levels = ", ".join(f"{context:,} tokens in {rows} rows" for context, rows in design.levels())
    widest = design.widths()[-1]
    tell(f"Designed steps: decodes of 1 to {widest} sequences, chunks of 2 to {measured.budget} tokens; {levels}.")
    found: list[list[Step]] = []
    number, done = 0, 0
    while done < ROUNDS or time.monotonic() < until:
        began = time.monotonic()
        for place, plan in enumerate(design.round(number, everyone if number else everyone[:1])):
            step = Step(features(plan), _run(measured.executor, plan))
            number += 1
            if done:
                found[place].append(step)
            else:
                found.append([step])
        done += 1
        if done >= ROUNDS and time.monotonic() + (time.monotonic() - began) > until:
            break
    tell(f"{done} rounds of {len(found)} steps.")
    return found


def _round_tokens(measured: Measured, until: float) -> int:
    """Prompt tokens for which a round fits into its part of the time, by the speed of a few steps that also warm the
    machine up."""
    capacity = measured.executor.capacity
    small = Design(replace(capacity, max_rows=1), measured.budget, 4 * measured.budget)
    began, tokens = time.monotonic(), 0
    for plan in small.round(0, ()):  # leaves row 0 behind
        _run(measured.executor, plan)
        tokens += plan.tokens
    each = (time.monotonic() - began) / tokens
    left = until - time.monotonic()
    return int(min(MOST_TOKENS, max(1000, 0.6 * left / ROUNDS / each)))


def _run(executor: Executor, plan: BatchPlan) -> float:
    result = executor.submit(plan).result()
    if result.error is not None:
        raise StepModelError(f"A step of the calibration failed: {result.error}")
    return result.seconds


def _noise(repeats: Sequence[Sequence[Step]]) -> float:
    """Median over the steps of their repeats' median relative deviation."""
    deviations = []
    for steps in repeats:
        middle = statistics.median(one.seconds for one in steps)
        deviations.append(statistics.median(abs(one.seconds / middle - 1) for one in steps))
    return statistics.median(deviations)


# -- traffic --------------------------------------------------------------------------------------------------------


def _traffic(measured: Measured, model: FittedModel, until: float, tell: Tell) -> list[Timed]:
    """Steps of a Poisson stream of chat-like requests that keeps about half of the rows busy."""
    capacity = measured.executor.capacity
    watch = Watch()
    measured.loop.watch(watch)
    longest = capacity.max_model_len
    prompts = Lognormal(min(100.0, longest / 8), min(600.0, longest / 3), longest // 2 - 1)
    outputs = Lognormal(min(40.0, longest / 8), min(160.0, longest / 3), longest // 2 - 1)
    width = max(1, capacity.max_rows // 2)
    decode = model.seconds(Features(width, width, width, width * 150, 0.0))
    prompt = model.seconds(Features(150, 1, 1, 0, 150 * 75.0)) - model.seconds(Features(0, 1, 1, 0, 0.0))
    rate = 1 / (50 * decode / width + max(prompt, 0.0))
    traffic = TrafficClass(name="", share=1.0, input=prompts, output=outputs)
    workload = synthesize([traffic], arrivals=Poisson(rate), duration_s=max(5.0, until - time.monotonic()), seed=1)
    tell(f"Traffic of {rate:.2f} requests/s, by which the fit is judged.")
    driver = Driver(measured.loop, workload, Requests(workload, capacity.vocab_size, seed=1))
    driver.run(lambda: time.monotonic() > until and len(watch.steps) >= 20)
    return watch.steps


def _host(traffic: Sequence[Timed]) -> tuple[float, float]:
    """What the host does around a step: seconds, and seconds for each row of it."""
    around = [one.seconds - step.seconds for one, step in zip(rounds(traffic), traffic, strict=True)]
    rows = [step.held.rows for step in traffic]
    middles = {each: statistics.median(a for a, r in zip(around, rows, strict=True) if r == each) for each in set(rows)}
    weights = [rows.count(each) ** 0.5 for each in middles]
    matrix = np.array([[weight, weight * each] for weight, each in zip(weights, middles, strict=True)])
    found = nnls(matrix, np.array([weight * value for weight, value in zip(weights, middles.values(), strict=True)]))
    return float(found[0]), float(found[1])


def _with_host(step: Step, host: tuple[float, float]) -> Step:
    return Step(step.held, step.seconds + host[0] + host[1] * step.held.rows)
