"""`inflight lab`: policies and strategies under several workloads and seeds, simulated; the best on the real engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
from msgspec import to_builtins

from inflight.cli.bench_options import LoadOptions, WorkloadOptions, load_options, workload_options
from inflight.cli.contenders import Contender, read_contenders, read_settings, with_baseline
from inflight.cli.declared import options_of, settings_options
from inflight.cli.files import check_writable
from inflight.cli.lab_runs import REAL, SIMULATED, Bench, Offered, bench_of, merged
from inflight.cli.machines import MachineOptions, hardware_options
from inflight.cli.options import config_option, scheduling_options, scheduling_settings
from inflight.cli.progress import Interrupt
from inflight.cli.simulated_engine import engine_options
from inflight.cli.summary import show
from inflight.cli.variants import read_named
from inflight.cli.verb import Verb
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.config.setting import above_zero, at_least, option, setting
from inflight.counted import counted, printable
from inflight.metrics.confidence import Estimate
from inflight.records.json_text import json_text
from inflight.report.charts.quantity import quantity
from inflight.report.run import Report
from inflight.report.standings import FIGURES, HIGHER, Standing, rank_correlation, standings

VERIFY_SECONDS, VERIFY_REPEATS = 20.0, 3
_UNITS = {"goodput": "requests/s", "attainment": "share", "output_tokens_per_s": "tokens/s", "fairness": ""}
_SHOWN = {  # heading of each column
    "goodput": "goodput",
    "attainment": "attained",
    "output_tokens_per_s": "output",
    "ttft_p99": "TTFT p99",
    "tpot_p99": "TPOT p99",
    "e2e_p99": "E2E p99",
    "e2e_mean": "E2E mean",
    "fairness": "fairness",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LabOptions:
    """Contenders, workloads, and the figure that decides."""

    settings: tuple[str, ...] = setting(
        (),
        "A contender by scheduling options; several.",
        "Contenders and workloads",
        flags=("--setting",),
        metavar="NAME=OPTIONS",
    )
    workloads: tuple[str, ...] = setting(
        (),
        "A workload by options of load and workload; several. Without it, the one of the options beside it.",
        flags=("--workload",),
        metavar="NAME=OPTIONS",
    )
    seeds: int = setting(
        5,
        "Draws of each workload; of a trace with its own times, stretches of --trace-seconds each.",
        bound=at_least(1),
    )
    by: str = setting("", f"Figure that decides: {', '.join(FIGURES)}.  [default: goodput with --slo, else e2e_mean]")


@dataclass(frozen=True, slots=True, kw_only=True)
class RealOptions:
    """Runs on the real engine."""

    verify: int = setting(0, "Run the baseline and so many of the best.", "On the real engine", bound=at_least(0))
    verify_seconds: float = setting(VERIFY_SECONDS, "Seconds of arrivals in each run.", bound=above_zero("seconds"))
    verify_repeats: int = setting(VERIFY_REPEATS, "Runs of each, in turns.", bound=at_least(1))


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputOptions:
    """The forms of the result."""

    html: Path | None = setting(None, "Write a page with pictures here.", "Options", path="file")
    as_json: bool = setting(False, "Print the standings as JSON.", flags=("--json",))


@click.command("lab", cls=Verb)
@click.argument("contenders", nargs=-1, metavar="[POLICY|FILE.py|FOLDER]...")
@config_option
@settings_options(LabOptions)
@hardware_options
@engine_options
@scheduling_options
@load_options
@workload_options
@settings_options(RealOptions)
@settings_options(EngineSettings, only=("load_format",), group="On the real engine", unset=("load_format",))
@settings_options(OutputOptions)
def command(contenders: tuple[str, ...], **values: Any) -> int:
    """Compare policies: those of a folder, others by name, on several workloads and seeds, in simulation.

    \b
    inflight lab my-policies/ sjf deadline --step-model machine.json --rate 3 --slo ttft=500
    inflight lab my-policies/ --step-model machine.json --verify 2 --html lab.html
        --workload 'chat=--trace chat.csv --trace-seconds 300' --workload 'mixed=--classes mixed.toml --rate 4'

    A FILE.py or a FOLDER of them has classes of policies, strategies or predictors; all else are names. Without any,
    all policies contend. First come, first served is the baseline. Each seed's requests are the same for all, so that
    ratios are paired. With --verify the best run on this machine's engine, too (--model), in turns.
    """
    lab, real = options_of(LabOptions, values), options_of(RealOptions, values)
    output, asked = options_of(OutputOptions, values), options_of(WorkloadOptions, values)
    machine = options_of(MachineOptions, values)
    _check(lab, real, machine, values["load_format"])
    check_writable(output.html, reads=[asked.trace, asked.classes, machine.step_model])
    bench = bench_of(machine, bool(real.verify), values)
    offers = [Offered(*read_named(_workload, "--workload", "chat=--rate 3", text)[::2]) for text in lab.workloads]
    offers = offers or [Offered("", (options_of(LoadOptions, values), asked))]
    common = scheduling_settings(values)
    found = with_baseline([*_named(contenders, lab, common), *read_settings(lab.settings)], common)
    made = [offer.draws(lab.seeds, bench.longest) for offer in offers]
    by = lab.by or ("goodput" if any(one.has_targets for one in offers) else "e2e_mean")
    for note in bench.notes(found[0]):
        show(note)
    with Interrupt() as interrupt:
        report = bench.run(found, made, interrupt)
        if not report.settings:
            show("Stopped before the first workload was complete; there is nothing to compare.")
            return 130
        if not output.as_json:
            _print(standings(report, by), by)
        if real.verify and not interrupt.wanted:
            best = _best(standings(report, by), by, real.verify)
            report = _verified(
                bench, report, [one for one in found if one.name in best], offers[0], by, real, interrupt
            )
            if not output.as_json:
                _print([one for one in standings(report, by) if one.load in (SIMULATED, REAL)], by)
    places = standings(report, by)
    if output.html is not None:
        from inflight.report.page import render

        output.html.write_text(render(replace(report, about=tuple(_best_of_each(places, by)))), encoding="utf-8")
        show(f"{output.html} is written; open it in a browser.")
    if output.as_json:
        print(json_text({"kind": "lab", "by": by, "standings": to_builtins(places)}, indent=1))
    return 0


@click.command("workload", add_help_option=False)
@load_options
@workload_options
def _workload(**values: Any) -> tuple[LoadOptions, WorkloadOptions]:
    return options_of(LoadOptions, values), options_of(WorkloadOptions, values)


def _named(names: Sequence[str], lab: LabOptions, common: SchedulingSettings) -> list[Contender]:
    """Return the contenders by name. All policies only where no --setting is given either."""
    return read_contenders(names, common) if names or not lab.settings else []


def _check(lab: LabOptions, real: RealOptions, machine: MachineOptions, load_format: str | None) -> None:
    """Raise click.UsageError for options that do not go together."""
    if lab.by and lab.by not in FIGURES:
        raise click.UsageError(f"--by is {lab.by!r}; known are: {', '.join(FIGURES)}.")
    if real.verify and machine.step_model is None:
        raise click.UsageError("--verify runs the real engine of this machine; it goes with --step-model.")
    if not real.verify:
        own = {"load_format": load_format}
        if machine.step_model is not None:
            own |= {"model": machine.model, "family": machine.family}
        for name in (name for name, value in own.items() if value is not None):
            raise click.UsageError(f"{option(name)} is about the real engine, which only --verify runs; leave it out.")


def _verified(
    bench: Bench,
    report: Report,
    chosen: Sequence[Contender],
    offer: Offered,
    by: str,
    real: RealOptions,
    interrupt: Interrupt,
) -> Report:
    """Run the chosen on the real engine, and in simulation on the same requests; return the report with both."""
    workloads = offer.workloads(1, bench.longest, real.verify_seconds)
    simulated = bench.run(chosen, [(SIMULATED, workloads)], interrupt)
    measured = bench.measure(chosen, workloads[0], real.verify_repeats, interrupt)
    _print_agreement(simulated, measured, by)
    return merged(report, (simulated, measured))


def _best(places: Sequence[Standing], by: str, number: int) -> list[str]:
    """Return the baseline and the best contenders on the first workload."""
    first = [one for one in places if one.load == places[0].load and by in one.figures]
    sign = -1.0 if by in HIGHER else 1.0
    ordered = sorted(first, key=lambda one: sign * one.figures[by].mean)
    return [places[0].contender, *(one.contender for one in ordered if one is not places[0])][: number + 1]


# -- standings as text ------------------------------------------------------------------------------------------


def _print(places: Sequence[Standing], by: str) -> None:
    """Print a table for each workload on standard output."""
    keys = [key for key in _SHOWN if any(key in one.figures for one in places)]
    for load in dict.fromkeys(one.load for one in places):
        some = [one for one in places if one.load == load]
        rows = [["contender", f"× {some[0].contender}, {_SHOWN[by]}", *(_SHOWN[key] for key in keys)]]
        rows += [_row(one, keys, by) for one in some]
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        runs = max((found.repeats for found in some[0].figures.values()), default=0)
        print(printable(f"\n{load}; {counted(runs, 'run')} each", keep="\n"))
        for row in rows:
            cells = [
                row[0].ljust(widths[0]),
                *(text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True)),
            ]
            print(printable("  ".join(cells)))
        if sentence := _best_of(some, by):
            print(printable(f"* {sentence}"))


def _row(one: Standing, keys: Sequence[str], by: str) -> list[str]:
    values = [_value(one.figures.get(key), key) for key in keys]
    name = f"{one.contender}{' *' if one.is_best else ''}{', saturated' if one.saturated else ''}"
    return [name, _ratio(one.ratio), *values]


def _ratio(ratio: Estimate | None) -> str:
    if ratio is None:
        return "-"
    interval = "" if ratio.low is None else f" ({ratio.low:.3f} to {ratio.high:.3f})"
    return f"{ratio.mean:.3f}{interval}"


def _value(found: Estimate | None, key: str) -> str:
    return "-" if found is None else quantity(found.mean, _UNITS.get(key, "s"))


def _best_of_each(places: Sequence[Standing], by: str) -> Iterator[str]:
    """Yield a sentence for each workload: which contender was best, and by how much."""
    for load in dict.fromkeys(one.load for one in places):
        sentence = _best_of([one for one in places if one.load == load], by)
        if sentence:
            yield f"{load}: {sentence}"


def _best_of(some: Sequence[Standing], by: str) -> str:
    """Say which of one workload's contenders was best, and by how much; "" where none was."""
    best = next((one for one in some if one.is_best), None)
    if best is None:
        return ""
    ratio = "" if best.ratio is None else f", {_ratio(best.ratio)} times that of {some[0].contender}"
    return f"best {_SHOWN[by]} with {best.contender}, {_value(best.figures[by], by)}{ratio}."


def _print_agreement(simulated: Report, measured: Report, by: str) -> None:
    """Print how far simulator and engine agree on the order of the contenders."""
    one, other = (
        {place.contender: place.figures[by].mean for place in standings(report, by) if by in place.figures}
        for report in (simulated, measured)
    )
    names = [name for name in one if name in other]
    found = rank_correlation([one[name] for name in names], [other[name] for name in names])
    if found is None:
        show(
            f"{counted(len(names), 'contender')} ran on the real engine: too few, or too alike, for a rank correlation."
        )
    else:
        show(f"Rank correlation of simulation and engine over {len(names)} contenders, by {_SHOWN[by]}: {found:.2f}.")
