"""`inflight plan`: how many of which GPUs, under which settings, for this traffic and these SLOs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click
from msgspec import to_builtins

from inflight.cli.declared import settings_options, takes
from inflight.cli.drafts import DraftOptions
from inflight.cli.files import check_writable
from inflight.cli.machines import PricedMachineOptions, longest_of, machines_of, refuse
from inflight.cli.options import config_option
from inflight.cli.plan_questions import AskingVerb
from inflight.cli.simulated_engine import DISK_SETUP_MS, SETUP_MS
from inflight.cli.summary import show
from inflight.cli.traffic import (
    answer_lengths_setting,
    arrivals_of,
    arrivals_setting,
    prompt_lengths_setting,
    seed_setting,
    slo_setting,
    trace_setting,
)
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.config.setting import SettingsError, above_zero, check_settings, option, setting
from inflight.counted import counted
from inflight.metrics.slo import parse_slos
from inflight.planning.demand import Demand, Drawn, Traced, fitting
from inflight.planning.engine_config import configuration
from inflight.planning.machine import Machine
from inflight.planning.parallel import cores
from inflight.planning.plan import Plan, as_text, first_sentence, plan
from inflight.planning.proposal import Overrides
from inflight.planning.result import plan_result
from inflight.planning.simulation import Tiers
from inflight.planning.sizing import LayoutQuestion, Question
from inflight.planning.slos import check_slos
from inflight.planning.traffic import analyze_traffic
from inflight.planning.trial_cache import default_cache
from inflight.records.json_text import json_text
from inflight.simulate.collectives import network_gbps
from inflight.simulate.disagg import DisaggMode, Link
from inflight.simulate.transfers import Folder, TransferRate
from inflight.workload.arrivals import Gamma, Poisson
from inflight.workload.lengths import parse_lengths
from inflight.workload.traces import load

_WHOLE = "give --input-tokens, --output-tokens and --rate (or --arrivals), or a --trace"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandOptions:
    """Demand on a deployment, and its limits of latency."""

    trace: Path | None = trace_setting("Demand and SLOs")
    input_tokens: str | None = prompt_lengths_setting()
    output_tokens: str | None = answer_lengths_setting()
    rate: float | None = setting(None, "Requests per second, Poisson; of a trace its busiest five minutes.")
    arrivals: str | None = arrivals_setting()
    slo: tuple[str, ...] = slo_setting()
    seed: int = seed_setting()


def demand_of(asked: DemandOptions, max_tokens: int) -> Demand:
    """Return the demand. max_tokens: of prompt and answer together, that the model takes. Raises click.UsageError."""
    rate, gap_variation = _arrivals(asked)
    if asked.trace is not None:
        for name, form in (("--input-tokens", asked.input_tokens), ("--output-tokens", asked.output_tokens)):
            if form is not None:
                raise click.UsageError(f"--trace has the lengths of requests; leave {name} out.")
        trace = fitting(load(asked.trace).workload(asked.trace.name), max_tokens)
        rate = analyze_traffic(trace).peak_rate if rate is None else rate
        retimed = None if asked.arrivals is None else gap_variation
        return Traced(trace, rate, retimed=retimed, longest=max_tokens)
    if asked.input_tokens is None or asked.output_tokens is None or rate is None:
        given = {"--input-tokens": asked.input_tokens, "--output-tokens": asked.output_tokens, "--rate": rate}
        missing = next(name for name, value in given.items() if value is None)
        raise click.UsageError(f"Missing option '{missing}'; {_WHOLE}.")
    lengths = parse_lengths(asked.input_tokens), parse_lengths(asked.output_tokens)
    demand = Drawn(rate, *lengths, gap_variation, max_tokens)
    demand.check_lengths()
    return demand


def _arrivals(asked: DemandOptions) -> tuple[float | None, float]:
    """Return the rate, and the squared coefficient of variation of the gaps. A trace with a rate keeps its own
    bursts."""
    match arrivals_of(asked.rate, asked.arrivals):
        case None:
            return None, 1.0
        case Poisson(rate):
            return rate, 1.0
        case Gamma(rate, burstiness):
            return rate, 1 / burstiness
        case other:
            raise click.UsageError(
                f"--arrivals {other} is no steady random process, which sizing needs; give --rate, or --arrivals "
                "poisson:R or gamma:R:BURSTINESS."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutOptions:
    """Layouts to compare."""

    compare_layouts: bool = setting(
        False, "Also size whole prompts, chunked prefill, and disaggregated prefill and decode.", "Layouts"
    )
    transfer_gbps: float | None = setting(
        None,
        "Gbit/s between engines; with --hardware the network cards' unless set.",
        bound=above_zero("gigabits per second"),
    )
    decode_asks: Literal["after", "first"] | None = setting(None, "As in `inflight simulate`.", is_choice=True)
    kv_cache_host: float | None = setting(
        None, "Also with this much of each host, as in `inflight serve`.", bound=above_zero("GiB"), metavar="GiB"
    )
    kv_cache_disk: float | None = setting(
        None, "Also with a folder of this size.", bound=above_zero("GiB"), metavar="GiB"
    )
    kv_disk_read_gb_per_s: float | None = setting(
        None, "GB/s of reading blocks from the folder.", bound=above_zero("gigabytes per second")
    )
    kv_disk_write_gb_per_s: float | None = setting(
        None, "GB/s of writing blocks into it.", bound=above_zero("gigabytes per second")
    )

    def __post_init__(self) -> None:
        check_settings(self)


def layouts_of(asked: LayoutOptions) -> LayoutQuestion | None:
    """Return the layouts to compare; None: none. Raises click.UsageError."""
    if not asked.compare_layouts:
        for name in asked.__slots__[1:]:
            if getattr(asked, name) is not None:
                raise click.UsageError(
                    f"{option(name)} has no effect without --compare-layouts; give that too, or leave it out."
                )
        return None
    disk, read, write = asked.kv_cache_disk, asked.kv_disk_read_gb_per_s, asked.kv_disk_write_gb_per_s
    if len({one is None for one in (disk, read, write)}) > 1:
        raise click.UsageError(
            "--kv-cache-disk, --kv-disk-read-gb-per-s and --kv-disk-write-gb-per-s go together: the size of the "
            "folder, and the rates of its disk."
        )

    def tiers(machine: Machine) -> tuple[Tiers, ...]:
        found = []
        if asked.kv_cache_host is not None:
            _check_known(machine, asked.kv_cache_host, "--kv-cache-host")
            found.append(Tiers(host_gib=asked.kv_cache_host))
        if disk is not None and read is not None and write is not None:
            _check_known(machine, disk, "--kv-cache-disk")
            rates = (TransferRate(machine.block_bytes / (rate * 1e9), DISK_SETUP_MS / 1e3) for rate in (read, write))
            found.append(Tiers(folder=Folder(int(disk * 2**30 / machine.block_bytes), *rates)))
        return tuple(found)

    modes = (DisaggMode(asked.decode_asks or "after"),)
    return LayoutQuestion(lambda machine: _link(machine, asked.transfer_gbps), modes, tiers)


def _check_known(machine: Machine, gib: float, name: str) -> None:
    if not machine.block_bytes:
        raise SettingsError(
            f"{name} is {gib:g} GiB, and the step model does not say how many bytes a block has; calibrate again, or "
            "leave it out."
        )


def _link(machine: Machine, gbps: float | None) -> Link | None:
    gpu, spec = getattr(machine.model, "gpu", None), getattr(machine.model, "spec", None)
    if gbps is None and gpu is not None:
        gbps = network_gbps(gpu, machine.gpus)
    if gbps is None or not machine.block_bytes:
        return None
    layers = 1 if spec is None else len(spec.layers)
    return Link(machine.block_bytes / machine.block_size, gbps, SETUP_MS / 1e3, layers)


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
    as_json: bool = setting(False, "Print the answer as one JSON object.", flags=("--json",))


@click.command("plan", cls=AskingVerb)
@takes(machine=PricedMachineOptions, asked=DemandOptions)
@settings_options(SchedulingSettings, only=("strategy", "policy"), group="Settings")
@settings_options(EngineSettings, only=("max_num_seqs", "max_num_batched_tokens"), group="Settings")
@takes(depth=DepthOptions, layouts=LayoutOptions, drafts=DraftOptions)
@config_option
@takes(output=OutputOptions)
def command(
    machine: PricedMachineOptions,
    asked: DemandOptions,
    depth: DepthOptions,
    layouts: LayoutOptions,
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
    slos = parse_slos(asked.slo)
    check_slos(slos)
    check_writable(output.write_config, reads=[asked.trace, machine.step_model, machine.hardware_file])
    demand = demand_of(asked, longest_of(machine))
    tried = drafts.asked_about(asked.seed)
    _check_fast(layouts, depth, tried)
    names = ("strategy", "policy", "max_num_seqs", "max_num_batched_tokens")
    question = Question(
        machines=machines_of(machine, demand, values["max_num_seqs"]),
        demand=demand,
        slos=slos,
        overrides=Overrides(**{name: values[name] for name in names}),
        seed=asked.seed,
        drafts=tried,
        layouts=layouts_of(layouts),
    )
    answer = plan(
        question,
        strategies=depth.compare_strategies,
        fast=depth.fast,
        workers=cores(),
        progress=show,
        first=lambda found: show(first_sentence(found)),
        cache=default_cache(),
    )
    print(json_text(to_builtins(plan_result(answer))) if output.as_json else as_text(answer))
    if not isinstance(answer, Plan):
        return 1
    if output.write_config is not None:
        about = (f"{counted(answer.replicas, 'replica')} of {answer.chosen.machine.name}, by `inflight plan`.",)
        output.write_config.write_text(configuration(answer.config.options(), about), encoding="utf-8")
    return 0
