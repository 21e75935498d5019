"""`inflight simulate`: a workload on simulated engines, with the real scheduler, on virtual time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from inflight.bench.run import Warmup
from inflight.cli.bench_options import LoadOptions, WorkloadOptions, load_options, offer_of, warmup_of, workload_options
from inflight.cli.declared import settings_options
from inflight.cli.drafts import DraftOptions, draft_options
from inflight.cli.files import check_writable
from inflight.cli.live_replay import simulate_played as played
from inflight.cli.machines import (
    DecodeOptions,
    Device,
    MachineOptions,
    always,
    decode_options,
    devices_of,
    hardware_options,
    refuse,
)
from inflight.cli.options import config_option, options_of, record_option, scheduling_options, scheduling_settings
from inflight.cli.simulated_engine import (
    SimulatedEngine,
    SizeOptions,
    TierOptions,
    engine_options,
    router_options_of,
    tier_options,
)
from inflight.cli.simulated_pools import MAX_OF_POOLS, PoolOptions, pool_options, setup_of
from inflight.cli.simulation_report import notes_of, report, report_ends, result_of, summary_of
from inflight.cli.summary import show
from inflight.cli.verb import Verb
from inflight.config.setting import SettingsError, option, setting
from inflight.metrics.slo import stated_share
from inflight.records.json_text import json_text
from inflight.simulate.simulation import SimulationSetup, best_split, simulate
from inflight.workload.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputOptions:
    """The run's noise, and its output."""

    noise: bool = setting(False, "Steps scatter as the measured ones did.", "Options")
    html: Path | None = setting(
        None,
        "Write a page that plays the run: the batch, memory and queues over time, replicas side by side.",
        path="file",
    )
    as_json: bool = setting(False, "Print the result as JSON.", flags=("--json",))


@click.command("simulate", cls=Verb)
@config_option
@hardware_options
@engine_options
@tier_options
@scheduling_options
@draft_options
@load_options
@workload_options
@pool_options
@decode_options
@record_option
@settings_options(OutputOptions)
def command(**values: Any) -> int:
    """Show how a deployment would perform, before there is one.

    On a machine that was calibrated (--step-model) or on GPUs by their data sheets (--model with --hardware). Engine
    and scheduling options are those of `inflight serve`; without them the engine is as it was when the step model was
    measured.
    """
    machine, decode = options_of(MachineOptions, values), options_of(DecodeOptions, values)
    pools = options_of(PoolOptions, values)
    devices = devices_of(machine, decode, values["block_size"], values["max_num_seqs"])
    if machine.hardware is not None:
        refuse(pools, ("kv_bytes",), "--step-model", "--hardware")
    asked, output, seed = options_of(WorkloadOptions, values), options_of(OutputOptions, values), values["seed"]
    record: Path | None = values["record"]
    _check(pools, output, asked, record)
    check_writable(record, output.html, reads=[asked.trace, asked.classes, machine.step_model])
    scheduling, warmup = scheduling_settings(values), warmup_of(values["warmup"])
    size, tiers = options_of(SizeOptions, values), options_of(TierOptions, values)
    engine = SimulatedEngine(size, tiers, options_of(DraftOptions, values), pools, output.noise)
    routing = router_options_of(values)
    first = engine.pool(devices[0], scheduling, routing, seed)
    offer = offer_of(options_of(LoadOptions, values), asked)
    workload = replace(offer, max_model_len=first.capacity.max_model_len).workload()
    second = engine.pool(devices[1], scheduling, routing, seed + 1)
    content_seed = seed if values["prompt_seed"] is None else values["prompt_seed"]
    setup = replace(setup_of(pools, decode, (first, second), devices, seed), content_seed=content_seed)
    for note in (f"Workload: {workload.name}.", *workload.notes, *notes_of(setup, *devices)):
        show(note)
    if pools.split_replicas is not None:
        return _search(workload, setup, pools.split_replicas, output.as_json, warmup)
    run = simulate(workload, setup, record) if output.html is None else played(workload, setup, record, output.html)
    summary, why = summary_of(run, warmup)
    show(f"Measured: {why}.")
    report(run, summary)
    ends = [summary_of(simulate(workload, one), warmup)[0] for one in _ends(setup, *devices)]
    if ends:
        report_ends(summary, *ends)
    if output.as_json:
        result = result_of(run, summary, workload, setup, *devices)
        if ends:
            result["uncertain"] = {"slow": ends[0].to_json(), "fast": ends[1].to_json()}
        print(json_text(result, indent=1))
    if not summary.requests:
        show("No request was answered, so there are no latencies.")
    return 0 if summary.requests else 1


def _check(pools: PoolOptions, output: OutputOptions, asked: WorkloadOptions, record: Path | None) -> None:
    """Raise click.UsageError for options that do not go together."""
    if stated_share(asked.slo) is not None:
        raise click.UsageError(
            "--slo names a percentile, but a simulation reports the share of requests within the limits; leave it out."
        )
    if pools.split_replicas is not None and record is not None:
        raise click.UsageError("--split-replicas runs every split, so that --record has no effect; leave it out.")
    if pools.split_replicas is not None and output.html is not None:
        raise click.UsageError("--split-replicas runs every split, and --html plays one run; leave one of them out.")
    scaled = [name for name in ("max_replicas", *MAX_OF_POOLS) if getattr(pools, name) is not None]
    if output.html is not None and scaled:
        raise click.UsageError(
            f"--html plays engines that are there all the time, and with {option(scaled[0])} they come and go; leave "
            "one of them out."
        )


def _ends(setup: SimulationSetup, device: Device, second: Device) -> list[SimulationSetup]:
    """Return the setup with every efficiency at its slow end, and at its fast end, where steps were not measured."""
    return [
        replace(
            setup,
            pool=replace(setup.pool, model=always(model)),
            decode=setup.decode and replace(setup.decode, model=always(other)),
        )
        for model, other in zip(device.cases, second.cases, strict=True)
    ]


def _search(workload: Workload, setup: SimulationSetup, total: int, as_json: bool, warmup: Warmup) -> int:
    if not any(entry.targets for entry in workload.entries):
        raise SettingsError("The best split is the one with the highest goodput, which needs targets; give --slo.")
    found = best_split(workload, setup, total, lambda run: summary_of(run, warmup)[0].goodput)
    show("prefill  decode  goodput, requests/s  attainment")
    for prefill, decode, run, goodput in found:
        attainment = summary_of(run, warmup)[0].attainment
        show(f"{prefill:>7}  {decode:>6}  {goodput:>19,.2f}  {attainment:>10.1%}")
    if as_json:
        keys = ("prefill_replicas", "decode_replicas", "goodput")
        print(json_text([dict(zip(keys, (one[0], one[1], one[3]), strict=True)) for one in found], indent=1))
    return 0
