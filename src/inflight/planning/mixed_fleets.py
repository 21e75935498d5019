"""Mixed fleets: engines with large steps for long prompts, and engines with small steps that decode all requests and
compute short prompts themselves, beside decodes (TaiChi, arXiv 2508.01989).

Between replicas that are all alike and pools that do one thing each, the length up to which a prompt stays with its
decode engine moves work from one pool to the other: neither must be a whole engine larger than its work. A closed form
orders splits and lengths; trials with the engine's own scheduler decide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from inflight.metrics.slo import Slo
from inflight.planning.candidate import Candidate
from inflight.planning.engine_config import EngineConfig
from inflight.planning.layouts import EXPECTED_SHARE, MIXED, SPLITS, Layout, pool_configs, prefill_rate, splits
from inflight.planning.machine import Machine
from inflight.planning.proposal import MAX_ROWS, SLACK, budgets_of
from inflight.planning.simulation import Pools
from inflight.planning.steady import full_step, mixed_step
from inflight.planning.traffic import Traffic
from inflight.planning.trial_runner import TrialRunner
from inflight.simulate.disagg import AFTER, DisaggMode, Link

QUANTILES = (0.25, 0.5, 0.75, 0.9)  # of prompts, that stay with their decode engine


@dataclass(frozen=True, slots=True)
class LocalPrompts:
    """Prompts of at most so many tokens. share: of the tokens of all prompts."""

    max_tokens: int
    share: float


def mixed_fleets(runner: TrialRunner, best: Candidate, link: Link, disagg_mode: DisaggMode = AFTER) -> list[Layout]:
    """Return the mixed fleets that look best, of up to MAX_ENGINES engines; none where all prompts are alike."""
    machine, traffic = best.machine, runner.traffic
    of_prefill, of_decode = pool_configs(runner, machine)
    prefill, found = prefill_rate(machine, traffic, of_prefill), []
    for local in _local_prompts(runner):
        config, decode = _decoding(machine, traffic, runner.question.slos, of_decode, local.share)
        mode = replace(disagg_mode, max_local_tokens=local.max_tokens)
        for first, second in splits():
            rates, engines = (first * prefill / (1 - local.share), second * decode), first + second
            pools = Pools(first, second, config, link, mode)
            found.append(Layout(MIXED, best, of_prefill, EXPECTED_SHARE * min(rates) / engines, engines, pools))
    return sorted(found, key=lambda one: -one.guess)[:SPLITS]


def _local_prompts(runner: TrialRunner) -> list[LocalPrompts]:
    """Return the prompts up to each quantile of their lengths; none where that is all of them."""
    demand = runner.question.demand
    entries = demand.workload(demand.rate, demand.sample_requests(1000), 0).entries
    lengths = sorted(one.prompt_tokens for one in entries)
    whole, found = sum(lengths), []
    for quantile in QUANTILES:
        longest = lengths[math.floor(quantile * (len(lengths) - 1))]
        share = sum(length for length in lengths if length <= longest) / whole
        if share < 1:
            found.append(LocalPrompts(longest, share))
    return found


def _decoding(
    machine: Machine, traffic: Traffic, slos: Sequence[Slo], config: EngineConfig, share: float
) -> tuple[EngineConfig, float]:
    """Return the settings of decode engines that compute a share of the prompts' tokens, and their requests/s by the
    closed form: as many rows as keep the SLOs between tokens in a mean step, and steps that keep those on single gaps
    when they are full."""
    model, per_row = machine.model, share * traffic.fresh_mean / traffic.output_mean
    pace = min((slo.limit for slo in slos if slo.paces), default=math.inf)
    gap = min((slo.limit for slo in slos if slo.bounds_gaps), default=math.inf)
    low, high = 1, min(config.max_num_seqs, MAX_ROWS)
    while low < high:
        middle = (low + high + 1) // 2
        keeps = model.seconds(mixed_step(traffic, middle, middle * per_row)) <= SLACK * pace
        low, high = (middle, high) if keeps else (low, middle - 1)
    seconds = model.seconds(mixed_step(traffic, low, low * per_row))
    budgets = [one for one in budgets_of(machine) if one >= low * (1 + per_row)] or [
        config.max_num_batched_tokens or low
    ]
    within = [one for one in budgets if full_step(model, traffic, low, one) <= SLACK * min(gap, 2 * pace)]
    budget = max(within, default=budgets[0])
    rows = min(config.max_num_seqs, budget)
    return replace(config, max_num_seqs=rows, max_num_batched_tokens=budget), low / (traffic.output_mean * seconds)
