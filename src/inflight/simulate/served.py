"""Traffic through a whole engine whose arrivals are counted in steps, not in seconds.

The same traffic makes the same plans however fast the machine is just then, so that steps of one run come again in
another, and how far equal steps lie apart is the machine's noise while it serves. Where nobody is there, the engine
rests for about as long as the steps until the next arrival would have taken. Knows the loop; not what steps cost.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections import deque
from dataclasses import dataclass, replace

from inflight.core.tenants.service import Service
from inflight.core.types.events import Event
from inflight.core.types.features import features
from inflight.core.types.plan import BatchPlan, Capacity, StepResult, Transferred, WaitUntil
from inflight.core.types.request import Request, RequestRefused
from inflight.core.types.sampling import SamplingParams
from inflight.engine.loop import EngineLoop
from inflight.simulate.fitted import StepModelError
from inflight.simulate.steps import Timed
from inflight.workload.lengths import Lognormal

LONGEST_REST = 0.1  # seconds
Arrivals = list[tuple[float, Request]]  # (step before which it comes, the request)


class Watch:
    """A observer that keeps the steps."""

    def __init__(self) -> None:
        self.steps: list[Timed] = []
        self.error: str | None = None

    def added(self, request: Request, now: float) -> None:
        """Steps alone are watched."""

    def refused(self, request: Request, refusal: RequestRefused, now: float) -> None:
        """Steps alone are watched."""

    def planned(self, plan: BatchPlan) -> None:
        """It is told again with its result."""

    def step(self, plan: BatchPlan, result: StepResult, planned: float, committed: float) -> None:
        self.error = self.error or result.error
        sequences = frozenset(chunk.sequence_id for chunk in plan.chunks)
        self.steps.append(Timed(features(plan), result.seconds, planned, committed, sequences, result.draft_seconds))

    def transferred(self, ended: tuple[Transferred, ...], now: float) -> None:
        """Steps alone are watched."""

    def served_elsewhere(self, service: Service, now: float) -> None:
        """Steps alone are watched."""

    def events(self, events: list[Event], now: float) -> None:
        """Steps alone are watched."""

    def close(self) -> None:
        """There is nothing to give back."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Poisson arrivals of prompts and outputs with these lengths in tokens, at one load after the other: shares of
    about what rows and token budget can take. The seed makes lengths and gaps."""

    prompts: Lognormal
    outputs: Lognormal
    loads: tuple[float, ...]
    seed: int

    def arrivals(self, capacity: Capacity, budget: int, steps: int, run: int) -> Arrivals:
        """For so many steps at each load. Runs differ in what prompts hold, so that they find nothing of each other in
        a prefix cache, and in nothing else."""
        rng, words = random.Random(self.seed), random.Random(f"run {run} of {self.seed}")
        lengths = [(self.prompts.draw(rng), self.outputs.draw(rng)) for _ in range(1000)]
        prompt, output = (sum(each) / len(lengths) for each in zip(*lengths, strict=True))
        gap = max(output / capacity.max_rows, (prompt + output) / budget)  # steps between arrivals at full load
        found: Arrivals = []
        at = 0.0
        while at < steps * len(self.loads):
            tokens, answer = lengths[len(found) % len(lengths)]
            request = Request(
                request_id=f"{self.seed}.{run}.{len(found)}",
                prompt_token_ids=tuple(words.choices(range(capacity.vocab_size), k=tokens)),
                params=SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=answer),
            )
            found.append((at, request))
            at += rng.expovariate(self.loads[int(at // steps)] / gap)
        return found


class Served:
    """A loop, and the steps that it makes."""

    def __init__(self, loop: EngineLoop):
        self._loop = loop
        self._watch = Watch()
        loop.watch(self._watch)

    def run(self, arrivals: Arrivals, most: int) -> list[Timed]:
        """The first steps of the arrivals. Whoever is under way then is aborted. Raises StepModelError where a step
        fails."""
        steps = self._watch.steps = []
        coming, skipped = deque(arrivals), 0.0  # skipped: steps in whose time nobody was there
        while len(steps) < most:
            early = coming[0][0] - len(steps) - skipped if coming else math.inf
            if early > 0 and not self._loop.idle:
                self._advance()
                continue
            if not coming:
                break
            if early > 0:
                self._wait(steps[-1].seconds * early if steps else 0.0)
                skipped += early
            self._add(coming.popleft()[1])
        for _, request in arrivals:
            self._loop.abort(request.request_id)
        return steps

    def _advance(self) -> None:
        outcome = self._loop.advance()
        if self._watch.error is not None:
            raise StepModelError(f"A step of the calibration failed: {self._watch.error}")
        if isinstance(outcome, WaitUntil):
            self._wait(outcome.time - self._loop.clock.now())

    def _wait(self, seconds: float) -> None:
        self._loop.clock.wait_until(self._loop.clock.now() + min(seconds, LONGEST_REST))

    def _add(self, request: Request) -> None:
        with contextlib.suppress(RequestRefused):  # admission is part of the engine as it is set
            self._loop.add(replace(request, arrival=self._loop.clock.now()))
