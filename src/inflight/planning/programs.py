"""Programs of a trial: the time from the first call of a conversation, or of an agent's run, to the end of its last.

A trial ends while programs are running. One that has not ended after the limit of its SLO has missed it; so those count
that began at least as long before the end of the trial, whether or not they ended. Of those that began later only the
short ones would have ended.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from inflight.metrics.observation import Observation, programs
from inflight.metrics.slo import Slo, SloError
from inflight.planning.demand import Demand
from inflight.planning.mixture import Mixed


@dataclass(frozen=True, slots=True)
class Span:
    """The part of a run in which programs begin that are measured. until: nothing is sent from this second on; None:
    all is sent."""

    begin: float
    end: float
    until: float | None = None

    def times(self, observations: Sequence[Observation], slo: Slo) -> list[float]:
        """Return the seconds of the programs that an SLO is about, sorted. One that was still running at the end has
        what it took until then, which is more than the limit; one with a refused call is infinite.

        Args:
            observations: Of the whole run, also of calls that were not sent.
            slo: On programs.
        """
        latest = self.end if self.until is None else self.until - slo.limit
        found = []
        for one in programs(observations):
            if self.begin <= one.begins <= latest and slo.traffic in ("", one.traffic):
                cut_off = None if one.ends is not None or one.refused else self.until
                found.append(one.seconds if cut_off is None else cut_off - one.begins)
        return sorted(found)


def check_programs(slos: Sequence[Slo], demand: Demand) -> None:
    """Raise SloError for an SLO on programs of a demand that has none, or whose tools alone take longer."""
    for slo in slos:
        if not slo.is_of_programs:
            continue
        if not program_share(demand, slo):
            whose = f"the class {slo.traffic}" if slo.traffic else "the demand"
            raise SloError(
                f"--slo has {slo}, the time of whole programs, but {whose} has single requests; give it --turns (or "
                "turns of a class), or limit e2e."
            )
        assert isinstance(demand, Mixed)
        classes = [one for one in demand.classes if slo.traffic in ("", one.name)]
        thinking = max(demand.conversations.think_seconds(one) for one in classes)
        if thinking > slo.limit and slo.share >= 0.5:
            raise SloError(
                f"--slo has {slo}, but the time between an answer and the next call (--think) alone takes "
                f"{thinking * 1e3:,.0f} ms of a program on average; give a limit above that, or fewer --turns."
            )


def program_share(demand: Demand, slo: Slo) -> float:
    """Return the programs that an SLO is about, as a share of all requests; 0: there are none, or they are recorded at
    times that no answer moves."""
    return demand.conversations.programs_per_request(slo.traffic) if isinstance(demand, Mixed) else 0.0


def max_seconds(slos: Sequence[Slo]) -> float:
    """Return the seconds that a program may take by the SLOs; 0 without one on programs."""
    return max((slo.limit for slo in slos if slo.is_of_programs and math.isfinite(slo.limit)), default=0.0)
