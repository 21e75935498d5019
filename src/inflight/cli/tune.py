"""`inflight tune`: the settings of one engine that serve a workload best, and a configuration file with the reasons."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from inflight.cli.demand import demand_of, demand_options
from inflight.cli.machines import longest_of, machine_options, machines_of, tell
from inflight.config import EngineSettings, SettingsError
from inflight.metrics.observation import Observation
from inflight.planning.configuration import configuration
from inflight.planning.demand import Demand, with_targets
from inflight.planning.machine import Machine
from inflight.planning.proposal import Wishes
from inflight.planning.setting import Setting
from inflight.planning.sizing import traffic_of
from inflight.planning.slo import Slo, parse_slos, targets
from inflight.planning.tuning import Tried, Tuning, describe, tune
from inflight.workload.contents import Contents
from inflight.workload.driving import Driver
from inflight.workload.requests import core_request

VERIFY_SECONDS = 30.0


@click.command("tune")
@machine_options
@demand_options
@click.option("--max-num-seqs", type=int, help="Fix it.")
@click.option("--max-num-batched-tokens", type=int, help="Fix it.")
@click.option("--verify", type=int, default=0, show_default=True, help="Run so many of the best on the real engine.")
@click.option(
    "--verify-seconds", type=float, default=VERIFY_SECONDS, show_default=True, help="Of arrivals in each such run."
)
@click.option("--load-format", default="auto", show_default=True, help="Of the real engine: auto, or dummy.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the configuration (TOML) here.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def command(**values: Any) -> int:
    """Search strategy, step size, sequences, policy and preemption for the best goodput under the promises (--slo).

    The file of --output is read by `inflight serve --config`; without --output it goes to standard output.
    """
    slos = parse_slos(values["slo"])
    if not slos:
        raise SettingsError(
            "Without a promise every setting is as good as the other; give --slo, such as ttft=500(p99)."
        )
    machine, tuning = _tuned(values, slos)
    about = _about(tuning, machine)
    for sentence in about:
        tell(sentence)
    text = configuration(tuning.best.setting.options(), about)
    if values["output"] is not None:
        values["output"].write_text(text, encoding="utf-8")
        tell(f"Written to {values['output']}.")
    if values["as_json"]:
        print(json.dumps(_json(tuning)))
    elif values["output"] is None:
        print(text, end="")
    return 0


def _tuned(values: dict[str, Any], slos: tuple[Slo, ...]) -> tuple[Machine, Tuning]:
    if values["verify"] < 0:
        raise SettingsError(f"--verify is {values['verify']}; give a number of settings from 0.")
    if values["verify"] and values["step_model"] is None:
        raise click.UsageError("--verify runs the real engine of this machine; it goes with --step-model.")
    demand = demand_of(values, longest_of(values))
    traffic = traffic_of(demand)
    values["tensor_parallel"] = values["tensor_parallel"] or (1 if values["step_model"] is None else None)
    machine = machines_of(values, demand)[0]
    if machine.tokens < traffic.longest:
        raise SettingsError(
            f"{machine.name} has KV memory for {machine.tokens:,} tokens beside the weights, less than the "
            "longest request "
            f"({traffic.longest:,}); raise --tensor-parallel, or take GPUs with more memory."
        )
    wishes = Wishes(max_num_seqs=values["max_num_seqs"], max_num_batched_tokens=values["max_num_batched_tokens"])
    verify = _verifier(values, machine, demand, slos) if values["verify"] else None
    return machine, tune(
        machine,
        demand,
        traffic,
        slos,
        wishes=wishes,
        seed=values["seed"],
        verify=verify,
        verified=values["verify"],
        told=tell,
    )


def _about(tuning: Tuning, machine: Machine) -> list[str]:
    """What the head of a configuration file says of where it comes from."""
    best = tuning.best
    about = [f"Found by `inflight tune` among {len(tuning.tried)} settings: {describe(best.trial)}, simulated."]
    if best.measured is not None:
        about.append(f"On the real engine: goodput {best.measured.goodput:.3g}/s ({best.measured.attainment:.0%}).")
    if not machine.calibrated:
        about.append("Step times are from data sheets, not calibrated on your hardware.")
    if tuning.saturated:
        about.append("Saturated: the demand is more than any of the settings serves; none of this will hold.")
    return about


def _verifier(
    values: dict[str, Any], machine: Machine, demand: Demand, slos: tuple[Slo, ...]
) -> Callable[[Setting], list[Observation]]:
    """A function that runs a setting on the real engine, which is built anew for each."""
    from inflight.build import build_engine  # loads numpy and the kernels

    requests = max(10, round(values["verify_seconds"] * demand.rate))
    workload = with_targets(demand.workload(demand.rate, requests, values["seed"]), targets(slos))

    def verify(setting: Setting) -> list[Observation]:
        engine = build_engine(_real(values, machine, setting), setting.scheduling)
        contents = Contents(workload.entries, engine.capacity.vocab_size, floor=3)
        try:
            return Driver(
                engine.loop,
                workload,
                lambda index, arrival: core_request(
                    workload.entries[index], str(index), contents.prompt(index), arrival
                ),
            ).run()
        finally:
            engine.loop.close()

    return verify


def _real(values: dict[str, Any], machine: Machine, setting: Setting) -> EngineSettings:
    return EngineSettings(
        model=values["model"],
        load_format=values["load_format"],
        max_num_seqs=setting.max_num_seqs,
        max_num_batched_tokens=setting.max_num_batched_tokens,
        max_model_len=machine.max_model_len,
        block_size=machine.block_size,
        num_blocks=machine.blocks,
    )


def _json(tuning: Tuning) -> dict[str, Any]:
    def shown(one: Tried) -> dict[str, Any]:
        return {
            "settings": {name: entry.value for name, entry in one.setting.options().items()},
            "goodput": one.trial.summary.goodput,
            "attainment": one.trial.summary.attainment,
            "saturated": one.trial.saturated,
            "measured_goodput": None if one.measured is None else one.measured.goodput,
        }

    return {
        "best": {**shown(tuning.best), "reasons": dict(tuning.best.setting.reasons)},
        "start": shown(tuning.start),
        "tried": [shown(one) for one in tuning.tried],
        "verified": [shown(one) for one in tuning.verified],
    }
