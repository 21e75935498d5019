"""Report a simulation: what its answer rests on, its figures on standard error, and its result as JSON."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from inflight.bench.run import Warmup, measured_part
from inflight.cli.machines import Device
from inflight.cli.summary import figure, print_summary
from inflight.config.assembly import budget
from inflight.config.engine import describe_engine
from inflight.core.types.kv_transfer import TierStats
from inflight.counted import counted
from inflight.metrics.summary import Summary, Window, summarize
from inflight.simulate.replicas import ScalingResult
from inflight.simulate.simulation import Simulation, SimulationSetup
from inflight.workload.workload import Workload

_MAX_CHANGES = 12  # of the number of replicas, that are shown
_POOLS = {1: ("replicas",), 2: ("prefill", "decode")}  # by the number of pools


def summary_of(run: Simulation, warmup: Warmup) -> tuple[Summary, str]:
    """Return the figures of the part that `inflight bench` would measure too, and which part that is. The time in which
    requests were sent decides whether latency grew: the whole run would not show it for a burst that is drained."""
    sent = [one for one in run.observations if one.sent is not None]
    window, why = measured_part(sent, warmup)
    summary, last = summarize(sent, window), max(one.intended for one in sent)
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
    found = [one.last.tiers for one in run.replicas if one.last.tiers is not None]
    if not found:
        return None
    return TierStats(*(sum(getattr(one, name) for one in found) for name in TierStats.__slots__))


def report_ends(usual: Summary, slow: Summary, fast: Summary) -> None:
    """Print the interval of the answer, from every efficiency at its fast end to every one at its slow end."""
    if usual.saturated and not fast.saturated:
        figure("uncertain", "with every efficiency at its fast end the load is within capacity")
    elif slow.saturated and not usual.saturated:
        figure("uncertain", "with every efficiency at its slow end the load is above capacity")
    elif fast.saturated:
        figure("uncertain", "the load is above capacity even with every efficiency at its fast end")
    if usual.saturated or slow.saturated:
        return
    intervals = []
    for name, share in (("ttft", "p50"), ("ttft", "p99"), ("tpot", "p50"), ("e2e", "p50")):
        low, high = (getattr(getattr(one, name), share) for one in (fast, slow))
        if low is not None and high is not None:
            intervals.append(f"{name.upper()} {share} {low * 1e3:,.0f} to {high * 1e3:,.0f}")
    if intervals:
        figure("uncertain", f"{', '.join(intervals)} ms, with every efficiency at its fast and at its slow end")


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
