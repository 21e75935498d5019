"""The factors that take latencies, as simulated with steps at an end of what is uncertain, to their own ends: TTFT and
TPOT of published runs are further from the predicted ones than speeds are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from inflight.metrics.observation import Observation
from inflight.simulate.efficiency import LATENCIES, latency_spread, spread
from inflight.simulate.roofline import Roofline
from inflight.simulate.steps import StepModel


@dataclass(frozen=True, slots=True)
class Widening:
    """Factors on TTFT and on TPOT; the other latencies follow from these two."""

    ttft: float = 1.0
    tpot: float = 1.0

    def __bool__(self) -> bool:
        return self != UNCHANGED

    def of_observation(self, one: Observation) -> Observation:
        """Return an observation whose first token comes later by the factor on TTFT, and each gap after it by that on
        TPOT. `ended` stays, by which rates are counted."""
        if not self or one.outcome != "completed":
            return one
        if one.first_token is None:  # a vector, which comes whole
            return replace(one, last_token=one.intended + self.ttft * one.e2e)
        before, first = one.first_token, one.intended + self.ttft * (one.first_token - one.intended)

        def moved(times: Sequence[float]) -> list[float]:
            return [first + self.tpot * (time - before) for time in times]

        last = None if one.last_token is None else moved((one.last_token,))[0]
        samples = tuple(moved(times) for times in one.sample_times)
        return replace(
            one, first_token=first, last_token=last, token_times=moved(one.token_times), sample_times=samples
        )


UNCHANGED = Widening()


def widening(model: StepModel) -> Widening:
    """Return the factors with steps of a model; none but 1 where steps were measured, or are typical."""
    if not isinstance(model, Roofline) or model.case == "typical":
        return UNCHANGED
    of_steps = spread(model.gpu.kernels, model.spec.has_experts, model.case)
    outer = max if model.case == "low" else min
    return Widening(*(outer(1.0, latency_spread(one, model.case) / of_steps) for one in LATENCIES))
