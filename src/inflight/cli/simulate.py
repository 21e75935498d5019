"""`inflight simulate`: a workload on simulated engines, with the real scheduler, on virtual time."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from inflight.bench.run import Warmup
from inflight.cli.bench_options import (
    LoadOptions,
    WorkloadOptions,
    load_options,
    offer_of,
    warmup_of,
    workload_options,
)
from inflight.cli.drafts import draft_options
from inflight.cli.files import check_writable
from inflight.cli.live_replay import simulate_played
from inflight.cli.machines import Device, always, decode_options, devices_of, hardware_options
from inflight.cli.options import (
    config_option,
    options_of,
    record_option,
    scheduling_options,
    scheduling_settings,
)
from inflight.cli.simulated_engine import engine_options, pool_of
from inflight.cli.simulated_pools import pool_options, setup_of
from inflight.cli.simulated_tiers import tier_options
from inflight.cli.simulation_report import notes_of, report, report_ends, result_of, summary_of
from inflight.cli.verb import Verb
from inflight.config.setting import SettingsError
from inflight.metrics.slo import stated_share
from inflight.records.json_text import json_text
from inflight.simulate.simulation import SimulationSetup, best_split, simulate
from inflight.workload.workload import Workload


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
@click.option("--noise", is_flag=True, help="Steps scatter as the measured ones did.")
@record_option
@click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a page that plays the run: the batch, memory and queues over time, replicas side by side.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(**values: Any) -> int:
    """Answer what a deployment would do, before there is one.

    On a machine that was calibrated (--step-model) or on GPUs by their data sheets (--model with --hardware). Engine
    and scheduling options are those of `inflight serve`; without them the engine is as it was when the step model was
    measured.
    """
    device, second = devices_of(values)
    if stated_share(values["slo"]) is not None:
        raise click.UsageError(
            "--slo names a percentile, but a simulation tells what share of requests kept the limits; leave it out."
        )
    if values["split_replicas"] is not None and values["record"] is not None:
        raise click.UsageError("--split-replicas runs every split, so that --record has no effect; leave it out.")
    if values["split_replicas"] is not None and values["html"] is not None:
        raise click.UsageError("--split-replicas runs every split, and --html plays one run; leave one of them out.")
    scaling = ("max_replicas", "max_prefill_replicas", "max_decode_replicas")
    if values["html"] is not None and (scaled := [name for name in scaling if values[name] is not None]):
        raise click.UsageError(
            f"--html plays engines that are there all the time, and with --{scaled[0].replace('_', '-')} they come and "
            "go; leave one of them out."
        )
    check_writable(values["record"], values["html"], reads=[values["trace"], values["classes"], values["step_model"]])
    record, as_json, seed = values.pop("record"), values.pop("as_json"), values["seed"]
    html = values.pop("html")
    scheduling, warmup = scheduling_settings(values), warmup_of(values["warmup"])
    first = pool_of(device, values, scheduling, seed)
    offer = offer_of(options_of(LoadOptions, values), options_of(WorkloadOptions, values))
    workload = replace(offer, max_model_len=first.capacity.max_model_len).workload()
    setup = setup_of(values, first, pool_of(second, values, scheduling, seed + 1), (device, second), seed)
    for note in (f"Workload: {workload.name}.", *workload.notes, *notes_of(setup, device, second)):
        print(note, file=sys.stderr)
    if values["split_replicas"] is not None:
        return _search(workload, setup, values["split_replicas"], as_json, warmup)
    run = simulate(workload, setup, record) if html is None else simulate_played(workload, setup, record, html)
    summary, why = summary_of(run, warmup)
    print(f"Measured: {why}.", file=sys.stderr)
    report(run, summary)
    ends = [summary_of(simulate(workload, one), warmup)[0] for one in _ends(setup, device, second)]
    if ends:
        report_ends(summary, *ends)
    if as_json:
        result = result_of(run, summary, workload, setup, device, second)
        if ends:
            result["uncertain"] = {"slow": ends[0].to_json(), "fast": ends[1].to_json()}
        print(json_text(result, indent=1))
    if not summary.requests:
        print("Not one request was answered, so that there is nothing to be told of latency.", file=sys.stderr)
    return 0 if summary.requests else 1


def _ends(setup: SimulationSetup, device: Device, second: Device) -> list[SimulationSetup]:
    """The same with every efficiency at its slow end, and at its fast end, where steps were not measured."""
    found = []
    for model, other in zip(device.cases, second.cases, strict=True):
        first = replace(setup.pool, model=always(model))
        decode = setup.decode and replace(setup.decode, model=always(other))
        found.append(replace(setup, pool=first, decode=decode))
    return found


def _search(workload: Workload, setup: SimulationSetup, total: int, as_json: bool, warmup: Warmup) -> int:
    if not any(entry.targets for entry in workload.entries):
        raise SettingsError("The best split is the one with the highest goodput, which needs targets; give --slo.")
    found = best_split(workload, setup, total, lambda run: summary_of(run, warmup)[0].goodput)
    print("prefill  decode  goodput, requests/s  attainment", file=sys.stderr)
    for prefill, decode, run, goodput in found:
        print(
            f"{prefill:>7}  {decode:>6}  {goodput:>19,.2f}  {summary_of(run, warmup)[0].attainment:>10.1%}",
            file=sys.stderr,
        )
    if as_json:
        keys = ("prefill_replicas", "decode_replicas", "goodput")
        print(json_text([dict(zip(keys, (one[0], one[1], one[3]), strict=True)) for one in found], indent=1))
    return 0
