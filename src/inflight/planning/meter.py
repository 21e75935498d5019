"""Meter the steps of a trial: their time by class of work and by bottleneck, and the sequences of a step."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import NamedTuple

from inflight.core.types.features import Features
from inflight.simulate.costs import Cost
from inflight.simulate.steps import StepModel


class Spent(NamedTuple):
    """Time of steps. rows: sequences of a step, mean over their time. step_seconds: of a step. by_kind: (class of work,
    its bottleneck) → share of the time, where the step model separates them."""

    rows: float
    step_seconds: float
    by_kind: Mapping[tuple[str, str], float]

    @property
    def by_bound(self) -> dict[str, float]:
        """Return the shares of the time by bottleneck; empty where the step model does not separate them."""
        shares: dict[str, float] = {}
        for (_, bound), share in self.by_kind.items():
            shares[bound] = shares.get(bound, 0.0) + share
        return shares


class Meter:
    """A step model that records the steps that are taken. It has no clock: prompt tokens computed so far, which come as
    requests do, say how far a run is."""

    def __init__(self, model: StepModel):
        self.model, self.name, self.extrapolates = model, model.name, model.extrapolates
        self._costs: Callable[[Features], tuple[Cost, ...]] | None = getattr(model, "costs", None)
        self.peak_rows = 0  # of a step
        self._asked: dict[Features, tuple[float, tuple[Cost, ...]]] = {}  # steps that were asked about
        self._prompts = 0.0  # tokens of prompts so far
        self._steps: list[tuple[float, int, float, tuple[Cost, ...]]] = []  # prompt tokens so far, rows, seconds

    def seconds(self, features: Features) -> float:
        costs = () if self._costs is None else self._costs(features)
        seconds = sum([cost.seconds for cost in costs]) if costs else self.model.seconds(features)
        self._asked[features] = seconds, costs
        return seconds

    def count(self, features: Features) -> None:
        """Record a step that was asked about: others were only foreseen, and did not happen."""
        self.peak_rows = max(self.peak_rows, features.rows)
        self._prompts += features.tokens - features.samples
        self._steps.append((self._prompts, features.rows, *self._asked[features]))

    @property
    def prompts(self) -> float:
        """Return the tokens of prompts that were computed."""
        return self._prompts

    def spent(self, begin: float, end: float) -> Spent:
        """Return the time of steps between two shares of the run's prompt tokens; the steps after its last prompt, in
        which the batch empties, are in no share."""
        first, last = begin * self._prompts, end * self._prompts
        taken = [step for step in self._steps if first <= step[0] < last] or self._steps
        busy = max(1e-12, math.fsum(seconds for _, _, seconds, _ in taken))
        by_kind: dict[tuple[str, str], float] = defaultdict(float)
        for _, _, _, costs in taken:
            for cost in costs:
                by_kind[cost.kind, cost.bound] += cost.seconds / busy
        rows = math.fsum(rows * seconds for _, rows, seconds, _ in taken) / busy
        return Spent(rows, busy / max(1, len(taken)), by_kind)
