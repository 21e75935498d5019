"""`inflight plan`: how many of which GPUs, under which settings, for this traffic and these SLOs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from msgspec import to_builtins

from inflight.cli.declared import settings_options, takes
from inflight.cli.demand import PlannedDemandOptions, classes_of, demand_of, slos_of
from inflight.cli.drafts import DraftOptions
from inflight.cli.files import check_writable
from inflight.cli.fleet import FleetOptions, fleet_of
from inflight.cli.layouts import LayoutOptions, layouts_of
from inflight.cli.machines import PricedMachineOptions, answers_with_vectors, longest_of, machines_of, refuse
from inflight.cli.options import config_option
from inflight.cli.plan_questions import AskingVerb
from inflight.cli.stage_line import StageLine
from inflight.cli.summary import show
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.config.setting import setting
from inflight.counted import counted
from inflight.metrics.slo import Slo
from inflight.planning.demand import Demand
from inflight.planning.engine_config import configuration
from inflight.planning.infeasible import Infeasible
from inflight.planning.parallel import cores
from inflight.planning.parallelisms import Machines
from inflight.planning.plan import Plan, as_text, first_sentence, plan
from inflight.planning.programs import check_programs
from inflight.planning.proposal import Overrides
from inflight.planning.question import Question
from inflight.planning.result import plan_result
from inflight.planning.slos import check_slos
from inflight.planning.trial_cache import default_cache
from inflight.records.json_text import json_text
from inflight.workload.classes import TrafficClass

_OVERRIDES = ("strategy", "policy", "max_num_seqs", "max_num_batched_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthOptions:
    """How much is computed."""

    compare_strategies: bool = setting(False, "Also size each batching strategy.", "Settings")
    fast: bool = setting(False, "Only the first answer, from shorter trials: no interval, no comparisons.", "Options")


def _check_fast(layouts: LayoutOptions, depth: DepthOptions, drafts: object) -> None:
    """Raise click.UsageError for comparisons, which the first answer leaves out."""
    if not depth.fast:
        return
    compared = {
        "--compare-strategies": depth.compare_strategies,
        "--compare-layouts": layouts.compare_layouts,
        "--speculation-acceptance or --speculation-record": drafts is not None,
    }
    for name, given in compared.items():
        if given:
            raise click.UsageError(f"--fast leaves comparisons out, and {name} asks for one; leave one of them out.")


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputOptions:
    """The answer's forms."""

    write_config: Path | None = setting(None, "Write the settings here (TOML).", "Options", path="file")
    html: Path | None = setting(None, "Write a page with sliders over more runs here.", path="file")
    as_json: bool = setting(False, "Print the answer as one JSON object.", flags=("--json",))


@click.command("plan", cls=AskingVerb)
@takes(machine=PricedMachineOptions, asked=PlannedDemandOptions)
@settings_options(SchedulingSettings, only=("strategy", "policy"), group="Settings")
@settings_options(EngineSettings, only=("max_num_seqs", "max_num_batched_tokens"), group="Settings")
@takes(depth=DepthOptions, layouts=LayoutOptions, fleet=FleetOptions, drafts=DraftOptions)
@config_option
@takes(output=OutputOptions)
def command(
    machine: PricedMachineOptions,
    asked: PlannedDemandOptions,
    depth: DepthOptions,
    layouts: LayoutOptions,
    fleet: FleetOptions,
    drafts: DraftOptions,
    output: OutputOptions,
    **values: Any,
) -> int:
    """Size a deployment: replicas, settings, latencies and cost, with reasons, by simulating the engine's own
    scheduler. --max-num-seqs and --max-num-batched-tokens are chosen unless given. Without any option it asks, on a
    terminal.

    inflight plan --model llama-3-70b --hardware a100-80 --rate 500 --input-tokens lognormal:1020:4142
    --output-tokens lognormal:129:601 --slo "ttft=1000(p99)"
    """
    if machine.step_model is not None:
        refuse(machine, ("model", "family"), "--hardware", "--step-model")
    classes = classes_of(asked)
    slos = slos_of(asked, classes)
    check_slos(slos)
    reads = [asked.trace, asked.classes, machine.step_model, machine.hardware_file]
    check_writable(output.write_config, output.html, reads=reads)
    tried = drafts.asked_about(asked.seed)
    _check_fast(layouts, depth, tried)
    demand, machines = _demand_and_machines(
        machine, asked, classes, slos, values["max_num_seqs"], is_served=output.write_config is not None
    )
    check_programs(slos, demand)
    if any(one.is_encoder_only for one in machines.fitting) and values["strategy"] == "chunked":
        values["strategy"] = "continuous"
    question = Question(
        machines=machines.fitting,
        discarded=machines.discarded,
        demand=demand,
        slos=slos,
        overrides=Overrides(**{name: values[name] for name in _OVERRIDES}),
        seed=asked.seed,
        drafts=tried,
        layouts=layouts_of(layouts),
        gpus=asked.gpus,
        fleet=fleet_of(fleet, asked, demand),
    )
    return _deliver(_answer(question, depth), output, depth.fast)


def _demand_and_machines(
    machine: PricedMachineOptions,
    asked: PlannedDemandOptions,
    classes: Sequence[TrafficClass],
    slos: Sequence[Slo],
    max_num_seqs: int | None,
    *,
    is_served: bool,
) -> tuple[Demand, Machines]:
    """Return the demand and the ways to run an engine. is_served: only those that this engine runs itself. Raises
    click.UsageError, and the errors of models, GPUs, traces and settings."""
    is_pooled = asked.output_tokens == "0" or answers_with_vectors(machine)
    if is_pooled and (between := next((slo for slo in slos if slo.paces), None)) is not None:
        raise click.UsageError(f"--slo has {between}, which is between tokens, and vectors have none; leave it out.")
    demand = demand_of(asked, longest_of(machine, is_pooled), classes, is_pooled=is_pooled)
    return demand, machines_of(machine, demand, max_num_seqs, is_served, is_pooled)


def _answer(question: Question, depth: DepthOptions) -> Plan | Infeasible:
    """Plan, and show progress and the first answer meanwhile."""
    with StageLine() as line:

        def show_first(found: Plan) -> None:
            line(first_sentence(found))
            line.begin("refining the answer")

        return plan(
            question,
            strategies=depth.compare_strategies,
            fast=depth.fast,
            workers=cores(),
            progress=line,
            first=show_first,
            cache=default_cache(),
        )


def _deliver(answer: Plan | Infeasible, output: OutputOptions, fast: bool) -> int:
    """Print an answer, and write what was asked for; return the exit code."""
    print(json_text(to_builtins(plan_result(answer))) if output.as_json else as_text(answer))
    if output.html is not None:
        _write_page(answer, output.html, fast)
    if not isinstance(answer, Plan):
        return 1
    if output.write_config is not None:
        about = (f"{counted(answer.replicas, 'replica')} of {answer.chosen.machine.name}, by `inflight plan`.",)
        output.write_config.write_text(configuration(answer.config.options(), about), encoding="utf-8")
    return 0


def _write_page(answer: Plan | Infeasible, path: Path, fast: bool) -> None:
    # Imported here: a page takes a tenth of the time of a question that was asked before.
    from inflight.planning.explored import explore
    from inflight.report.page.explorer import render_explorer

    with StageLine() as line:
        found = explore(answer, fast=fast, workers=cores(), progress=line, cache=default_cache())
    machine = found.layouts[0].name.partition(",")[0]
    path.write_text(render_explorer(f"Plan: {machine}", found), encoding="utf-8")
    show(f"Written to {path}: open it in a browser.")
