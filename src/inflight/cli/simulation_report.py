"""What `inflight simulate` tells of a run, and on what it rests.

Knows sentences, tables and the JSON of the answer; nothing is run here.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from typing import Any

from inflight.bench.run import Warmup, measured_part
from inflight.cli.machines import Device
from inflight.cli.summary import print_summary
from inflight.config.assembly import budget
from inflight.config.engine import describe_engine
from inflight.core.types.kv_transfer import TierStats
from inflight.counted import counted
from inflight.metrics.summary import Summary, Window, summarize
from inflight.simulate.replicas import ScalingResult
from inflight.simulate.simulation import Simulation, SimulationSetup
from inflight.workload.workload import Workload


def summary_of(run: Simulation, warmup: Warmup) -> tuple[Summary, str]:
    """Of the part that `inflight bench` would measure, too; and which it is. Whether latency grew, the time in which
    requests were sent tells: of a burst that is drained, the whole run would not show it."""
    sent = [one for one in run.observations if one.sent is not None]
    window, why = measured_part(sent, warmup)
    summary, last = summarize(sent, window), max(one.intended for one in sent)
    if last <= window.start:
        return summary, why
    sending = summarize(sent, Window(window.start, last))
    return replace(summary, ttft_trend=sending.ttft_trend, offered_per_s=sending.offered_per_s), why


def notes_of(setup: SimulationSetup, device: Device, second: Device) -> list[str]:
    """On what the answer rests."""
    notes = [f"Step model: {device.model.name}; {describe_engine(device.name, device.depth)}."]
    if setup.decode is not None and second is not device:
        notes.append(
            f"Step model of the decode pool: {second.model.name}; {describe_engine(second.name, second.depth)}."
        )
    if setup.link is not None:
        notes.append(
            f"Transfers: {setup.link.bytes_per_token / 1e3:,.0f} kB per prompt token at {setup.link.gbps:,.0f} Gbit/s; "
            f"a decode engine is asked {_asked(setup)}."
        )
    notes += _tier_notes(setup)
    for title, pool, one in (("Engine", setup.pool, device), ("Engine of the decode pool", setup.decode, second)):
        if pool is not None and not one.calibrated and (pool is setup.pool or second is not device):
            notes.append(
                f"{title}: {pool.capacity.max_rows:,} sequences, steps of {budget(pool.settings, pool.scheduling):,} "
                f"tokens, KV memory for {pool.capacity.num_blocks * pool.capacity.block_size:,} tokens."
            )
    return notes


def _asked(setup: SimulationSetup) -> str:
    if setup.disagg_mode.decode_asks == "after":
        return "when the prompt is computed"
    by_layers = setup.link is not None and setup.link.layers > 1
    grain = "layer by layer" if by_layers else "chunk by chunk (the step model does not tell layers)"
    return f"at once, and blocks travel {grain} while it is computed"


def _tier_notes(setup: SimulationSetup) -> list[str]:
    pool, notes = setup.pool, []
    block_size = pool.capacity.block_size
    if pool.settings.kv_cache_host is not None:
        copy = "as the step model says" if pool.host is None else f"{pool.host.block_s * 1e6:,.0f} µs each way"
        beside = "beside the steps" if pool.capacity.asynchronous_transfers else "within the steps"
        notes.append(f"Host: {pool.capacity.host_blocks:,} blocks of {block_size} tokens, {copy}, {beside}.")
    if pool.folder is not None:
        reads, writes = pool.folder.reads, pool.folder.writes
        notes.append(
            f"Folder: {pool.folder.blocks:,} blocks; each {reads.block_s * 1e6:,.0f} µs to read and "
            f"{writes.block_s * 1e6:,.0f} µs to write, {reads.setup_s * 1e3:,.2g} ms for each transfer."
        )
    return notes


def report(run: Simulation, summary: Summary) -> None:
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
    _report_tiers(run)
    for scaled, name in zip(run.scaled, _POOLS[len(run.scaled)], strict=True):
        if scaled is not None:
            _report_scaling(scaled, name)
    if len(run.replicas) > 1 and not any(run.scaled):
        end = max(one.ended for one in run.observations)
        busy = [one.busy / end for one in run.replicas]
        print(f"replicas     busy {', '.join(f'{share:.0%}' for share in busy)}", file=sys.stderr)
    for sentence, steps in run.extrapolated.items():
        print(f"extrapolated {steps:,} of {run.steps:,} steps. {sentence}", file=sys.stderr)


_MOST_TOLD = 12  # changes of the number of replicas
_POOLS = {1: ("replicas",), 2: ("prefill", "decode")}  # by how many pools there are


def _report_scaling(scaled: ScalingResult, name: str) -> None:
    """How many there were, and what that took."""
    counts = scaled.over_time()
    most = max(count for _, count in counts)
    print(
        f"{name:<12} {min(count for _, count in counts)} to {most}, {scaled.replica_seconds:,.0f} replica-seconds "
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
    chunks = sum(one.chunks for one in found)
    print(
        f"drafts       {drafted:,} in {sum(one.steps for one in found) / run.steps:.0%} of the steps, "
        f"{accepted / max(1, drafted):.0%} of them right; {1 + accepted / max(1, chunks):.2f} tokens of a step for who "
        "had any",
        file=sys.stderr,
    )


def _tiers(run: Simulation) -> TierStats | None:
    """Of all replicas together; None: there are none."""
    found = [one.last.tiers for one in run.replicas if one.last.tiers is not None]
    if not found:
        return None
    return TierStats(*(sum(getattr(one, name) for one in found) for name in TierStats.__slots__))


def _report_tiers(run: Simulation) -> None:
    tiers = _tiers(run)
    if tiers is not None:
        print(
            f"tiers        of {tiers.asked:,} blocks looked for {tiers.brought:,} were brought, {tiers.failed:,} did "
            f"not come, {tiers.declined:,} were quicker computed; {tiers.stored:,} stored, {tiers.missed:,} gone "
            "before that",
            file=sys.stderr,
        )


def report_ends(usual: Summary, slow: Summary, fast: Summary) -> None:
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


def result_of(
    run: Simulation, summary: Summary, workload: Workload, setup: SimulationSetup, device: Device, second: Device
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
        **({} if (tiers := _tiers(run)) is None else {"tiers": asdict(tiers)}),
        **_scaling_result(run.scaled),
    }


def _scaling_result(pools: tuple[ScalingResult | None, ...]) -> dict[str, Any]:
    """over_time: [seconds, replicas that take requests from then on]. Of two pools by their names."""
    found = {
        name: {"replica_seconds": scaled.replica_seconds, "over_time": scaled.over_time()}
        for scaled, name in zip(pools, _POOLS[len(pools)], strict=True)
        if scaled is not None
    }
    if not found:
        return {}
    return {"scaling": found if len(pools) > 1 else found["replicas"]}
