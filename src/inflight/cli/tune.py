"""`inflight tune`: search the settings that serve a workload best, in simulation and on the real engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
from msgspec import Struct, to_builtins

from inflight.cli.declared import settings_options, takes
from inflight.cli.demand import DemandOptions, classes_of, demand_of, slos_of
from inflight.cli.files import check_writable
from inflight.cli.machines import PricedMachineOptions, longest_of, machines_of
from inflight.cli.options import config_option
from inflight.cli.summary import show
from inflight.cli.tune_record import RecordOptions, check_record, record_of, retuned, shadowed
from inflight.cli.verb import Verb
from inflight.config.engine import EngineSettings
from inflight.config.setting import SettingsError, above_zero, at_least, check_settings, option, setting
from inflight.config.speculation import OFF
from inflight.metrics.slo import Slo, SloError, parse_slos, targets
from inflight.metrics.summary import Summary
from inflight.planning.decision import Check, EngineRun, describe
from inflight.planning.demand import traffic_of
from inflight.planning.engine_config import EngineConfig, configuration
from inflight.planning.machine import Machine
from inflight.planning.measured_run import measure_on
from inflight.planning.proposal import Overrides
from inflight.planning.rendering import render
from inflight.planning.result import tune_result
from inflight.planning.retuning_result import retune_result
from inflight.planning.shadow import with_shadow
from inflight.planning.slos import check_slos
from inflight.planning.tuning import tune
from inflight.records.json_text import json_text
from inflight.workload.classes import TrafficClass
from inflight.workload.workload import Workload

VERIFY_SECONDS, VERIFY_REPEATS = 20.0, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """Runs on the real engine."""

    verify: int = setting(0, "Run so many of the best settings.", "On the real engine", bound=at_least(0))
    verify_seconds: float | None = setting(
        None, f"Seconds of arrivals in each run; {VERIFY_SECONDS:g} unless set.", bound=above_zero("seconds")
    )
    verify_repeats: int | None = setting(
        None, f"Runs of each of the settings, in turns; {VERIFY_REPEATS} unless set.", bound=at_least(1)
    )

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputOptions:
    """The configuration's forms."""

    output: Path | None = setting(None, "Write the configuration (TOML) here.", "Options", path="file")
    as_json: bool = setting(False, "Print the result as one JSON object.", flags=("--json",))


@click.command("tune", cls=Verb)
@takes(recorded=RecordOptions, given=PricedMachineOptions, asked=DemandOptions)
@settings_options(EngineSettings, only=("max_num_seqs", "max_num_batched_tokens"), group="Settings")
@takes(verify=VerifyOptions)
@settings_options(EngineSettings, only=("load_format",), group="On the real engine", unset=("load_format",))
@config_option
@takes(output=OutputOptions)
def command(
    recorded: RecordOptions,
    given: PricedMachineOptions,
    asked: DemandOptions,
    verify: VerifyOptions,
    output: OutputOptions,
    **values: Any,
) -> int:
    """Search strategy, step size, sequences, policy and preemption for the best goodput under the SLOs (--slo).
    --max-num-seqs and --max-num-batched-tokens are searched unless given.

    With --record or --url the requests are those that a server answered, and the machine is the one that it ran on:
    the present settings are simulated and compared with what was measured, and others with them.

    The file of --output is read by `inflight serve --config`; without --output it goes to standard output.
    """
    check_record(recorded, given, asked)
    classes = classes_of(asked)
    slos = _slos(asked, classes)
    if recorded.is_given:
        return _tune_record(recorded, given, slos, verify, output, values)
    if not slos:
        raise SettingsError(
            "--slo is missing: without one all settings are equally good; give one such as --slo ttft=500(p99)."
        )
    check_writable(output.output, reads=[asked.trace, asked.classes, given.step_model, given.hardware_file])
    _check_verify(verify, given, values["load_format"])
    demand = demand_of(asked, longest_of(given), classes)
    traffic = traffic_of(demand)
    if given.tensor_parallel is None and given.step_model is None:
        given = replace(given, tensor_parallel=1)
    machine = machines_of(given, demand, values["max_num_seqs"], served=True).fitting[0]
    if machine.tokens < traffic.longest:
        raise SettingsError(
            f"{machine.name} has KV memory for {machine.tokens:,} tokens beside the weights, less than the longest "
            f"request ({traffic.longest:,}); raise --tensor-parallel, or take GPUs with more memory."
        )
    overrides = Overrides(max_num_seqs=values["max_num_seqs"], max_num_batched_tokens=values["max_num_batched_tokens"])
    check = None
    if verify.verify:
        engine = EngineSettings(model=given.model, family=given.family, load_format=values["load_format"] or "auto")
        seconds, repeats = verify.verify_seconds or VERIFY_SECONDS, verify.verify_repeats or VERIFY_REPEATS
        check = Check(_runner(engine, machine), seconds, verify.verify, repeats)
    tuning = tune(machine, demand, traffic, slos, overrides=overrides, seed=asked.seed, check=check, progress=show)
    figures = describe(tuning.best.trial)
    about = render("tune", tuning=tuning, figures=figures, machine=machine, rate=demand.rate).splitlines()
    for sentence in about:
        show(sentence)
    _write(configuration(tuning.best.config.options(), about), output, tune_result(tuning))
    return 0


def _slos(asked: DemandOptions, classes: Sequence[TrafficClass]) -> tuple[Slo, ...]:
    """Return the SLOs: those of --slo, by which all requests are evaluated, or the targets of classes."""
    stated, slos = parse_slos(asked.slo), slos_of(asked, classes)
    targets(stated)  # which a single class has not
    if stated and slos != stated:
        raise SloError(
            f"--slo has {stated[0]}, and --classes {slos[-1]}: requests are evaluated by one set of limits here; leave "
            "--slo out, or the targets of classes (ttft_ms and so on in their tables)."
        )
    check_slos(slos)
    return slos


def _tune_record(
    recorded: RecordOptions,
    given: PricedMachineOptions,
    slos: tuple[Slo, ...],
    verify: VerifyOptions,
    output: OutputOptions,
    values: dict[str, Any],
) -> int:
    check_writable(output.output, reads=[recorded.record])
    _check_verify(verify, given, values["load_format"], is_record=True)
    fixed = {name: values[name] for name in ("max_num_seqs", "max_num_batched_tokens")}
    with record_of(recorded) as path:
        retuning = retuned(recorded, path, slos, beyond=verify.verify > 0, **fixed)
        shadow = None
        if verify.verify:
            seconds, repeats = verify.verify_seconds or VERIFY_SECONDS, verify.verify_repeats or VERIFY_REPEATS
            shadow = shadowed(retuning, given, values["load_format"], seconds, repeats)
            retuning = with_shadow(retuning, shadow)
    about = render("retune", retuning=retuning, shadow=shadow)
    show(about)
    head = render("retuned_config", retuning=retuning, shadow=shadow).splitlines()
    _write(configuration(retuning.config.options(), head), output, retune_result(retuning, shadow))
    return 0


def _write(text: str, output: OutputOptions, result: Struct) -> None:
    """Write the configuration where it is wanted, and the result as JSON."""
    if output.output is not None:
        output.output.write_text(text, encoding="utf-8")
        show(f"Written to {output.output}.")
    if output.as_json:
        print(json_text(to_builtins(result)))
    elif output.output is None:
        print(text, end="")


def _check_verify(
    verify: VerifyOptions, machine: PricedMachineOptions, load_format: str | None, is_record: bool = False
) -> None:
    """Raise click.UsageError for options of the real engine that have no effect. is_record: it is the record's."""
    is_own = is_record or machine.step_model is not None
    if verify.verify and not is_own:
        raise click.UsageError("--verify runs the real engine of this machine; it goes with --step-model or --record.")
    if is_record and verify.verify > 1:
        raise click.UsageError(
            f"--verify is {verify.verify}, but for a record the proposed settings alone run beside the present ones; "
            "give --verify 1, and --verify-repeats for more runs of both."
        )
    of_engine = {
        "verify_seconds": verify.verify_seconds,
        "verify_repeats": verify.verify_repeats,
        "load_format": load_format,
        **({"model": machine.model, "family": machine.family} if is_own else {}),
    }
    for name, value in of_engine.items():
        if value is not None and not verify.verify:
            raise click.UsageError(f"{option(name)} is about the real engine, which only --verify runs; leave it out.")


def _runner(engine: EngineSettings, machine: Machine) -> EngineRun:
    """Return a function that runs a workload under settings on the real engine, a new one for each, without drafts, as
    trials are."""
    from inflight.build import build_engine  # loads numpy and the kernels

    def run(config: EngineConfig, workload: Workload, shares: tuple[float, float]) -> Summary:
        settings = replace(
            config.engine_settings(machine.max_model_len, machine.device),
            model=engine.model,
            family=engine.family,
            load_format=engine.load_format,
            block_size=machine.block_size,
            num_blocks=machine.blocks,
        )
        built = build_engine(settings, config.scheduling.drafting_from(OFF))
        return measure_on(built.loop, built.capacity.vocab_size, workload, shares)

    return run
