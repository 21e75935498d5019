"""Plans in words: the answer, its reasons, how sure it is, and what would change it.

Knows figures of plans and plain English; nothing is computed here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from inflight.planning.outlook import Change, Strategies
from inflight.planning.plan import Impossible, Plan
from inflight.planning.simulation import Trial
from inflight.planning.sizing import Candidate, Question
from inflight.planning.slo import METRICS, Slo
from inflight.planning.traffic import Traffic

WIDTH = 14


def as_text(plan: Plan) -> str:
    """The whole answer, in paragraphs."""
    lines = [
        *_head(plan),
        "",
        *_settings(plan),
        "",
        *_memory(plan),
        "",
        *_performance(plan),
        "",
        *_why(plan),
        "",
        *_changes(plan),
    ]
    if plan.strategies:
        lines += ["", *_strategies(plan)]
    if plan.mistakes:
        lines += ["", "Look out:", *(f"  - {sentence}" for sentence in plan.mistakes)]
    return "\n".join([*lines, "", *_basis(plan)])


def _head(plan: Plan) -> list[str]:
    machine, demand = plan.chosen.machine, plan.question.demand
    replicas = _count(plan.replicas, "replica")
    gpus = f" of {machine.name}, {plan.gpus:,} GPUs" if machine.memory is not None else f" of {machine.name}"
    promised = " and ".join(str(slo) for slo in plan.question.slos) or "no promise on latency"
    lines = [
        f"{replicas}{gpus} ({plan.replicas_low:,} to {plan.replicas_high:,} replicas, with all that is uncertain)",
        f"for {demand.rate:,.4g} requests/s, {_lengths(plan.traffic)}, {promised}",
    ]
    nodes = _nodes(plan)
    if nodes:
        lines.append(nodes)
    if not machine.calibrated:
        lines.append("not calibrated on your hardware: step times come from data sheets and published efficiencies")
    return lines


def _nodes(plan: Plan) -> str:
    gpu = getattr(plan.chosen.machine.model, "gpu", None)
    if gpu is None or plan.gpus <= gpu.node_gpus:
        return ""
    per_node = max(1, gpu.node_gpus // plan.chosen.machine.gpus)
    nodes = math.ceil(plan.replicas / per_node)
    return f"that is {nodes:,} nodes of {gpu.node_gpus} GPUs, {_count(per_node, 'replica')} on each"


def _lengths(traffic: Traffic) -> str:
    prompt, answer = traffic.input, traffic.output
    return (
        f"prompts of {prompt.p50 or 0:,.0f} tokens (p99 {prompt.p99 or 0:,.0f}), answers of {answer.p50 or 0:,.0f} "
        f"(p99 {answer.p99 or 0:,.0f})"
    )


def _settings(plan: Plan) -> list[str]:
    lines = ["Settings of each replica:"]
    for name, resolved in plan.setting.options().items():
        lines.append(f"  --{name} {resolved.value}: {resolved.reason}")
    return lines


def _memory(plan: Plan) -> list[str]:
    machine, traffic = plan.chosen.machine, plan.traffic
    lines = ["Memory:"]
    memory = machine.memory
    if memory is not None:
        lines += [
            f"  of {memory.memory_bytes / 1e9:,.0f} GB per GPU: weights {memory.weight_bytes / 1e9:,.1f}, activations "
            f"{memory.activation_bytes / 1e9:,.1f}, system and reserve {memory.reserve_bytes / 1e9:,.1f}, keys "
            "and values "
            f"{memory.kv_bytes / 1e9:,.1f} GB",
            f"  keys and values: {memory.kv_bytes_per_token / 1024:,.0f} KiB per token and GPU; a typical sequence "
            f"({traffic.mean_context:,.0f} tokens) takes "
            f"{memory.kv_bytes_per_token * traffic.mean_context / 1e9:,.2f} GB "
            f"per GPU; {memory.kv_bytes * machine.gpus / 1e9:,.0f} GB in all of a replica",
        ]
    lines.append(
        f"  room for {machine.tokens:,} tokens in {machine.blocks:,} blocks: at most "
        f"{machine.tokens / max(1.0, traffic.mean_context):,.0f} typical sequences at once"
    )
    return lines


def _performance(plan: Plan) -> list[str]:
    trial, demand = plan.trial, plan.question.demand
    each = demand.rate / plan.replicas
    lines = [
        f"Expected at {each:.3g} requests/s per replica ({plan.utilisation:.0%} of what it can keep):",
        f"  throughput {demand.rate * plan.traffic.output_mean:,.0f} output tokens/s and "
        f"{demand.rate * plan.traffic.input_mean:,.0f} input tokens/s in all; {trial.rows:,.0f} sequences run "
        "at once per "
        f"replica on average, steps of {trial.step_seconds * 1e3:,.0f} ms",
        f"  {'latency, ms':<12} {'p50':>18} {'p95':>18} {'p99':>18}   (from, to: seeds and uncertainty)",
    ]
    for name in METRICS:
        cells = [_cell(value, *span) for value, span in zip(trial.percentiles[name], plan.spans[name], strict=True)]
        lines.append(f"  {name.upper():<12} " + " ".join(f"{cell:>18}" for cell in cells))
    if plan.cost is not None:
        cost = plan.cost
        lines.append(
            f"  cost {cost.per_hour:,.2f} $/h: {cost.per_million_output:,.2f} $ per million output tokens, "
            f"{cost.per_million_tokens:,.2f} $ per million tokens of prompts and answers"
        )
    else:
        lines.append("  cost: no price is known; give --price, in $ per GPU and hour")
    return lines


def _cell(value: float, low: float, high: float) -> str:
    if not math.isfinite(value):
        return "-"
    return f"{value * 1e3:,.0f} ({low * 1e3:,.0f}-{high * 1e3:,.0f})"


def _why(plan: Plan) -> list[str]:
    bound = plan.binding
    words = {
        "weights": "memory: the weights leave too little of it",
        "KV": "memory for keys and values",
        "compute": "arithmetic (compute)",
        "bandwidth": "memory bandwidth",
        "link": "the link between the GPUs",
        "launch": "fixed costs of each step",
        "steps": "the measured step time (a calibrated model does not tell its parts apart)",
    }
    lines = [f"What binds: {words[bound.bound]}.", *(f"  {sentence}" for sentence in bound.sentences)]
    for other in plan.others:
        lines.append(f"  {_other(other, plan)}")
    return lines


def _other(other: Candidate, plan: Plan) -> str:
    if other.rate:
        return (
            f"{other.machine.name}: {other.rate:.3g} requests/s per replica, so that it would take "
            f"{other.gpus(plan.question.demand):,} GPUs."
        )
    broken = other.capacity.broken
    if broken is None:
        return f"{other.machine.name}: no rate was found that it keeps."
    at = f"at {broken.rate:.3g} requests/s per replica, where it would be worth it"
    return f"{other.machine.name}: {at}, {_broken(broken)}."


def _broken(trial: Trial) -> str:
    if trial.saturated and not trial.broken:
        return "it is saturated"
    if not trial.broken:
        return "requests are refused" if trial.unserved else "all promises are kept"
    slo, value = trial.broken[0]
    shown = "endless" if math.isinf(value) else f"{value * 1e3:,.0f} ms"
    return f"{slo.metric.upper()} p{slo.share * 100:g} is {shown}" + (
        ", and it is saturated" if trial.saturated else ""
    )


def _changes(plan: Plan) -> list[str]:
    lines = ["What would change it:"]
    for change in plan.changes:
        lines.append(f"  {change.name}: {_change(change, plan)}")
    return lines


def _change(change: Change, plan: Plan) -> str:
    if change.trial.met:
        kept = [
            f"{slo.metric.upper()} p{slo.share * 100:g} {value * 1e3:,.0f} ms"
            for slo, value in change.trial.values.items()
            if math.isfinite(value)
        ]
        return "still kept by the same replicas" + (f" ({', '.join(kept)})" if kept else "")
    needed = "several times as many" if change.replicas is None else f"about {change.replicas:,}"
    return f"with the same replicas {_broken(change.trial)}; it would take {needed} replicas"


def _strategies(plan: Plan) -> list[str]:
    lines = ["Strategies on the same machine, for the same promises:"]
    for one in plan.strategies:
        lines.append(f"  {one.strategy:<{WIDTH}} {_strategy(one, plan)}")
    return lines


def _strategy(one: Strategies, plan: Plan) -> str:
    if one.candidate is None:
        return f"not tried: {one.reason}"
    capacity = one.candidate.capacity
    if not one.candidate.rate:
        broken = capacity.broken
        return "keeps the promises at no rate" + (
            "" if broken is None else f": even at {broken.rate:.3g}/s {_broken(broken)}"
        )
    held = capacity.held
    latency = "" if held is None else f"; there TTFT p99 {held.percentiles['ttft'][2] * 1e3:,.0f} ms, {_itl(held)}"
    replicas = one.candidate.replicas(plan.question.demand)
    return f"{replicas:,} replicas ({one.candidate.rate:.3g} requests/s each{latency})"


def _itl(trial: Trial) -> str:
    value = trial.percentiles["itl"][2]
    return "" if math.isnan(value) else f"ITL p99 {value * 1e3:,.0f} ms"


def _basis(plan: Plan) -> list[str]:
    model, machine = plan.chosen.machine.model, plan.chosen.machine
    lines = ["What this rests on:", f"  step times: {model.name}"]
    gpu = getattr(model, "gpu", None)
    if gpu is not None:
        lines.append(f"  {gpu.name}: {gpu.provenance}")
    lines.append(f"  {_simulated(plan)}")
    samples = plan.trial.summary.requests
    lines.append(
        f"  p99 rests on {samples:,} simulated requests; {machine.name} holds blocks of {machine.block_size} tokens"
    )
    lines += [f"  {share:.0%} of the steps: {sentence}" for sentence, share in plan.trial.outside.items()]
    lines += [f"  traffic: {note}" for note in plan.traffic.notes]
    return lines


def _simulated(plan: Plan) -> str:
    number = plan.trial.replicas
    if number == 1:
        what = "one replica was simulated with the engine's own scheduler"
        more = f"; {plan.replicas:,} are taken to be that many times as much, and a good router does better"
    else:
        what = f"{number} replicas behind a least-loaded router were simulated with the engine's own scheduler"
        more = f"; {plan.replicas:,} are that many times as much, which takes the router to be as good among them"
    return what + (more if plan.extrapolated else "")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


# -- where nothing is possible ---------------------------------------------------------------------------------------


def impossible_text(answer: Impossible) -> str:
    """What is not possible, and what is: the best that each machine does with hardly any load."""
    promised = " and ".join(str(slo) for slo in answer.question.slos) or "the demand"
    lines = [
        f"No number of replicas keeps {promised}; what is possible:",
        *(f"  {_best(one, answer.question)}" for one in answer.tried),
    ]
    advice = _advice(answer)
    if advice:
        lines += ["", advice]
    if not all(one.machine.calibrated for one in answer.tried):
        lines += ["", "not calibrated on your hardware: step times come from data sheets and published efficiencies"]
    return "\n".join(lines)


def _best(one: Candidate, question: Question) -> str:
    trial = one.capacity.broken
    if trial is None:
        return f"{one.machine.name}: nothing was found."
    reached = ", ".join(
        f"{slo.metric.upper()} p{slo.share * 100:g} {_ms(value)}" for slo, value in trial.values.items()
    )
    return f"{one.machine.name} with hardly any load ({trial.rate:.2g} requests/s): {reached or _broken(trial)}."


def _ms(value: float) -> str:
    return "-" if math.isnan(value) else "endless" if math.isinf(value) else f"{value * 1e3:,.0f} ms"


def _advice(answer: Impossible) -> str:
    """The limits that the best machine could promise, with a quarter to spare for load."""
    parts = []
    for slo in answer.question.slos:
        best = min((_value(one, slo) for one in answer.tried), default=math.inf)
        if math.isfinite(best) and best > slo.limit:
            parts.append(f"{slo.metric}={math.ceil(best * 1.25e3)}(p{slo.share * 100:g})")
    if not parts:
        return ""
    return (
        f"Ask for --slo {','.join(parts)} instead (a quarter above the best, which leaves room for load), for "
        "faster GPUs, "
        "a lower --weights precision, or shorter prompts."
    )


def _value(one: Candidate, slo: Slo) -> float:
    trial = one.capacity.broken
    value = math.inf if trial is None else trial.values.get(slo, math.inf)
    return math.inf if math.isnan(value) else value


# -- for programs ----------------------------------------------------------------------------------------------------


def as_json(answer: Plan | Impossible) -> dict[str, Any]:
    """Seconds, bytes, tokens; None where something is not known or endless."""
    if isinstance(answer, Impossible):
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
        "replicas": answer.replicas,
        "replicas_interval": [answer.replicas_low, answer.replicas_high],
        "gpus": answer.gpus,
        "tensor_parallel": machine.gpus,
        "settings": {
            name: {"value": one.value, "reason": one.reason} for name, one in answer.setting.options().items()
        },
        "kv_bytes_per_sequence": None if memory is None else memory.kv_bytes_per_token * answer.traffic.mean_context,
        "kv_bytes_per_gpu": None if memory is None else memory.kv_bytes,
        "max_concurrent_sequences": int(machine.tokens / max(1.0, answer.traffic.mean_context)),
        "rate_per_replica": answer.question.demand.rate / answer.replicas,
        "highest_rate_per_replica": answer.chosen.rate,
        "utilisation": answer.utilisation,
        "output_tokens_per_s": answer.question.demand.rate * answer.traffic.output_mean,
        "input_tokens_per_s": answer.question.demand.rate * answer.traffic.input_mean,
        "latency_s": {name: _latency(answer, name) for name in METRICS},
        "binds": {"resource": answer.binding.bound, "why": list(answer.binding.sentences)},
        "cost": None
        if answer.cost is None
        else {
            "per_hour": answer.cost.per_hour,
            "per_million_output_tokens": answer.cost.per_million_output,
            "per_million_tokens": answer.cost.per_million_tokens,
        },
        "changes": [
            {"name": one.name, "kept": one.trial.met, "replicas": one.replicas, "values": _values(one.trial)}
            for one in answer.changes
        ],
        "strategies": [_strategy_json(one, answer) for one in answer.strategies],
        "mistakes": list(answer.mistakes),
        "notes": list(answer.traffic.notes),
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
        return {"strategy": one.strategy, "replicas": None, "reason": one.reason or _strategy(one, plan)}
    return {
        "strategy": one.strategy,
        "replicas": candidate.replicas(plan.question.demand),
        "rate_per_replica": candidate.rate,
    }
