"""`inflight simulate`: a workload on simulated engines, with the real scheduler, on virtual time."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from inflight.bench.run import Warmup, measured_part
from inflight.cli.bench_options import (
    LoadOptions,
    WorkloadOptions,
    load_options,
    offer_of,
    warmup_of,
    workload_options,
)
from inflight.cli.drafts import draft_options, drafts_of
from inflight.cli.files import check_writable
from inflight.cli.live_replay import simulate_played
from inflight.cli.machines import Device, always, check_decode, decode_options, devices_of, hardware_options
from inflight.cli.options import (
    config_option,
    declared,
    options_of,
    record_option,
    scheduling_options,
    scheduling_settings,
)
from inflight.cli.summary import print_summary
from inflight.cli.verb import Verb, grouped
from inflight.config.assembly import budget
from inflight.config.engine import DEFAULT_ROWS, EngineSettings, placed
from inflight.config.scheduling import SchedulingSettings
from inflight.config.setting import SettingsError
from inflight.config.speculation import OFF, DraftSource, DraftSupport, resolve_speculation
from inflight.core.options import OptionValues
from inflight.core.types.plan import Capacity
from inflight.counted import counted
from inflight.metrics.slo import stated_share
from inflight.metrics.summary import Summary, Window, summarize
from inflight.planning.machine import BLOCK_SIZE
from inflight.records.json_text import json_text
from inflight.routing.registry import OPTIONS, ROUTERS
from inflight.simulate.cluster import Link
from inflight.simulate.drafting import SimulatedDrafts
from inflight.simulate.scaled_pool import START_SECONDS, Scaled, Scaling
from inflight.simulate.simulation import Pool, Setup, Simulation, best_split, simulate
from inflight.workload.workload import Workload

SETUP_MS = 1.0  # of a transfer between pools


_engine_options = grouped(
    "Engine",
    click.option("--max-num-seqs", type=int, help="Most sequences running at once; as measured, or 256 on a GPU."),
    click.option("--max-num-batched-tokens", type=int, help="Most tokens of one step; of prompts 2,048 on a GPU."),
    click.option("--max-model-len", type=int, help="Most tokens of prompt and answer; as measured, or the model's."),
    click.option("--block-size", type=int, help="Tokens per KV block; as measured, or 16."),
    click.option("--num-blocks", type=int, help="KV blocks; as measured, or what the GPUs' memory holds."),
    click.option("--no-prefix-caching", is_flag=True, help="Share no prefixes."),
    click.option("--watermark", type=float, default=0.01, show_default=True, help="Share of blocks newcomers leave."),
)
_pool_options = grouped(
    "Replicas and pools",
    click.option("--replicas", type=int, help="Engines behind the router; 1 unless set."),
    click.option(
        "--max-replicas", type=int, help="Engines that long queues may make of them, as `inflight serve` does."
    ),
    click.option(
        "--replica-start-seconds",
        type=float,
        help=f"From when one more engine is wanted until it takes requests; {START_SECONDS:g} unless set.",
    ),
    click.option("--router", default="round-robin", show_default=True, help=f"{', '.join(ROUTERS)}."),
    *declared(OPTIONS),
    click.option("--prefill-replicas", type=int, help="Engines that compute prompts and first tokens only."),
    click.option("--decode-replicas", type=int, help="Engines that go on from there."),
    click.option("--split-replicas", type=int, help="So many engines in all; the best split into the two is searched."),
    click.option(
        "--transfer-gbps", type=float, help="Gigabits per second from a prefill engine; of GPUs their cards'."
    ),
    click.option("--transfer-setup-ms", type=float, help=f"That every transfer takes; {SETUP_MS:g} unless set."),
    click.option("--kv-bytes", type=float, help="Bytes of keys and values per token, for transfers and swap space."),
)


@click.command("simulate", cls=Verb)
@config_option
@hardware_options
@_engine_options
@scheduling_options
@draft_options
@load_options
@workload_options
@_pool_options
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
    if values["max_replicas"] is not None and values["html"] is not None:
        raise click.UsageError(
            "--html plays engines that are there all the time, and with --max-replicas they come and go; leave one of "
            "them out."
        )
    check_writable(values["record"], values["html"], reads=[values["trace"], values["classes"], values["step_model"]])
    record, as_json, seed = values.pop("record"), values.pop("as_json"), values["seed"]
    html = values.pop("html")
    scheduling, warmup = scheduling_settings(values), warmup_of(values["warmup"])
    first = _pool(device, values, scheduling, seed)
    offer = offer_of(options_of(LoadOptions, values), options_of(WorkloadOptions, values))
    workload = replace(offer, max_model_len=first.capacity.max_model_len).workload()
    setup = _setup(values, first, _pool(second, values, scheduling, seed + 1), (device, second), seed)
    for note in (f"Workload: {workload.name}.", *workload.notes, *_notes(setup, device, second)):
        print(note, file=sys.stderr)
    if values["split_replicas"] is not None:
        return _search(workload, setup, values["split_replicas"], as_json, warmup)
    run = simulate(workload, setup, record) if html is None else simulate_played(workload, setup, record, html)
    summary, why = _summary(run, warmup)
    print(f"Measured: {why}.", file=sys.stderr)
    _report(run, summary)
    ends = [_summary(simulate(workload, one), warmup)[0] for one in _ends(setup, device, second)]
    if ends:
        _report_ends(summary, *ends)
    if as_json:
        result = _result(run, summary, workload, setup, device, second)
        if ends:
            result["uncertain"] = {"slow": ends[0].to_json(), "fast": ends[1].to_json()}
        print(json_text(result, indent=1))
    if not summary.requests:
        print("Not one request was answered, so that there is nothing to be told of latency.", file=sys.stderr)
    return 0 if summary.requests else 1


def _summary(run: Simulation, warmup: Warmup) -> tuple[Summary, str]:
    """Of the part that `inflight bench` would measure, too; and which it is. Whether latency grew, the time in which
    requests were sent tells: of a burst that is drained, the whole run would not show it."""
    sent = [one for one in run.observations if one.sent is not None]
    window, why = measured_part(sent, warmup)
    summary, last = summarize(sent, window), max(one.intended for one in sent)
    if last <= window.start:
        return summary, why
    sending = summarize(sent, Window(window.start, last))
    return replace(summary, ttft_trend=sending.ttft_trend, offered_per_s=sending.offered_per_s), why


def _notes(setup: Setup, device: Device, second: Device) -> list[str]:
    """On what the answer rests."""
    notes = [f"Step model: {device.model.name}; {placed(device.name, device.depth)}."]
    if setup.decode is not None and second is not device:
        notes.append(f"Step model of the decode pool: {second.model.name}; {placed(second.name, second.depth)}.")
    if setup.link is not None:
        notes.append(
            f"Transfers: {setup.link.bytes_per_token / 1e3:,.0f} kB per prompt token at {setup.link.gbps:,.0f} Gbit/s."
        )
    for title, pool, one in (("Engine", setup.pool, device), ("Engine of the decode pool", setup.decode, second)):
        if pool is not None and not one.calibrated and (pool is setup.pool or second is not device):
            notes.append(
                f"{title}: {pool.capacity.max_rows:,} sequences, steps of {budget(pool.settings, pool.scheduling):,} "
                f"tokens, KV memory for {pool.capacity.num_blocks * pool.capacity.block_size:,} tokens."
            )
    return notes


def _pool(device: Device, values: dict[str, Any], scheduling: SchedulingSettings, seed: int) -> Pool:
    """An engine like the measured one, or as large as the GPUs' memory, but for what is given."""
    if not device.is_own:
        scheduling = scheduling.ending_early(0)
    capacity = _capacity(device, values, scheduling)
    settings = EngineSettings(
        device=device.name,
        max_num_seqs=capacity.max_rows,
        max_num_batched_tokens=values["max_num_batched_tokens"],
        max_model_len=capacity.max_model_len,
        block_size=capacity.block_size,
        num_blocks=capacity.num_blocks,
        enable_prefix_caching=not values["no_prefix_caching"],
        watermark=values["watermark"],
        seed=seed,
    )
    models = device.models(values["noise"], seed)
    drafts = drafts_of(values, scheduling.draft_source.kind, seed)
    scheduling = scheduling.drafting_from(_draft_source(scheduling, capacity, drafts))
    replicas = 1 if values["replicas"] is None else values["replicas"]
    router_options = OptionValues({name: values[name] for name in OPTIONS if values[name] is not None})
    used = drafts if scheduling.draft_source.kind != "off" else None
    return Pool(capacity, settings, scheduling, models, replicas, values["router"], router_options, used, device.depth)


def _draft_source(scheduling: SchedulingSettings, capacity: Capacity, drafts: SimulatedDrafts | None) -> DraftSource:
    """In force on a model of this capacity, where something was said of its drafts. Raises SettingsError."""
    if drafts is None:
        return OFF
    return resolve_speculation(scheduling.draft_source, DraftSupport(has_state=capacity.state_snapshots > 0))[0]


def _capacity(device: Device, values: dict[str, Any], scheduling: SchedulingSettings) -> Capacity:
    known = device.known
    block_size = EngineSettings(block_size=_given(values["block_size"], known.get("block_size"), BLOCK_SIZE)).block_size
    num_blocks = values["num_blocks"]
    if num_blocks is None and "num_blocks" in known and "block_size" in known:
        num_blocks = known["num_blocks"] * known["block_size"] // block_size
    length = known.get("max_model_len") if values["max_model_len"] is None else values["max_model_len"]
    if num_blocks is None or length is None:
        missing = "--num-blocks" if num_blocks is None else "--max-model-len"
        raise click.UsageError(f"The step model does not say how large the measured engine was; give {missing}.")
    host_blocks = 0
    if scheduling.swap_space is not None:
        bytes_per_block = _kv_bytes(device.host_bytes, values, "--swap-space") * block_size
        host_blocks = int(scheduling.swap_space * 2**30 / bytes_per_block)
    return Capacity(
        num_blocks=num_blocks,
        block_size=block_size,
        max_rows=_given(values["max_num_seqs"], known.get("max_rows"), DEFAULT_ROWS),
        max_model_len=length,
        vocab_size=known.get("vocab_size") or 32_000,
        host_blocks=host_blocks,
        copy_seconds=known.get("copy_seconds", 0.0) if host_blocks else 0.0,
        windows=tuple(known.get("windows", (0,))),
        state_snapshots=known.get("state_snapshots", 0),
    )


def _given(asked: int | None, known: int | None, else_: int) -> int:
    """What was asked for, 0 too, which the settings refuse."""
    return asked if asked is not None else known or else_


def _kv_bytes(known: float | None, values: dict[str, Any], option: str) -> float:
    found = known if values["kv_bytes"] is None else values["kv_bytes"]
    if found is not None and not 0 < found < math.inf:
        raise click.UsageError(f"--kv-bytes is {found:g}; give bytes of keys and values per token, above 0.")
    if found is None:
        raise click.UsageError(f"{option} needs the bytes of a token, which the step model lacks; give --kv-bytes.")
    return float(found)


def _setup(values: dict[str, Any], first: Pool, second: Pool, devices: tuple[Device, Device], seed: int) -> Setup:
    content_seed = seed if values["prompt_seed"] is None else values["prompt_seed"]
    prefill, decode, split = (values[f"{name}_replicas"] for name in ("prefill", "decode", "split"))
    if values["replicas"] is not None and values["replicas"] < 1:
        raise click.UsageError(f"--replicas is {values['replicas']}; give a number from 1.")
    if prefill is None and decode is None and split is None:
        check_decode(values, first.scheduling.swap_space is not None)
        return Setup(replace(first, scaling=_scaling(values, first.replicas)), seed=seed, content_seed=content_seed)
    if values["max_replicas"] is not None or values["replica_start_seconds"] is not None:
        raise click.UsageError(
            "--max-replicas and --replica-start-seconds are of engines that do both prompts and decodes, and have no "
            "effect where there are two pools; leave them out."
        )
    if values["replicas"] is not None:
        raise click.UsageError(
            "--replicas counts engines that do both prompts and decodes, and has no effect where there are two pools; "
            "leave it out."
        )
    if split is not None and (prefill is not None or decode is not None or split < 2):
        raise click.UsageError("--split-replicas searches the split of at least 2 engines; give it alone.")
    if split is None and (prefill is None or decode is None or min(prefill, decode) < 1):
        raise click.UsageError("--prefill-replicas and --decode-replicas go together, at least 1 each.")
    link = _link(values, devices)
    sized = [replace(pool, replicas=number or 1) for pool, number in ((first, prefill), (second, decode))]
    return Setup(sized[0], sized[1], link, seed, content_seed)


def _scaling(values: dict[str, Any], least: int) -> Scaling | None:
    most, seconds = values["max_replicas"], values["replica_start_seconds"]
    if most is None:
        if seconds is not None:
            raise click.UsageError(
                "--replica-start-seconds is of engines that are added while others run, and there are none; give "
                "--max-replicas as well."
            )
        return None
    if most < least:
        raise click.UsageError(f"--max-replicas is {most}, and there are {least} from the start; give {least} or more.")
    if seconds is not None and not 0 <= seconds < math.inf:
        raise click.UsageError(f"--replica-start-seconds is {seconds:g}; give seconds, from 0.")
    return Scaling(most, START_SECONDS if seconds is None else seconds)


def _link(values: dict[str, Any], devices: tuple[Device, Device]) -> Link:
    """From one engine of the first pool; of GPUs as fast as the network cards of the slower end, unless given."""
    gbps = values["transfer_gbps"]
    if gbps is not None and not 0 < gbps < math.inf:
        raise click.UsageError(f"--transfer-gbps is {gbps:g}; give gigabits per second, above 0.")
    if gbps is None and devices[0].link_gbps is not None and devices[1].link_gbps is not None:
        gbps = min(devices[0].link_gbps, devices[1].link_gbps)
    if gbps is None:
        raise click.UsageError("Keys and values must move between the pools; give --transfer-gbps, such as 100.")
    kv_bytes = _kv_bytes(devices[0].known.get("bytes_per_token"), values, "--transfer-gbps")
    setup_ms = SETUP_MS if values["transfer_setup_ms"] is None else values["transfer_setup_ms"]
    if not 0 <= setup_ms < math.inf:
        raise click.UsageError(f"--transfer-setup-ms is {setup_ms:g}; give milliseconds, from 0.")
    return Link(kv_bytes, gbps, setup_ms / 1e3)


def _report(run: Simulation, summary: Summary) -> None:
    print_summary(summary, run.preemptions)
    refused = [one.error for one in run.observations if one.outcome == "failed"]
    if refused:
        print(f"failed       {len(refused):,} in all, the first since: {refused[0]}", file=sys.stderr)
    if any(one.targets for one in run.observations):
        print(
            f"goodput      {summary.goodput:,.2f} requests/s met all targets, {summary.attainment:.1%} of the offered",
            file=sys.stderr,
        )
    _report_drafts(run)
    if run.scaled is not None:
        _report_scaling(run.scaled)
    elif len(run.replicas) > 1:
        end = max(one.ended for one in run.observations)
        busy = [one.busy / end for one in run.replicas]
        print(f"replicas     busy {', '.join(f'{share:.0%}' for share in busy)}", file=sys.stderr)
    for sentence, steps in run.extrapolated.items():
        print(f"extrapolated {steps:,} of {run.steps:,} steps. {sentence}", file=sys.stderr)


_MOST_TOLD = 12  # changes of the number of replicas


def _report_scaling(scaled: Scaled) -> None:
    """How many there were, and what that took."""
    counts = scaled.over_time()
    most = max(count for _, count in counts)
    print(
        f"replicas     {min(count for _, count in counts)} to {most}, {scaled.replica_seconds:,.0f} replica-seconds "
        f"(with {most} all the time {most * scaled.end:,.0f}), those in which they start and drain among them",
        file=sys.stderr,
    )
    told = [f"{count} from {time:,.0f} s" for time, count in counts]
    left = f", and {counted(len(told) - _MOST_TOLD, 'change')} more" if len(told) > _MOST_TOLD else ""
    print(f"             {', '.join(told[:_MOST_TOLD])}{left}", file=sys.stderr)


def _report_drafts(run: Simulation) -> None:
    """What speculation did, where there was any."""
    found = [one.last.speculation for one in run.replicas if one.last.speculation is not None]
    if not found:
        return
    drafted, accepted = sum(sum(one.drafted) for one in found), sum(sum(one.accepted) for one in found)
    chunks = sum(number for one in found for _, number in one.chosen)
    print(
        f"drafts       {drafted:,} in {sum(one.steps for one in found) / run.steps:.0%} of the steps, "
        f"{accepted / max(1, drafted):.0%} of them right; {1 + accepted / max(1, chunks):.2f} tokens of a step for who "
        "had any",
        file=sys.stderr,
    )


def _ends(setup: Setup, device: Device, second: Device) -> list[Setup]:
    """The same with every efficiency at its slow end, and at its fast end, where steps were not measured."""
    found = []
    for model, other in zip(device.cases, second.cases, strict=True):
        first = replace(setup.pool, model=always(model))
        decode = setup.decode and replace(setup.decode, model=always(other))
        found.append(replace(setup, pool=first, decode=decode))
    return found


def _report_ends(usual: Summary, slow: Summary, fast: Summary) -> None:
    """The interval that the answer lies in."""
    if usual.saturated and not fast.saturated:
        print("uncertain    with every efficiency at its fast end the load is within capacity", file=sys.stderr)
    elif slow.saturated and not usual.saturated:
        print("uncertain    with every efficiency at its slow end the load is above capacity", file=sys.stderr)
    elif fast.saturated:
        print("uncertain    the load is above capacity even with every efficiency at its fast end", file=sys.stderr)
    if usual.saturated or slow.saturated:
        return
    intervals = []
    for name, share in (("ttft", "p50"), ("ttft", "p99"), ("tpot", "p50"), ("e2e", "p50")):
        low, high = (getattr(getattr(one, name), share) for one in (fast, slow))
        if low is not None and high is not None:
            intervals.append(f"{name.upper()} {share} {low * 1e3:,.0f} to {high * 1e3:,.0f}")
    if intervals:
        print(
            f"uncertain    {', '.join(intervals)} ms, with every efficiency at its fast and at its slow end",
            file=sys.stderr,
        )


def _search(workload: Workload, setup: Setup, total: int, as_json: bool, warmup: Warmup) -> int:
    if not any(entry.targets for entry in workload.entries):
        raise SettingsError("The best split is the one with the highest goodput, which needs targets; give --slo.")
    found = best_split(workload, setup, total, lambda run: _summary(run, warmup)[0].goodput)
    print("prefill  decode  goodput, requests/s  attainment", file=sys.stderr)
    for prefill, decode, run, goodput in found:
        print(
            f"{prefill:>7}  {decode:>6}  {goodput:>19,.2f}  {_summary(run, warmup)[0].attainment:>10.1%}",
            file=sys.stderr,
        )
    if as_json:
        keys = ("prefill_replicas", "decode_replicas", "goodput")
        print(json_text([dict(zip(keys, (one[0], one[1], one[3]), strict=True)) for one in found], indent=1))
    return 0


def _result(
    run: Simulation, summary: Summary, workload: Workload, setup: Setup, device: Device, second: Device
) -> dict[str, Any]:
    decode = {} if setup.decode is None else {"decode_step_model": second.model.name}
    return {
        "kind": "simulation",
        "workload": workload.name,
        "notes": list(workload.notes),
        "step_model": device.model.name,
        **decode,
        "calibrated": device.calibrated and (setup.decode is None or second.calibrated),
        "summary": summary.to_json(),
        "preemptions": run.preemptions,
        "replicas": [
            {"steps": one.steps, "busy_seconds": one.busy, "preemptions": one.last.preemptions} for one in run.replicas
        ],
        "extrapolated": run.extrapolated,
        **_scaling_result(run.scaled),
    }


def _scaling_result(scaled: Scaled | None) -> dict[str, Any]:
    """over_time: [seconds, replicas that take requests from then on]."""
    if scaled is None:
        return {}
    return {"scaling": {"replica_seconds": scaled.replica_seconds, "over_time": scaled.over_time()}}
