"""Machines and demands for tests: a small step model that is fast to ask and easy to reckon with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from inflight.core.types.features import Features
from inflight.planning.demand import Drawn
from inflight.planning.machine import Machine
from inflight.workload.lengths import parse_lengths
from inflight.workload.workload import Entry, Workload


@dataclass(frozen=True)
class Linear:
    """0.1 s a step, 1 ms a token beyond that: slow, so that a run of few requests is long."""

    step: float = 0.1
    token: float = 1e-3
    name: str = "linear"

    def seconds(self, features: Features) -> float:
        return self.step + self.token * features.tokens

    def extrapolates(self, features: Features) -> str | None:
        return None


def machine(name: str = "box", blocks: int = 4096, speed: float = 1.0, **more: Any) -> Machine:
    model = Linear(0.1 / speed, 1e-3 / speed)
    slow, fast = Linear(0.12 / speed, 1.2e-3 / speed), Linear(0.08 / speed, 0.8e-3 / speed)
    given = {"max_model_len": 8192, "calibrated": True, "cases": (slow, fast), **more}
    return Machine(name, model, blocks, **given)


def drawn(rate: float = 2.0, prompt: str = "lognormal:100:400", answer: str = "lognormal:20:60", **more: Any) -> Drawn:
    return Drawn(rate, parse_lengths(prompt), parse_lengths(answer), **more)


def workload(*rows: tuple[float, int, int], **more: Any) -> Workload:
    """(arrival, prompt tokens, output tokens) each."""
    return Workload(tuple(Entry(*row) for row in rows), "made", **more)
