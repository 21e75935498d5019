"""How many requests a trial has: enough for the SLOs' percentiles, and no more than can be simulated."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from inflight.config.setting import SettingsError
from inflight.metrics.confidence import min_samples
from inflight.metrics.slo import Slo
from inflight.planning.traffic import Traffic

SPARE_REQUESTS = 1.1  # times the requests that are needed, since chance decides which are in the measured part
PROGRAMS = 60  # that a trial of a search measures at most: one has many requests
MAX_PROMPT_STEPS = 25_000  # of a trial: two or three seconds, of which a plan takes dozens
MIN_SHARE = 0.02  # of a class in the requests: of a smaller one fewer are measured than decide


class Requests(NamedTuple):
    """Requests of a trial: fewest and usual are measured, most are offered. decisive: measured at least, where the
    answer depends on one trial. programs: that decide the SLOs on these, in requests; a search measures PROGRAMS of
    them at most."""

    fewest: int
    usual: int
    most: int
    decisive: int = 0
    programs: int = 0


def requests_for(
    slos: Sequence[Slo], shares: Mapping[str, float] | None = None, program_shares: Mapping[Slo, float] | None = None
) -> Requests:
    """Return the requests of a trial: enough for the upper end of each percentile's interval. A run that fills and
    drains long measures a third of its requests (`steady`).

    Args:
        slos: Whose percentiles are measured.
        shares: Of classes in the requests, whose SLOs take as many requests of their own.
        program_shares: Programs of a request, of each SLO on them.
    """
    shares, program_shares = shares or {}, program_shares or {}
    of_requests = [slo for slo in slos if not slo.is_of_programs]
    needed = [min_samples(slo.share) / max(MIN_SHARE, share) for slo, share in program_shares.items()]
    searched = [min(min_samples(slo.share), PROGRAMS) / max(MIN_SHARE, share) for slo, share in program_shares.items()]
    searched += [min_samples(slo.of_requests) / max(MIN_SHARE, shares.get(slo.traffic, 1.0)) for slo in of_requests]
    fewest = math.ceil(max(searched, default=0))
    decisive, programs = (math.ceil(SPARE_REQUESTS * most) for most in (fewest, max(needed, default=0)))
    return Requests(250, max(450, decisive), max(1000, 3 * decisive), decisive, programs)


def check_steps(budget: int | None, requests: int, traffic: Traffic) -> None:
    """Raise SettingsError where trials would take hours. budget: tokens of a step, as the user fixed them; requests: of
    a trial."""
    tokens = requests * traffic.fresh_mean
    if budget is not None and tokens / budget > MAX_PROMPT_STEPS:
        raise SettingsError(
            f"--max-num-batched-tokens is {budget:,}: the prompts of one trial ({requests:,} of "
            f"{traffic.input_mean:,.0f} tokens) take {tokens / budget:,.0f} steps, too many to simulate; give at least "
            f"{math.ceil(tokens / MAX_PROMPT_STEPS):,}."
        )
