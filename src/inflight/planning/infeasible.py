"""The answer where no number of replicas meets the SLOs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from inflight.metrics.slo import Slo
from inflight.planning.candidate import Candidate
from inflight.planning.question import Question
from inflight.planning.traffic import Traffic


@dataclass(frozen=True, slots=True)
class Infeasible:
    """No number of replicas meets the SLOs. tried: each with the trial at the lowest rate that was tried, whose
    percentiles are the best that are possible."""

    question: Question
    traffic: Traffic
    tried: Sequence[Candidate]

    @property
    def nearest(self) -> tuple[Candidate, Slo, float] | None:
        """Return the machine that misses its worst SLO by the least, that SLO and its percentile in seconds; None where
        none was measured, as where requests are refused."""
        missed = [
            (one, *one.capacity.missed.missed[0])
            for one in self.tried
            if one.capacity.missed is not None and one.capacity.missed.missed
        ]
        return min(missed, key=lambda each: each[2] / each[1].limit, default=None)

    @property
    def advice(self) -> str:
        """Return the SLOs that the nearest machine misses as it could meet them, with a quarter to spare for load, as
        --slo takes them."""
        if self.nearest is None:
            return ""
        trial = self.nearest[0].capacity.missed
        assert trial is not None, "it misses an SLO"
        parts = []
        for slo in self.question.slos:
            best = trial.values.get(slo, math.inf)
            if slo.limit < best < math.inf:
                of_class = f"{slo.traffic}." if slo.traffic else ""
                parts.append(f"{of_class}{slo.metric}={math.ceil(best * 1.25e3)}(p{slo.share * 100:g})")
        return ",".join(parts)
