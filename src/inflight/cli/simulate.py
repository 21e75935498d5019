"""`inflight simulate`: a workload on simulated engines, with the real scheduler, on virtual time."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import click

from inflight.bench.run import Warmup, measured_part
from inflight.cli.bench_options import LoadOptions, WorkloadOptions, offer_of, warmup_of
from inflight.cli.declared import options_of, takes
from inflight.cli.drafts import DraftOptions
from inflight.cli.files import check_writable
from inflight.cli.live_replay import simulate_played as played
from inflight.cli.machines import DecodeOptions, MachineOptions, devices_of, refuse
from inflight.cli.options import config_option, record_option, scheduling_options, scheduling_settings
from inflight.cli.progress import Progress
from inflight.cli.simulated_engine import (
    MAX_OF_POOLS,
    PoolOptions,
    SimulatedEngine,
    SizeOptions,
    TierOptions,
    engine_options,
    pool_options,
    router_options_of,
    setup_of,
)
from inflight.cli.summary import figure, print_summary, show
from inflight.cli.verb import Verb
from inflight.config.assembly import budget
from inflight.config.engine import describe_engine
from inflight.config.setting import SettingsError, option, setting
from inflight.core.types.kv_transfer import TierStats
from inflight.counted import counted
from inflight.metrics.observation import programs
from inflight.metrics.slo import Slo, stated_share, without_programs
from inflight.metrics.summary import Summary, Window, summarize
from inflight.planning.device import Device, always
from inflight.records.json_text import json_text
from inflight.simulate.replicas import ScalingResult
from inflight.simulate.simulation import Simulation, SimulationSetup, best_split, simulate
from inflight.simulate.widening import UNCHANGED, Widening, widening
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
@takes(machine=MachineOptions)
@engine_options
@takes(tiers=TierOptions)
@scheduling_options
@takes(drafts=DraftOptions, load=LoadOptions, asked=WorkloadOptions)
@pool_options
@takes(decode=DecodeOptions)
@record_option
@takes(output=OutputOptions)
def command(
    machine: MachineOptions,
    tiers: TierOptions,
    drafts: DraftOptions,
    load: LoadOptions,
    asked: WorkloadOptions,
    decode: DecodeOptions,
    output: OutputOptions,
    record: Path | None,
    **values: Any,
) -> int:
    """Show how a deployment would perform, before there is one.

    On a machine that was calibrated (--step-model) or on GPUs by their data sheets (--model with --hardware). Engine
    and scheduling options are those of `inflight serve`; without them the engine is as it was when the step model was
    measured.
    """
    pools, size, seed = options_of(PoolOptions, values), options_of(SizeOptions, values), load.seed
    devices = devices_of(machine, decode, values["block_size"], values["max_num_seqs"])
    if machine.hardware is not None:
        refuse(pools, ("kv_bytes",), "--step-model", "--hardware")
    _check(pools, output, asked, record)
    check_writable(record, output.html, reads=[asked.trace, asked.classes, machine.step_model])
    scheduling, warmup = scheduling_settings(values), warmup_of(load.warmup)
    engine = SimulatedEngine(size, tiers, drafts, pools, output.noise)
    routing = router_options_of(values)
    first = engine.pool(devices[0], scheduling, routing, seed)
    of_requests, of_programs = without_programs(asked.slo)
    offer = offer_of(load, replace(asked, slo=of_requests))
    workload = replace(offer, max_model_len=first.capacity.max_model_len).workload()
    _check_programs(workload, of_programs)
    second = engine.pool(devices[1], scheduling, routing, seed + 1)
    content_seed = seed if load.prompt_seed is None else load.prompt_seed
    setup = replace(setup_of(pools, decode, (first, second), devices, seed), content_seed=content_seed)
    for note in (f"Workload: {workload.name}.", *workload.notes, *notes_of(setup, *devices)):
        show(note)
    if pools.split_replicas is not None:
        return _search(workload, setup, pools.split_replicas, output.as_json, warmup)
    html = output.html
    run = _simulated(workload, setup, record) if html is None else played(workload, setup, record, html)
    summary, why = summary_of(run, warmup)
    show(f"Measured: {why}.")
    report(run, summary)
    kept = {slo: kept_by(run, slo) for slo in of_programs}
    report_programs(kept)
    ends = [summary_of(_simulated(workload, one), warmup, by)[0] for one, by in _ends(setup, *devices)]
    if ends:
        report_ends(summary, *ends)
    if output.as_json:
        result = result_of(run, summary, workload, setup, *devices)
        print(json_text(result | _beside(kept, ends), indent=1))
    if not summary.requests:
        show("No request was answered, so there are no latencies.")
    return 0 if summary.requests else 1


class Kept(NamedTuple):
    """The share of the programs of a run that ended within a limit. One of which a call was refused did not."""

    programs: int
    share: float


def kept_by(run: Simulation, slo: Slo) -> Kept:
    """Return how many of the programs that began keep an SLO on their completion times."""
    found = [one.seconds for one in programs(run.observations) if slo.traffic in ("", one.traffic)]
    return Kept(len(found), sum(seconds <= slo.limit for seconds in found) / max(1, len(found)))


def _check_programs(workload: Workload, slos: Sequence[Slo]) -> None:
    """Raise SettingsError for a limit on programs of which the workload has none."""
    for slo in slos:
        if not any(one.program or one.session for one in workload.entries if slo.traffic in ("", one.traffic)):
            whose = f"of the class {slo.traffic} " if slo.traffic else ""
            raise SettingsError(
                f"--slo limits {slo.limit_name}, the time of whole programs, but all requests {whose}are single ones; "
                "give --turns, classes with turns, or a trace with programs, or limit e2e."
            )


def _simulated(workload: Workload, setup: SimulationSetup, record: Path | None = None) -> Simulation:
    """Simulate, and show how many requests have ended."""
    progress, ended = Progress("simulate", "requests"), itertools.count(1)
    try:
        count = len(workload.entries)
        return simulate(workload, setup, record, lambda index, observation: progress.update(next(ended), count))
    finally:
        progress.close()


def _check(pools: PoolOptions, output: OutputOptions, asked: WorkloadOptions, record: Path | None) -> None:
    """Raise click.UsageError for options that do not go together."""
    if stated_share(asked.slo) is not None:
        raise click.UsageError(
            "--slo names a percentile, but a simulation reports the share of requests within the limits; leave the "
            "percentile out, as in --slo ttft=500."
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


def _ends(setup: SimulationSetup, device: Device, second: Device) -> list[tuple[SimulationSetup, Widening]]:
    """Return the setup with steps at the slow end of published runs, and at their fast end, where none was measured,
    with the factors on TTFT, which is of the first pool, and on TPOT, which is of the second."""
    return [
        (
            replace(
                setup,
                pool=replace(setup.pool, model=always(model)),
                decode=setup.decode and replace(setup.decode, model=always(other)),
            ),
            Widening(widening(model).ttft, widening(other).tpot),
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


_MAX_CHANGES = 12  # of the number of replicas, that are shown
_OF_LATENCIES = ("ttft", "tpot", "itl", "e2e", "jct", "goodput", "attainment")  # in a summary
_POOLS = {1: ("replicas",), 2: ("prefill", "decode")}  # by the number of pools


def summary_of(run: Simulation, warmup: Warmup, by: Widening = UNCHANGED) -> tuple[Summary, str]:
    """Return the figures of the part that `inflight bench` would measure too, and which part that is. The time in which
    requests were sent decides whether latency grew: the whole run would not show it for a burst that is drained.

    Args:
        run: Whose requests were sent.
        warmup: That is left out.
        by: Factors on its latencies, with steps at an end of what is uncertain; rates stay.
    """
    sent = [one for one in run.observations if one.sent is not None]
    window, why = measured_part(sent, warmup)
    summary, last = summarize(sent, window), max(one.intended for one in sent)
    if by:
        found = summarize([by.of_observation(one) for one in sent], window)
        summary = replace(summary, **{name: getattr(found, name) for name in _OF_LATENCIES})
    if last <= window.start:
        return summary, why
    sending = summarize(sent, Window(window.start, last))
    return replace(summary, ttft_trend=sending.ttft_trend, offered_per_s=sending.offered_per_s), why


def notes_of(setup: SimulationSetup, device: Device, second: Device) -> list[str]:
    """Return what the answer rests on, as sentences. second: of the decode pool."""
    others = [("", "Engine", setup.pool, device)]
    if setup.decode is not None and second is not device:
        others.append((" of the decode pool", "Engine of the decode pool", setup.decode, second))
    notes = [f"Step model{of}: {one.model.name}; {describe_engine(one.name, one.depth)}." for of, _, _, one in others]
    if (link := setup.link) is not None:
        asked = "when the prompt is computed"
        if setup.disagg_mode.decode_asks != "after":
            grain = "by layers" if link.layers > 1 else "by chunks (the step model has no layers)"
            asked = f"at once, and blocks travel {grain} during prefill"
        notes.append(
            f"Transfers: {link.bytes_per_token / 1e3:,.0f} kB per prompt token at {link.gbps:,.0f} Gbit/s; a decode "
            f"engine is asked {asked}."
        )
    pool, block_size = setup.pool, setup.pool.capacity.block_size
    if pool.settings.kv_cache_host is not None:
        copy = "as in the step model" if pool.host is None else f"{pool.host.block_s * 1e6:,.0f} µs each way"
        when = "during the steps" if pool.capacity.asynchronous_transfers else "within the steps"
        notes.append(f"Host: {pool.capacity.host_blocks:,} blocks of {block_size} tokens, {copy}, {when}.")
    if pool.folder is not None:
        reads, writes = pool.folder.reads, pool.folder.writes
        notes.append(
            f"Folder: {pool.folder.blocks:,} blocks; each {reads.block_s * 1e6:,.0f} µs to read and "
            f"{writes.block_s * 1e6:,.0f} µs to write, {reads.setup_s * 1e3:,.2g} ms for each transfer."
        )
    return notes + [
        f"{title}: {one.capacity.max_rows:,} sequences, steps of {budget(one.settings, one.scheduling):,} tokens, KV "
        f"memory for {one.capacity.num_blocks * one.capacity.block_size:,} tokens."
        for _, title, one, computing in others
        if not computing.calibrated
    ]


def report_programs(kept: Mapping[Slo, Kept]) -> None:
    """Print the share of the programs within each limit."""
    for slo, found in kept.items():
        figure("programs", f"{found.share:.1%} of {counted(found.programs, 'program')} within {slo.limit_name}")


def report(run: Simulation, summary: Summary) -> None:
    """Print the figures."""
    print_summary(summary, run.preemptions)
    if refused := [one.error for one in run.observations if one.outcome == "failed"]:
        figure("failed", f"{len(refused):,} in all, the first because: {refused[0]}")
    if any(one.targets for one in run.observations):
        figure("goodput", f"{summary.goodput:,.2f} requests/s met all targets, {summary.attainment:.1%} of the offered")
    _report_drafts(run)
    if (tiers := _tiers(run)) is not None:
        figure(
            "tiers",
            f"of {tiers.asked:,} blocks looked for {tiers.brought:,} were fetched, {tiers.failed:,} failed, "
            f"{tiers.declined:,} were faster to compute; {tiers.stored:,} stored, {tiers.missed:,} evicted before that",
        )
    for scaled, name in zip(run.scaled, _POOLS[len(run.scaled)], strict=True):
        if scaled is not None:
            _report_scaling(scaled, name)
    if len(run.replicas) > 1 and not any(run.scaled):
        end = max(one.ended for one in run.observations)
        figure("replicas", f"busy {', '.join(f'{one.busy / end:.0%}' for one in run.replicas)}")
    for sentence, steps in run.extrapolated.items():
        figure("extrapolated", f"{steps:,} of {run.steps:,} steps. {sentence}")


def _report_scaling(scaled: ScalingResult, name: str) -> None:
    """Print the number of replicas over time, and their cost."""
    counts = scaled.over_time()
    highest = max(count for _, count in counts)
    figure(
        name,
        f"{min(count for _, count in counts)} to {highest}, {scaled.replica_seconds:,.0f} replica-seconds (with "
        f"{highest} all the time {highest * scaled.end:,.0f}), start and drain included",
    )
    changes = [f"{count} from {time:,.0f} s" for time, count in counts]
    left = f", and {counted(len(changes) - _MAX_CHANGES, 'change')} more" if len(changes) > _MAX_CHANGES else ""
    figure("", f"{', '.join(changes[:_MAX_CHANGES])}{left}")


def _report_drafts(run: Simulation) -> None:
    found = [one.last.speculation for one in run.replicas if one.last.speculation is not None]
    if found:
        drafted, accepted = sum(sum(one.drafted) for one in found), sum(sum(one.accepted) for one in found)
        share = sum(one.steps for one in found) / run.steps
        tokens = 1 + accepted / max(1, sum(one.chunks for one in found))
        figure(
            "drafts",
            f"{drafted:,} in {share:.0%} of the steps, {accepted / max(1, drafted):.0%} of them accepted; {tokens:.2f} "
            "tokens a step for requests with drafts",
        )


def _tiers(run: Simulation) -> TierStats | None:
    """Return the counts of all replicas together; None: there are no tiers."""
    found = [one.last.kv.tiers for one in run.replicas if one.last.kv.tiers is not None]
    if not found:
        return None
    return TierStats(*(sum(getattr(one, name) for one in found) for name in TierStats.__slots__))


def report_ends(usual: Summary, slow: Summary, fast: Summary) -> None:
    """Print the interval of the answer, from the fast end of published runs to their slow end."""
    if usual.saturated and not fast.saturated:
        figure("uncertain", "with steps at the fast end of published runs the load is within capacity")
    elif slow.saturated and not usual.saturated:
        figure("uncertain", "with steps at the slow end of published runs the load is above capacity")
    elif fast.saturated:
        figure("uncertain", "the load is above capacity even with steps at the fast end of published runs")
    if usual.saturated or slow.saturated:
        return
    intervals = []
    for name, share in (("ttft", "p50"), ("ttft", "p99"), ("tpot", "p50"), ("e2e", "p50")):
        low, high = (getattr(getattr(one, name), share) for one in (fast, slow))
        if low is not None and high is not None:
            intervals.append(f"{name.upper()} {share} {low * 1e3:,.0f} to {high * 1e3:,.0f}")
    if intervals:
        figure("uncertain", f"{', '.join(intervals)} ms, at the fast and at the slow end of published runs")


def result_of(
    run: Simulation, summary: Summary, workload: Workload, setup: SimulationSetup, device: Device, second: Device
) -> dict[str, Any]:
    """Return the result for JSON."""
    decode = {} if setup.decode is None else {"decode_step_model": second.model.name}
    scaling = {
        name: {"replica_seconds": scaled.replica_seconds, "over_time": scaled.over_time()}
        for scaled, name in zip(run.scaled, _POOLS[len(run.scaled)], strict=True)
        if scaled is not None
    }
    return {
        "kind": "simulation",
        "workload": workload.name,
        "notes": list(workload.notes),
        "step_model": device.model.name,
        **decode,
        "engine": None if device.engine is None else device.engine.name,
        "calibrated": device.calibrated and (setup.decode is None or second.calibrated),
        "summary": summary.to_json(),
        "preemptions": run.preemptions,
        "replicas": [
            {"steps": one.steps, "busy_seconds": one.busy, "preemptions": one.last.preemptions} for one in run.replicas
        ],
        "extrapolated": run.extrapolated,
        **({} if (tiers := _tiers(run)) is None else {"tiers": asdict(tiers)}),
        **({"scaling": scaling if len(run.scaled) > 1 else scaling["replicas"]} if scaling else {}),
    }


def _beside(kept: Mapping[Slo, Kept], ends: Sequence[Summary]) -> dict[str, Any]:
    """Return what the result for JSON has where it is asked for: programs, and both ends of what is uncertain."""
    found: dict[str, Any] = {}
    if kept:
        found["programs"] = [{"limit_s": slo.limit, **one._asdict()} for slo, one in kept.items()]
    if ends:
        found["uncertain"] = {"slow": ends[0].to_json(), "fast": ends[1].to_json()}
    return found
