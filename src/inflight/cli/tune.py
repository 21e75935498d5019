"""`inflight tune`: find the settings of one engine that serve a workload best, and write a file of them with
reasons."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from msgspec import to_builtins

from inflight.cli.demand import DemandOptions, demand_of, demand_options
from inflight.cli.files import check_writable
from inflight.cli.machines import longest_of, machine_options, machines_of
from inflight.cli.options import options_of
from inflight.cli.progress import show
from inflight.cli.verb import Verb, grouped
from inflight.config.setting import SettingsError, option
from inflight.metrics.slo import Slo, parse_slos, targets
from inflight.metrics.summary import Summary
from inflight.planning.demand import Demand, traffic_of, with_targets
from inflight.planning.engine_config import EngineConfig, configuration
from inflight.planning.machine import Machine
from inflight.planning.proposal import MAX_ROWS, Overrides
from inflight.planning.rendering import render
from inflight.planning.result import tune_result
from inflight.planning.simulation import measure_on
from inflight.planning.steady import length, rows_at
from inflight.planning.traffic import Traffic
from inflight.planning.tuning import Check, Run, Tuning, describe, tune
from inflight.records.json_text import json_text

VERIFY_SECONDS, VERIFY_REPEATS = 20.0, 2


@click.command("tune", cls=Verb)
@machine_options
@demand_options
@grouped(
    "Settings",
    click.option("--max-num-seqs", type=int, help="Fix it."),
    click.option("--max-num-batched-tokens", type=int, help="Fix it."),
)
@grouped(
    "On the real engine",
    click.option(
        "--verify", type=int, default=0, show_default=True, help="Run so many of the best on the real engine."
    ),
    click.option("--verify-seconds", type=float, help=f"Of arrivals in each such run; {VERIFY_SECONDS:g} unless set."),
    click.option("--verify-repeats", type=int, help=f"Such runs of each, in turns; {VERIFY_REPEATS} unless set."),
    click.option("--load-format", help="Of the real engine: auto, dequantize or dummy; auto unless set."),
)
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the configuration (TOML) here.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def command(**values: Any) -> int:
    """Search strategy, step size, sequences, policy and preemption for the best goodput under the SLOs (--slo).

    The file of --output is read by `inflight serve --config`; without --output it goes to standard output.
    """
    slos = parse_slos(values["slo"])
    if not slos:
        raise SettingsError(
            "--slo is missing: without one all settings are equally good; give one such as --slo ttft=500(p99)."
        )
    check_writable(values["output"], reads=[values["trace"], values["step_model"], values["hardware_file"]])
    machine, demand, tuning = _tuned(values, slos)
    about = _about(tuning, machine, demand)
    for sentence in about:
        show(sentence)
    text = configuration(tuning.best.config.options(), about)
    if values["output"] is not None:
        values["output"].write_text(text, encoding="utf-8")
        show(f"Written to {values['output']}.")
    if values["as_json"]:
        print(json_text(to_builtins(tune_result(tuning))))
    elif values["output"] is None:
        print(text, end="")
    return 0


def _tuned(values: dict[str, Any], slos: tuple[Slo, ...]) -> tuple[Machine, Demand, Tuning]:
    if values["verify"] < 0:
        raise SettingsError(f"--verify is {values['verify']}; give a number of settings from 0.")
    _check_verify(values)
    if values["verify_repeats"] < 1 or not 0 < values["verify_seconds"] < math.inf:
        raise SettingsError(
            f"--verify-repeats is {values['verify_repeats']} and --verify-seconds {values['verify_seconds']:g}; give "
            "at least 1 run of more than 0 seconds."
        )
    demand = demand_of(options_of(DemandOptions, values), longest_of(values))
    traffic = traffic_of(demand)
    if values["tensor_parallel"] is None and values["step_model"] is None:
        values["tensor_parallel"] = 1
    machine = machines_of(values, demand)[0]
    if machine.tokens < traffic.longest:
        raise SettingsError(
            f"{machine.name} has KV memory for {machine.tokens:,} tokens beside the weights, less than the longest "
            f"request ({traffic.longest:,}); raise --tensor-parallel, or take GPUs with more memory."
        )
    overrides = Overrides(max_num_seqs=values["max_num_seqs"], max_num_batched_tokens=values["max_num_batched_tokens"])
    check = None
    if values["verify"]:
        run = _runner(values, machine, demand, traffic, slos)
        check = Check(run, values["verify"], values["verify_repeats"])
    tuning = tune(machine, demand, traffic, slos, overrides=overrides, seed=values["seed"], check=check, progress=show)
    return machine, demand, tuning


def _check_verify(values: dict[str, Any]) -> None:
    """Check the options of the real engine, and fill in defaults."""
    if values["verify"] and values["step_model"] is None:
        raise click.UsageError("--verify runs the real engine of this machine; it goes with --step-model.")
    if not values["verify"]:
        own = ("model", "family") if values["step_model"] is not None else ()
        for name in ("verify_seconds", "verify_repeats", "load_format", *own):
            if values[name] is not None:
                raise click.UsageError(
                    f"{option(name)} is about the real engine, which only --verify runs; leave it out."
                )
    values["verify_seconds"] = VERIFY_SECONDS if values["verify_seconds"] is None else values["verify_seconds"]
    values["verify_repeats"] = VERIFY_REPEATS if values["verify_repeats"] is None else values["verify_repeats"]
    values["load_format"] = values["load_format"] or "auto"


def _about(tuning: Tuning, machine: Machine, demand: Demand) -> list[str]:
    """Return the sentences at the head of the configuration file."""
    figures = describe(tuning.best.trial)
    return render("tune", tuning=tuning, figures=figures, machine=machine, rate=demand.rate).splitlines()


def _runner(values: dict[str, Any], machine: Machine, demand: Demand, traffic: Traffic, slos: tuple[Slo, ...]) -> Run:
    """Return a function that runs settings on the real engine, a new one for each."""
    from inflight.build import build_engine  # loads numpy and the kernels

    most = max(10.0, values["verify_seconds"] * demand.rate)
    residents = rows_at(machine.model, traffic, demand.rate, MAX_ROWS)
    run = length(residents, most, most)
    workload = with_targets(demand.workload(demand.rate, run.requests, values["seed"]), targets(slos))

    def measure(config: EngineConfig) -> Summary:
        settings = replace(
            config.engine_settings(machine.max_model_len, machine.device),
            model=values["model"],
            family=values["family"],
            load_format=values["load_format"],
            block_size=machine.block_size,
            num_blocks=machine.blocks,
        )
        engine = build_engine(settings, config.scheduling)
        return measure_on(engine.loop, engine.capacity.vocab_size, workload, (run.begin, run.end))

    return measure
