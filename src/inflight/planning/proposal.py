"""Propose the settings that trials of a machine begin with: request slots and tokens per step, by the closed form."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.config.setting import SettingsError
from inflight.core.strategies.chunked import EARLY_END
from inflight.metrics.slo import Slo
from inflight.planning.engine_config import TOGETHER, WHOLE_PROMPTS, EngineConfig
from inflight.planning.machine import WIDEST_STEP, Machine
from inflight.planning.rendering import sentence
from inflight.planning.steady import Steady, full_step, mixed_step, prompt_seconds, steady_state
from inflight.planning.traffic import Traffic

KV_SHARE = 0.9  # of the KV memory that typical sequences may fill; lengths vary, and preemption wastes work
MAX_ROWS = 1024  # of each data-parallel group
USUAL_STEP = 2048  # tokens of each batch that a step consists of, where none are looked for
BUDGETS = (32, 64, 128, 256, 512, 1024, 2048, WIDEST_STEP)  # the same that are looked at
NEARLY = 0.97  # of the best rate: then the smaller step, with steadier streams
SLACK = 0.9  # of a limit that a step may take
PROMPT_SHARE = 0.5  # of an SLO on TTFT that a long prompt alone may take; the rest is for waiting
PROMPT_NEARLY, PROMPT_SLOWEST = 1.1, 2.0  # times the fastest: within it in any case, and never beyond it
SPARE_ROWS = 2.0  # times the mean number of running sequences: arrivals clump


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """Settings that the user fixed; None: to be chosen. Raises SettingsError for those that no engine accepts."""

    strategy: str = "chunked"
    policy: str = "fcfs"
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None

    def __post_init__(self) -> None:
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


class Proposal(NamedTuple):
    """steady: the closed form under `config`."""

    config: EngineConfig
    steady: Steady


def propose(machine: Machine, traffic: Traffic, slos: tuple[Slo, ...], overrides: Overrides) -> Proposal:
    """Propose settings for a machine, with reasons."""
    kv_rows = rows_in_memory(machine, traffic)
    limit, rows_limit = step_limit(slos), rows_for_decodes(machine, traffic, slos)
    budget = max(_budget(machine, traffic, rows_limit, slos, overrides), overrides.max_num_seqs or 1)
    whole = overrides.strategy in WHOLE_PROMPTS
    most = max(budget, machine.max_model_len) if whole else budget  # tokens of a step
    steady = steady_state(machine.model, traffic, overrides.max_num_seqs or rows_limit, most)
    spare = max(8, math.ceil(SPARE_ROWS * steady.rows / 8) * 8)
    rows = overrides.max_num_seqs or max(1, min(rows_limit, spare, budget))
    target = limit if overrides.strategy == "adaptive" else None
    scheduling = SchedulingSettings.of(strategy=overrides.strategy, policy=overrides.policy, itl_target=target)
    if overrides.max_num_seqs is not None:
        bound = "set"
    elif rows == rows_limit and rows in (kv_rows, machine.state_rows):
        bound = "memory" if rows == kv_rows else "states"
    else:
        bound = "pace" if rows == rows_limit < _max_rows(machine) else "spare"
    step = full_step(machine.model, traffic, min(rows, steady.rows), most)
    reasons = {
        "early-end-tokens": sentence("why_early_end", on_gpu=machine.on_gpu),
        "strategy": sentence(
            "why_strategy", strategy=overrides.strategy, whole=machine.is_encoder_only, pooled=machine.is_pooled
        ),
        "policy": sentence("why_policy", policy=overrides.policy),
        "max-num-seqs": sentence(
            "why_rows", bound=bound, context=traffic.mean_context, running=steady.rows, kv_rows=kv_rows
        ),
        "max-num-batched-tokens": sentence(
            "why_budget",
            pooled=machine.is_pooled,
            most=most if whole else None,
            is_set=overrides.max_num_batched_tokens is not None,
            rows=rows if overrides.max_num_seqs == budget else None,
            step=step,
            limit=limit,
            nearly=1 - NEARLY,
        ),
        "preemption": "memory is sized so that it hardly ever happens",
    }
    config = EngineConfig(
        max_num_seqs=rows,
        max_num_batched_tokens=None if overrides.strategy in TOGETHER else budget,
        scheduling=scheduling.ending_early(early_end(machine)),
        reasons=reasons,
    )
    return Proposal(config, steady)


def rows_in_memory(machine: Machine, traffic: Traffic) -> int:
    """Return how many typical sequences may fill the KV memory."""
    return max(1, int(KV_SHARE * machine.sequences(traffic.mean_context)))


def rows_for_decodes(machine: Machine, traffic: Traffic, slos: tuple[Slo, ...]) -> int:
    """Return the sequences that may decode at once, by memory and by the SLOs on the time between tokens."""
    limit = min((slo.limit for slo in slos if slo.paces), default=math.inf)  # bounds the mean step
    low, high = 1, _max_rows(machine)
    while low < high:
        middle = (low + high + 1) // 2
        if machine.model.seconds(mixed_step(traffic, middle, 0)) <= SLACK * limit:
            low = middle
        else:
            high = middle - 1
    return min(rows_in_memory(machine, traffic), machine.state_rows or low, low)


def _max_rows(machine: Machine) -> int:
    return MAX_ROWS * machine.parallelism.data_attention


def budgets_of(machine: Machine) -> tuple[int, ...]:
    """Return the tokens of a step that are looked at, of all data-parallel groups and pipeline stages together."""
    return tuple(budget * machine.parallelism.batches for budget in BUDGETS)


def usual_budget(machine: Machine, rows: int) -> int:
    """Return the tokens of a step in the closed form, with so many sequences, where a strategy has no budget; of whole
    prompts those of a forward pass."""
    return max(USUAL_STEP * machine.parallelism.batches, rows)


def step_limit(slos: tuple[Slo, ...]) -> float | None:
    """Return the seconds that no step may exceed, where an SLO bounds nearly all gaps between tokens."""
    return min((slo.limit for slo in slos if slo.bounds_gaps), default=None)


def early_end(machine: Machine) -> int:
    """Return the tokens from which steps end with the prompt that they complete; 0: they are filled."""
    return 0 if machine.on_gpu else EARLY_END


def _budget(machine: Machine, traffic: Traffic, rows: int, slos: tuple[Slo, ...], overrides: Overrides) -> int:
    """Return the smallest budget that serves nearly as much as the best, of those whose full step keeps the limit
    between tokens and in which a long prompt alone leaves enough of an SLO on TTFT."""
    if overrides.max_num_batched_tokens is not None:
        return overrides.max_num_batched_tokens
    if overrides.strategy in (*WHOLE_PROMPTS, *TOGETHER):
        return usual_budget(machine, rows)
    model, limit, budgets = machine.model, step_limit(slos), budgets_of(machine)
    served = {budget: steady_state(model, traffic, rows, budget) for budget in budgets}

    def keeps(budget: int) -> bool:
        return limit is None or full_step(model, traffic, served[budget].rows, budget) <= SLACK * limit

    # Where no step keeps the limit, it is missed in any case, and the prompt decides.
    allowed = list(filter(keeps, budgets)) or list(budgets)
    tightest = min((slo for slo in slos if slo.metric == "ttft"), key=lambda slo: slo.limit, default=None)
    tokens = traffic.long_prompt("" if tightest is None else tightest.traffic)
    alone = {budget: prompt_seconds(model, tokens, budget) for budget in allowed}
    ttft = math.inf if tightest is None else PROMPT_SHARE * tightest.limit
    fastest = min(alone.values())
    longest = max(PROMPT_NEARLY * fastest, min(ttft, PROMPT_SLOWEST * fastest))
    quick = [budget for budget in allowed if alone[budget] <= longest]
    best = max(served[budget].requests_per_s for budget in quick)
    return next(budget for budget in quick if served[budget].requests_per_s >= NEARLY * best)
