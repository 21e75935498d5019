"""The settings to begin with on a machine: rows that memory and the promised pace allow, tokens per step likewise.

Knows the closed form (`steady`) and the SLOs; whether the proposal holds, trials find out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.config.setting import SettingsError
from inflight.core.strategies.chunked import EARLY_END
from inflight.metrics.slo import Slo
from inflight.planning.engine_config import TOGETHER, EngineConfig
from inflight.planning.machine import WIDEST_STEP, Machine
from inflight.planning.steady import Steady, full_step, mixed_step, steady_state
from inflight.planning.traffic import Traffic

KV_SHARE = 0.9  # of the KV memory that typical sequences may fill; lengths vary, and preemption wastes work
MOST_ROWS = 1024
BUDGETS = (32, 64, 128, 256, 512, 1024, 2048, WIDEST_STEP)
NEARLY = 0.97  # of the best rate: then the smaller step, with steadier streams
SLACK = 0.9  # of a limit that a step may take
SPARE = 2.0  # rows beside those that run on average: arrivals clump


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """What the user has fixed; None: choose."""

    strategy: str = "chunked"
    policy: str = "fcfs"
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None

    def __post_init__(self) -> None:
        """Raises SettingsError for what no engine could be told."""
        rows, budget = self.max_num_seqs, self.max_num_batched_tokens
        EngineSettings(max_num_seqs=rows, max_num_batched_tokens=budget)
        if budget is not None and self.strategy in TOGETHER:
            raise SettingsError(
                f"--max-num-batched-tokens has no effect with --strategy {self.strategy}, whose batches are bounded by "
                "count; leave it out."
            )
        if rows is not None and budget is not None and budget < rows:
            raise SettingsError(
                f"--max-num-batched-tokens is {budget:,}, but {rows:,} sequences may run at once, with a token each in "
                f"every step; give at least {rows:,}, or a lower --max-num-seqs."
            )


@dataclass(frozen=True, slots=True)
class Proposal:
    config: EngineConfig
    steady: Steady  # what it would serve in balance
    kv_rows: int  # typical sequences that KV memory holds


def propose(machine: Machine, traffic: Traffic, slos: tuple[Slo, ...], overrides: Overrides) -> Proposal:
    """Settings for a machine, with reasons."""
    kv_rows = rows_in_memory(machine, traffic)
    limit = step_limit(slos)
    rows_limit = rows_for_decodes(machine, traffic, slos)
    budget = max(_budget(machine, traffic, rows_limit, limit, overrides), overrides.max_num_seqs or 1)
    steady = steady_state(machine.model, traffic, overrides.max_num_seqs or rows_limit, budget)
    spare = max(8, math.ceil(SPARE * steady.rows / 8) * 8)
    rows = overrides.max_num_seqs or max(1, min(rows_limit, spare, budget))
    config = EngineConfig(
        max_num_seqs=rows,
        max_num_batched_tokens=None if overrides.strategy in TOGETHER else budget,
        scheduling=_scheduling(machine, overrides, limit),
        reasons=_reasons(machine, traffic, overrides, rows, budget, kv_rows, rows_limit, limit, steady),
    )
    return Proposal(config, steady, kv_rows)


def rows_in_memory(machine: Machine, traffic: Traffic) -> int:
    return max(1, int(KV_SHARE * machine.sequences(traffic.mean_context)))


def rows_for_decodes(machine: Machine, traffic: Traffic, slos: tuple[Slo, ...]) -> int:
    """Sequences at most, by memory and the promised pace."""
    most = min(MOST_ROWS, machine.state_rows or MOST_ROWS)
    return min(rows_in_memory(machine, traffic), most, _rows_within(machine, traffic, mean_limit(slos)))


def step_limit(slos: tuple[Slo, ...]) -> float | None:
    """Seconds that no step may exceed, where nearly all gaps between tokens are promised."""
    return min((slo.limit for slo in slos if slo.bounds_gaps), default=None)


def mean_limit(slos: tuple[Slo, ...]) -> float | None:
    """Seconds that the mean step may take: every SLO on the pace of tokens bounds that."""
    return min((slo.limit for slo in slos if slo.paces), default=None)


def _rows_within(machine: Machine, traffic: Traffic, limit: float | None) -> int:
    """The most decodes whose step alone keeps the promised pace; at least 1."""
    if limit is None:
        return MOST_ROWS
    low, high = 1, MOST_ROWS
    while low < high:
        middle = (low + high + 1) // 2
        if machine.model.seconds(mixed_step(traffic, middle, 0)) <= SLACK * limit:
            low = middle
        else:
            high = middle - 1
    return low


def _budget(machine: Machine, traffic: Traffic, rows: int, limit: float | None, overrides: Overrides) -> int:
    """Of those whose full step keeps the limit, the smallest that serves nearly as much as the best."""
    if overrides.max_num_batched_tokens is not None:
        return overrides.max_num_batched_tokens
    if overrides.strategy == "continuous" or overrides.strategy in TOGETHER:
        return max(2048, rows)
    served = {budget: steady_state(machine.model, traffic, rows, budget) for budget in BUDGETS}
    allowed = [
        budget
        for budget, steady in served.items()
        if limit is None or full_step(machine.model, traffic, steady.rows, budget) <= SLACK * limit
    ]
    if not allowed:
        return BUDGETS[0]
    best = max(served[budget].requests_per_s for budget in allowed)
    return next(budget for budget in allowed if served[budget].requests_per_s >= NEARLY * best)


def _scheduling(machine: Machine, overrides: Overrides, limit: float | None) -> SchedulingSettings:
    target = limit if overrides.strategy == "adaptive" else None
    settings = SchedulingSettings.of(strategy=overrides.strategy, policy=overrides.policy, itl_target=target)
    return settings.ending_early(early_end(machine))


def early_end(machine: Machine) -> int:
    """Tokens from which its steps end with the prompt that they complete; 0: they are filled."""
    return 0 if machine.on_gpu else EARLY_END


def _reasons(
    machine: Machine,
    traffic: Traffic,
    overrides: Overrides,
    rows: int,
    budget: int,
    kv_rows: int,
    rows_limit: int,
    limit: float | None,
    steady: Steady,
) -> dict[str, str]:
    if overrides.max_num_seqs is not None:
        why_rows = "as set"
    elif rows == rows_limit == kv_rows:
        why_rows = f"as many as KV memory holds at {traffic.mean_context:,.0f} tokens each, with a tenth to spare"
    elif rows == rows_limit == machine.state_rows:
        why_rows = (
            f"as many as have memory set aside for their recurrent states; keys and values would do for {kv_rows:,}"
        )
    elif rows == rows_limit and rows < MOST_ROWS:
        why_rows = "more would make a step of decodes alone longer than the promised pace"
    else:
        why_rows = (
            f"about twice the {steady.rows:,.0f} that run at capacity, so that clumps find a place; KV memory would "
            f"hold {kv_rows:,}"
        )
    full = full_step(machine.model, traffic, min(rows, steady.rows), budget)
    if overrides.max_num_batched_tokens is not None:
        why_budget = "as set"
    elif overrides.max_num_seqs == budget:
        why_budget = f"a token for each of the {rows:,} sequences; a full step takes {full * 1e3:,.0f} ms"
    elif limit is not None:
        why_budget = f"a full step takes {full * 1e3:,.0f} ms, within the {limit * 1e3:,.0f} ms promised between tokens"
    else:
        why_budget = (
            f"the smallest that serves within {1 - NEARLY:.0%} of the most; a full step takes {full * 1e3:,.0f} ms, "
            "which running streams wait at worst"
        )
    strategies = {
        "chunked": "prompts are computed in pieces beside the running streams, which never wait for a whole one",
        "adaptive": "as chunked, with the step's size set anew each time to hold the promise between tokens",
    }
    why_end = (
        "a step that completes a prompt ends with it, so that its first token does not wait for pieces of others"
        if not machine.on_gpu
        else "steps are filled: on a GPU one of few tokens takes about as long as one of many"
    )
    return {
        "early-end-tokens": why_end,
        "strategy": strategies.get(overrides.strategy, "as set"),
        "policy": "nothing in the question asks for another order" if overrides.policy == "fcfs" else "as set",
        "max-num-seqs": why_rows,
        "max-num-batched-tokens": why_budget,
        "preemption": "memory is sized so that it hardly ever happens",
    }
