"""Plans as data, for programs: the answer of `text` without the words."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from inflight.metrics.slo import METRICS
from inflight.planning.layout_verdict import layout_data
from inflight.planning.outlook import Strategies
from inflight.planning.plan import Cost, Infeasible, Plan
from inflight.planning.simulation import Trial
from inflight.planning.speculation import SpeculationOutlook
from inflight.planning.wording import what_it_needs


def as_data(answer: Plan | Infeasible) -> dict[str, Any]:
    """Seconds, bytes, tokens; None where something is not known or endless."""
    if isinstance(answer, Infeasible):
        return {
            "possible": False,
            "slos": [str(slo) for slo in answer.question.slos],
            "best": [{"machine": one.machine.name, "values": _values(one.capacity.broken)} for one in answer.tried],
        }
    machine, memory = answer.chosen.machine, answer.chosen.machine.memory
    return {
        "possible": True,
        "calibrated": machine.calibrated,
        "machine": machine.name,
        "device": machine.device,
        "steps_in_flight": machine.depth,
        "replicas": answer.replicas,
        "replicas_interval": [answer.replicas_low, answer.replicas_high],
        "gpus": answer.gpus,
        "nodes": answer.nodes,
        "tensor_parallel": machine.gpus,
        "settings": {name: {"value": one.value, "reason": one.reason} for name, one in answer.config.options().items()},
        "kv_bytes_per_sequence": None if memory is None else memory.kv_bytes_per_token * answer.traffic.mean_context,
        "kv_bytes_per_gpu": None if memory is None else memory.kv_bytes,
        "max_concurrent_sequences": int(machine.sequences(answer.traffic.mean_context)),
        "kept": answer.trial.met,
        "rate_per_replica": answer.question.demand.rate / answer.replicas,
        "highest_rate_per_replica": answer.chosen.rate,
        "utilisation": answer.utilisation,
        "output_tokens_per_s": answer.question.demand.rate * answer.traffic.output_mean,
        "input_tokens_per_s": answer.question.demand.rate * answer.traffic.input_mean,
        "latency_s": {name: _latency(answer, name) for name in METRICS},
        "binds": {
            "resource": answer.bottleneck.bound,
            "why": list(answer.bottleneck.sentences),
            "relief": answer.bottleneck.relief,
        },
        "cost": None if answer.cost is None else _cost(answer.cost),
        "changes": [
            {"name": one.name, "kept": one.trial.met, "replicas": one.replicas, "values": _values(one.trial)}
            for one in answer.changes
        ],
        "strategies": [_strategy_json(one, answer) for one in answer.strategies],
        "routers": [
            {"router": one.router, "replicas": one.replicas, "cached_share": one.cached} for one in answer.routers
        ],
        "layouts": None if answer.layouts is None else layout_data(answer.layouts),
        "speculation": None if answer.speculation is None else _speculation(answer.speculation),
        "mistakes": list(answer.warnings),
        "notes": list(answer.traffic.notes),
    }


def _speculation(outlook: SpeculationOutlook) -> dict[str, Any]:
    without, with_drafts = outlook.tpot
    return {
        "acceptance": list(outlook.drafts.acceptance.chances),
        "tpot_s": {"without": _finite(without), "with": _finite(with_drafts)},
        "output_tokens_per_busy_s": {
            "without": outlook.plain.busy_tokens_per_s,
            "with": outlook.trial.busy_tokens_per_s,
        },
        "steps_with_drafts": outlook.drafted.steps_share,
        "tokens_with_drafts": outlook.drafted.tokens,
        "worth_it": outlook.is_worth_it,
    }


def _cost(cost: Cost) -> dict[str, float]:
    return {
        "per_hour": cost.per_hour,
        "per_million_output_tokens": cost.per_million_output,
        "per_million_tokens": cost.per_million_tokens,
        "mean_per_million_output_tokens": cost.mean_per_million_output,
        "mean_per_million_tokens": cost.mean_per_million_tokens,
    }


def _latency(plan: Plan, name: str) -> dict[str, Any]:
    labels: Iterable[str] = ("p50", "p95", "p99")
    return {
        label: {"expected": _finite(value), "from": _finite(span[0]), "to": _finite(span[1])}
        for label, value, span in zip(labels, plan.trial.percentiles[name], plan.spans[name], strict=True)
    }


def _values(trial: Trial | None) -> dict[str, float | None]:
    return {} if trial is None else {str(slo): _finite(value) for slo, value in trial.values.items()}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _strategy_json(one: Strategies, plan: Plan) -> dict[str, Any]:
    candidate = one.candidate
    if candidate is None or not candidate.rate:
        return {"strategy": one.strategy, "replicas": None, "reason": what_it_needs(one, plan.question.demand)}
    return {
        "strategy": one.strategy,
        "replicas": candidate.replicas(plan.question.demand),
        "rate_per_replica": candidate.rate,
    }
