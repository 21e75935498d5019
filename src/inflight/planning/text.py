"""Plans in words: the answer, its reasons, how sure it is, and what would change it.

Knows figures of plans and plain English; nothing is computed here but what could be promised instead of SLOs
that no number of machines keeps.
"""

from __future__ import annotations

import math

from inflight.config.engine import describe_engine
from inflight.counted import counted
from inflight.metrics.slo import METRICS, Slo
from inflight.planning.layout_verdict import describe as describe_layouts
from inflight.planning.outlook import Change
from inflight.planning.plan import Infeasible, Plan
from inflight.planning.routers import describe as describe_routers
from inflight.planning.sizing import Candidate, Question
from inflight.planning.speculation import describe
from inflight.planning.traffic import Traffic
from inflight.planning.wording import NOT_CALIBRATED, how_broken, milliseconds, what_it_needs

WIDTH = 14
NEARLY = 0.95  # of the planned rate: then the mean one is not told apart


def as_text(plan: Plan | Infeasible) -> str:
    """The whole answer, in paragraphs."""
    if isinstance(plan, Infeasible):
        return _infeasible(plan)
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
    if plan.routers:
        about = "Routers before the replicas, for the same promises:"
        lines += ["", about, *(f"  {sentence}" for sentence in describe_routers(plan.routers))]
    if plan.layouts is not None:
        about = "Layouts on the same machine, for the same promises:"
        lines += ["", about, *(f"  {sentence}" for sentence in describe_layouts(plan.layouts))]
    if plan.speculation is not None:
        lines += ["", "Speculation at this load:", *(f"  {sentence}" for sentence in describe(plan.speculation))]
    if plan.warnings:
        lines += ["", "Look out:", *(f"  - {sentence}" for sentence in plan.warnings)]
    return "\n".join([*lines, "", *_basis(plan)])


def _head(plan: Plan) -> list[str]:
    machine, demand = plan.chosen.machine, plan.question.demand
    promised = " and ".join(str(slo) for slo in plan.question.slos) or "no promise on latency"
    lines = [
        f"{counted(plan.replicas, 'replica')} of {machine.name}{_nodes(plan)}",
        f"for {demand.rate:,.4g} requests/s whose gaps have a CV of {math.sqrt(plan.traffic.gap_variation):.2g}, "
        f"{_lengths(plan.traffic)}; {promised}",
        *_interval(plan),
    ]
    return lines if machine.calibrated else [*lines, NOT_CALIBRATED]


def _nodes(plan: Plan) -> str:
    gpu = getattr(plan.chosen.machine.model, "gpu", None)
    if gpu is None or plan.nodes is None:
        return ""
    if plan.nodes == 1:
        return f": {counted(plan.gpus, 'GPU')}, on one node of {gpu.node_gpus}"
    return f": {plan.nodes:,} nodes of {gpu.node_gpus} GPUs, {counted(plan.replicas_per_node, 'replica')} on each"


def _interval(plan: Plan) -> list[str]:
    """Replicas at both ends of what is uncertain."""
    if not plan.chosen.machine.cases:
        return []
    what = "the error on held-out steps" if plan.chosen.machine.calibrated else "all that is uncertain of step times"
    few, many = plan.replicas_low, plan.replicas_high
    if many is None:
        return [f"at least {counted(few, 'replica')}: with {what} at its slow end no number of them keeps the promises"]
    return [f"interval: {few:,} to {many:,} replicas, with {what} at its fast and at its slow end, both simulated"]


def _lengths(traffic: Traffic) -> str:
    prompt, answer = traffic.input, traffic.output
    return (
        f"prompts of {prompt.p50 or 0:,.0f} tokens (p99 {prompt.p99 or 0:,.0f}), answers of {answer.p50 or 0:,.0f} "
        f"(p99 {answer.p99 or 0:,.0f})"
    )


def _settings(plan: Plan) -> list[str]:
    options = plan.config.options().items()
    return ["Settings of each replica:", *(f"  --{name} {one.value}: {one.reason}" for name, one in options)]


def _memory(plan: Plan) -> list[str]:
    machine, traffic = plan.chosen.machine, plan.traffic
    lines = ["Memory:"]
    memory = machine.memory
    if memory is not None:
        typical = memory.kv_bytes_per_token * traffic.mean_context
        lines += [
            f"  of {memory.memory_bytes / 1e9:,.0f} GB per GPU: weights {memory.weight_bytes / 1e9:,.1f}, activations "
            f"{memory.activation_bytes / 1e9:,.1f}, system and reserve {memory.reserve_bytes / 1e9:,.1f}, keys and "
            f"values {memory.kv_bytes / 1e9:,.1f} GB"
            + (
                f", recurrent states {memory.state_bytes / 1e9:,.1f} GB (with {memory.state_snapshots} snapshots)"
                if memory.state_bytes
                else ""
            )
            + (f", adapters {memory.adapter_bytes / 1e9:,.1f} GB" if memory.adapter_bytes else ""),
            f"  keys and values: {memory.kv_bytes_per_token / 1024:,.0f} KiB per token and GPU; a typical sequence "
            f"({traffic.mean_context:,.0f} tokens) takes {typical / 1e9:,.2f} GB per GPU; "
            f"{memory.kv_bytes * machine.gpus / 1e9:,.0f} GB in all of a replica",
        ]
    lines.append(
        f"  room for {machine.tokens:,} tokens in {machine.blocks:,} blocks: at most "
        f"{int(machine.sequences(traffic.mean_context)):,} typical sequences at once"
    )
    return lines


def _performance(plan: Plan) -> list[str]:
    trial, demand, spent = plan.trial, plan.question.demand, plan.trial.spent
    lines = [
        f"Expected at {demand.rate / plan.replicas:.3g} requests/s per replica ({plan.utilisation:.0%} of what it can "
        "keep):",
        f"  throughput {demand.rate * plan.traffic.output_mean:,.0f} output tokens/s and "
        f"{demand.rate * plan.traffic.input_mean:,.0f} input tokens/s in all; {spent.rows:,.0f} sequences run at once "
        f"per replica on average, steps of {spent.step_seconds * 1e3:,.0f} ms",
        f"  {'latency, ms':<12} {'p50':>18} {'p95':>18} {'p99':>18}   (from, to: seeds and uncertainty)",
    ]
    for name in METRICS:
        cells = [_cell(value, *span) for value, span in zip(trial.percentiles[name], plan.spans[name], strict=True)]
        lines.append(f"  {name.upper():<12} " + " ".join(f"{cell:>18}" for cell in cells))
    return [*lines, *_cost(plan)]


def _cost(plan: Plan) -> list[str]:
    cost, demand = plan.cost, plan.question.demand
    if cost is None:
        return ["  cost: no price is known; give --price, in $ per GPU and hour"]
    lines = [
        f"  cost {cost.per_hour:,.2f} $/h: {cost.per_million_output:,.2f} $ per million output tokens, "
        f"{cost.per_million_tokens:,.2f} $ per million tokens of prompts and answers"
    ]
    if demand.mean_rate < NEARLY * demand.rate:
        lines.append(
            f"  that is while it is busiest; at the trace's mean of {demand.mean_rate:,.3g} requests/s "
            f"{cost.mean_per_million_output:,.2f} $ and {cost.mean_per_million_tokens:,.2f} $"
        )
    return lines


def _cell(value: float, low: float, high: float) -> str:
    if not math.isfinite(value):
        return "-"
    return f"{value * 1e3:,.0f} ({low * 1e3:,.0f}-{high * 1e3:,.0f})"


def _why(plan: Plan) -> list[str]:
    bound = plan.bottleneck
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
    if bound.relief:
        lines.append(f"  What would relieve it: {bound.relief}.")
    return [*lines, *(f"  {_other(other, plan)}" for other in plan.others)]


def _other(other: Candidate, plan: Plan) -> str:
    if other.rate:
        return (
            f"{other.machine.name}: {other.rate:.3g} requests/s per replica, so that it would take "
            f"{counted(other.gpus(plan.question.demand), 'GPU')}."
        )
    broken = other.capacity.broken
    if broken is None:
        return f"{other.machine.name}: no rate was found that it keeps."
    at = f"at {broken.rate:.3g} requests/s per replica, where it would be worth it"
    return f"{other.machine.name}: {at}, {how_broken(broken)}."


def _changes(plan: Plan) -> list[str]:
    return ["What would change it:", *(f"  {change.name}: {_change(change)}" for change in plan.changes)]


def _change(change: Change) -> str:
    if change.trial.met:
        kept = [
            f"{slo.name} {value * 1e3:,.0f} ms" for slo, value in change.trial.values.items() if math.isfinite(value)
        ]
        return "still kept by the same replicas" + (f" ({', '.join(kept)})" if kept else "")
    needed = f"more than {change.beyond:,}" if change.replicas is None else f"about {change.replicas:,}"
    return f"with the same replicas {how_broken(change.trial)}; it would take {needed} replicas"


def _strategies(plan: Plan) -> list[str]:
    demand = plan.question.demand
    needs = (f"  {one.strategy:<{WIDTH}} {what_it_needs(one, demand)}" for one in plan.strategies)
    return ["Strategies on the same machine, for the same promises:", *needs]


def _basis(plan: Plan) -> list[str]:
    model, machine = plan.chosen.machine.model, plan.chosen.machine
    where = describe_engine(machine.device, machine.depth)
    lines = ["What this rests on:", f"  step times: {model.name}", f"  simulated: {where}"]
    gpu = getattr(model, "gpu", None)
    if gpu is not None:
        lines.append(f"  {gpu.name}: {gpu.provenance}")
    lines.append(f"  {_simulated(plan)}")
    if machine.memory is not None:
        apart = "" if plan.layouts is not None else ", and prefill and decode on GPUs of their own (--compare-layouts)"
        lines.append(f"  not looked at: replicas that span nodes, pipeline parallelism{apart}")
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


def _infeasible(answer: Infeasible) -> str:
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
        lines += ["", NOT_CALIBRATED]
    return "\n".join(lines)


def _best(one: Candidate, question: Question) -> str:
    trial = one.capacity.broken
    if trial is None:
        return f"{one.machine.name}: nothing was found."
    reached = ", ".join(f"{slo.name} {milliseconds(value)}" for slo, value in trial.values.items())
    return f"{one.machine.name} with hardly any load ({trial.rate:.2g} requests/s): {reached or how_broken(trial)}."


def _advice(answer: Infeasible) -> str:
    """The limits that the best machine could promise, with a quarter to spare for load."""
    parts = []
    for slo in answer.question.slos:
        best = min((_value(one, slo) for one in answer.tried), default=math.inf)
        if math.isfinite(best) and best > slo.limit:
            parts.append(f"{slo.metric}={math.ceil(best * 1.25e3)}(p{slo.share * 100:g})")
    if not parts:
        return ""
    return (
        f"Ask for --slo {','.join(parts)} instead (a quarter above the best, which leaves room for load), for faster "
        "GPUs, a lower --weights precision, or shorter prompts."
    )


def _value(one: Candidate, slo: Slo) -> float:
    trial = one.capacity.broken
    value = math.inf if trial is None else trial.values.get(slo, math.inf)
    return math.inf if math.isnan(value) else value
