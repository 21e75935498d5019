"""Sizing: the rate that a machine meets the SLOs at, under which settings, and how uncertain that is.

A closed form orders the ways to split the model; trials then find the rate of each of the best, with several replicas
behind a router where the demand takes several, because a router evens out bursts. At most POOLED are simulated; beyond
that their rate is multiplied, and the answer says so.
"""

from __future__ import annotations

import math
from dataclasses import replace

from inflight.metrics.slo import Slo
from inflight.planning.candidate import Candidate, idle_prompt_seconds, whole_engines
from inflight.planning.engine_config import TOGETHER, WHOLE_PROMPTS, EngineConfig
from inflight.planning.machine import Machine
from inflight.planning.proposal import Overrides, budgets_of, propose, rows_in_memory
from inflight.planning.question import Question
from inflight.planning.rendering import sentence
from inflight.planning.search import Capacity, find_capacity
from inflight.planning.simulation import Trial
from inflight.planning.slos import max_ttft
from inflight.planning.steady import DRAIN, FILL, rows_at
from inflight.planning.traffic import Traffic
from inflight.planning.trial_requests import check_steps
from inflight.planning.trial_runner import PATIENCE, ROUGHLY, TrialRunner

POOLED = 3  # replicas that are simulated together
TOLERANCE = 0.1  # between the rate that meets the SLOs and one that does not
ROUGH = 0.25  # the same, where a rough number is enough
SIMULATED = 2  # ways to split the model that are simulated, of all that fit
MIN_EXPECTED = 0.05  # of what the closed form serves: a long prompt alone takes all of an SLO on TTFT, or nearly
HARDER_BY = 1.05  # times the replicas, where a trial misses the SLOs with the planned ones
HEADROOM = 0.85  # of saturation, where there is no SLO


def candidates(question: Question, traffic: Traffic) -> list[Candidate]:
    """Propose settings for each machine that can hold the longest request, the cheapest by the closed form first: that
    of the fewest GPUs in whole engines, and among equals the one of which they serve the most."""
    check_steps(question.overrides.max_num_batched_tokens, question.sizes.usual, traffic)
    available = math.inf if question.gpus is None else question.gpus
    fitting = [one for one in question.machines if one.tokens >= traffic.longest and one.gpus <= available]
    found = [candidate_for(question, traffic, machine, question.overrides) for machine in fitting]
    rate = math.inf if question.gpus is not None else question.demand.rate
    return sorted(found, key=lambda one: _expected_gpus(one, rate))


def _expected_gpus(candidate: Candidate, rate: float) -> tuple[float, float]:
    gpus = candidate.machine.gpus
    return 0.0 if math.isinf(rate) else gpus * whole_engines(rate / candidate.guess), gpus / candidate.guess


def candidate_for(question: Question, traffic: Traffic, machine: Machine, overrides: Overrides) -> Candidate:
    proposal = propose(machine, traffic, question.slos, overrides)
    guess = proposal.steady.requests_per_s * expected_share(machine, proposal.config, traffic, question.slos)
    residents = rows_at(machine.model, traffic, guess, proposal.config.max_num_seqs)
    alone = (FILL + DRAIN) * residents + PATIENCE * max_ttft(question.slos) * guess  # requests of one replica in a run
    together = question.sizes.most / max(1.0, alone)
    number = max(1, min(POOLED, math.ceil(question.demand.rate / guess), math.floor(together)))
    return Candidate(machine, proposal, proposal.config, guess, number)


def expected_share(machine: Machine, config: EngineConfig, traffic: Traffic, slos: tuple[Slo, ...]) -> float:
    """Return the expected share of what the closed form serves: of an SLO on TTFT, a long prompt alone takes a part."""
    shares = [0.9]
    for slo in slos:
        if slo.metric == "ttft":
            tokens = traffic.long_prompt(slo.traffic, slo.share)
            alone = idle_prompt_seconds(machine, config, tokens)
            shares.append(1 - alone / slo.limit)
        elif slo.paces:
            shares.append(0.7)
    return max(MIN_EXPECTED, min(shares))


def measure(
    runner: TrialRunner,
    candidate: Candidate,
    worth: float = 0.0,
    *,
    most: float = math.inf,
    is_rough: bool = False,
) -> Candidate:
    """Find the highest rate that meets the SLOs, with as many replicas behind a router as the demand takes, up to
    POOLED. worth: a rate below which the candidate is of no interest. most: a rate that is enough. is_rough: in fewer
    and shorter trials."""
    capacity = find_capacity(
        lambda rate: runner.run(candidate, rate, reads=ROUGHLY if is_rough else 1.0),
        max(candidate.guess, worth),
        ROUGH if is_rough or runner.question.takes_long_trials else TOLERANCE,
        5 if is_rough else 7,
        worth=worth,
        ceiling=min(most, runner.search_limit(candidate)),
        trickle_first=candidate.guess <= MIN_EXPECTED * candidate.proposal.steady.requests_per_s,
    )
    capacity = in_order(capacity)
    return replace(candidate, capacity=capacity, rate=kept_rate(runner, capacity))


def in_order(capacity: Capacity) -> Capacity:
    """Return the capacity with no miss below the rate that meets the SLOs: open conversations send less when late."""
    met, missed = capacity.met, capacity.missed
    if met is None or missed is None or missed.rate >= met.rate:
        return capacity
    return replace(capacity, missed=replace(missed, rate=met.rate))


def kept_rate(runner: TrialRunner, capacity: Capacity) -> float:
    """Return the requests/s of each replica that a search found; 0 where none meets the SLOs."""
    return 0.0 if capacity.met is None else capacity.met.rate * (1.0 if runner.question.slos else HEADROOM)


def widen(runner: TrialRunner, candidate: Candidate) -> Candidate:
    """Take a step twice as long (half as long, where an SLO between tokens was missed first), if it meets the SLOs at
    the rate that missed them."""
    missed, met = candidate.capacity.missed, candidate.capacity.met
    budget = candidate.config.max_num_batched_tokens
    fixed = runner.question.overrides.max_num_batched_tokens is not None or candidate.config.strategy in WHOLE_PROMPTS
    if missed is None or met is None or budget is None or fixed or not runner.question.slos:
        return candidate
    other = budget // 2 if missed.missed and missed.missed[0][0].paces else budget * 2
    budgets = budgets_of(candidate.machine)
    if candidate.config.max_num_seqs <= other and budgets[0] <= other <= budgets[-1]:
        more = missed.rate / met.rate - 1
        reason = f"serves {more:.0%} more within the SLOs than steps of {budget:,} tokens, the first guess"
        config = replace(candidate.config, max_num_batched_tokens=other).because("max-num-batched-tokens", reason)
        trial = runner.run(candidate, missed.rate, config=config)
        if trial.met:
            capacity = replace(candidate.capacity, met=trial, missed=None)  # the miss was of the other setting
            return replace(candidate, config=config, capacity=capacity, rate=trial.rate)
    return candidate


def with_all_rows(candidate: Candidate) -> Candidate:
    """Return the candidate with as many request slots as the closed form guessed, and its reason for them."""
    config, name = candidate.proposal.config, "max-num-seqs"
    return replace(
        candidate,
        config=replace(candidate.config, max_num_seqs=config.max_num_seqs).because(name, config.reasons.get(name, "")),
    )


def with_fewer_rows(
    candidate: Candidate, traffic: Traffic, trial: Trial, overrides: Overrides, at_least: int = 0
) -> EngineConfig:
    """Return the settings with as many request slots as the trial needed, where the closed form guessed more.

    Args:
        candidate: The machine with its settings.
        traffic: Of its demand.
        trial: At the highest rate.
        overrides: Settings that are given.
        at_least: Sequences that ran at once in other trials of the answer.
    """
    config = candidate.config
    if overrides.max_num_seqs is not None or config.strategy in TOGETHER:
        return config
    usual, peak = max(8, 8 * math.ceil((3 * trial.spent.rows + 8) / 8)), 8 * math.ceil(at_least / 8)
    needed = max(usual, peak)
    if needed >= config.max_num_seqs:
        return config
    kv_rows = rows_in_memory(candidate.machine, traffic)
    reason = sentence("why_fewer_rows", running=trial.spent.rows, kv_rows=kv_rows, peak=peak > usual)
    return replace(config, max_num_seqs=needed).because("max-num-seqs", reason)
