"""Costs of a plan: of its replicas all the time, of a fleet that follows the load, and of spot machines."""

from __future__ import annotations

from msgspec import Struct

from inflight.metrics.slo import SHARE
from inflight.planning.autoscaling import Autoscaling, autoscaled, start_seconds
from inflight.planning.candidate import Candidate
from inflight.planning.machine import Machine
from inflight.planning.question import Question
from inflight.planning.simulation import Trial
from inflight.planning.spot import Spot, on_spot
from inflight.planning.traffic import Traffic
from inflight.simulate.engine_costs import front_end_costs

MAX_WAIT_SECONDS = 10.0  # seconds that a request may wait where no SLO says it


class Cost(
    Struct,
    frozen=True,
    rename={
        "per_million_output": "per_million_output_tokens",
        "mean_per_million_output": "mean_per_million_output_tokens",
    },
):
    """US dollars of all replicas together. per_million_output, per_million_tokens (prompts and answers): at the planned
    rate; where answers are vectors, per million texts and their tokens. mean_per_…: at mean_rate, the load's mean in
    requests/s, which is lower where the planned rate is that of the busiest minutes: idle machines cost as much."""

    per_hour: float
    per_million_output: float
    per_million_tokens: float
    mean_per_million_output: float
    mean_per_million_tokens: float
    mean_rate: float


def cost_of(best: Candidate, replicas: int, question: Question, traffic: Traffic) -> Cost | None:
    price = best.machine.price_per_hour
    if price is None:
        return None
    output = traffic.output_mean
    both = traffic.input_mean + (0.0 if best.machine.is_pooled else output)
    per_hour = price * replicas

    def per_million(rate: float, tokens: float) -> float:
        return per_hour / (rate * tokens * 3600) * 1e6

    planned, mean = question.demand.rate, question.mean_rate
    return Cost(
        per_hour,
        per_million_output=per_million(planned, output),
        per_million_tokens=per_million(planned, both),
        mean_per_million_output=per_million(mean, output),
        mean_per_million_tokens=per_million(mean, both),
        mean_rate=mean,
    )


def autoscaling_of(question: Question, best: Candidate, replicas: int) -> Autoscaling | None:
    machine, fleet = best.machine, question.fleet
    if fleet.profile is None:
        return None
    start = _start_seconds(question, machine)
    patience, allowed = _patience(question)
    rate = question.demand.rate / replicas
    front_end, price = front_end_costs(machine.engine), machine.price_per_hour
    saturated = max(best.rate, best.proposal.steady.requests_per_s)
    saturated = saturated if front_end is None else min(saturated, 1 / front_end.request)
    return autoscaled(fleet.profile, rate, replicas, patience, allowed, start, price, saturated=saturated)


def spot_of(question: Question, best: Candidate, replicas: int, trial: Trial) -> Spot | None:
    machine, fleet = best.machine, question.fleet
    if fleet.spot_loss is None:
        return None
    start = _start_seconds(question, machine)
    price = None if fleet.spot_price is None else fleet.spot_price * machine.gpus
    seconds = trial.summary.e2e.mean or 0.0
    return on_spot(replicas, fleet.spot_loss, start, _allowed(question), seconds, machine.price_per_hour, price)


def _start_seconds(question: Question, machine: Machine) -> float:
    """Return the seconds until a new replica takes requests, as given or as estimated."""
    given = question.fleet.start_seconds
    return start_seconds(machine) if given is None else given


def _patience(question: Question) -> tuple[float, float]:
    """Return the seconds that a request may wait, and the share that may wait longer: those of the hardest SLO on TTFT,
    by its percentile first."""
    first = [slo for slo in question.slos if slo.metric == "ttft"]
    if not first:
        return MAX_WAIT_SECONDS, _allowed(question)
    hardest = max(first, key=lambda slo: (slo.of_requests, -slo.limit))
    return hardest.limit, 1 - hardest.of_requests


def _allowed(question: Question) -> float:
    """Return the share that the SLOs allow to miss them; that of p99 where there are none."""
    return 1 - max((slo.of_requests for slo in question.slos), default=SHARE)
