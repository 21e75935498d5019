"""Figures of an engine's run, from its steps and its ended requests, by the definitions of the metrics package."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from inflight.core.types.timings import QUEUE_REASONS
from inflight.metrics.definitions import (
    Percentiles,
    jain,
    kv_waste,
    mean_over_time,
    mean_while,
    occupancy,
    padding_waste,
    percentiles,
    share,
)
from inflight.report.steps.engine_run import EngineRun
from inflight.report.steps.over_time import waiting

Part = Literal["queue_ms", "prefill_ms", "decode_ms", "preempted_ms", "other_ms"]
PARTS: dict[str, Part] = {  # of a request's time → key of its timings
    "queue": "queue_ms",
    "prefill": "prefill_ms",
    "decode": "decode_ms",
    "preempted": "preempted_ms",
    "other": "other_ms",
}


@dataclass(frozen=True, slots=True)
class SnapshotFigures:
    """Figures of recurrent state. snapshot_usage: slots that were ever written / all. snapshots_taken,
    snapshots_evicted: all, and the ones whose slot another sequence's took. snapshot_hits: sequences that began from
    one."""

    snapshot_usage: float
    snapshots_taken: int
    snapshots_evicted: int
    snapshot_hits: int


@dataclass(frozen=True, slots=True)
class DraftFigures:
    """Figures of speculation. draft_tokens: computed; accepted_share: of these. tokens_with_drafts: of a sequence with
    drafts in a step, mean. draft_steps: share of steps that had any. draft_time: share of steps' seconds in which
    executors made drafts."""

    draft_tokens: int
    accepted_share: float
    tokens_with_drafts: float
    draft_steps: float
    draft_time: float


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """Seconds, tokens and blocks.

    busy: share of the time, from the first step to the last, in steps. occupancy: running sequences / request slots,
    mean over the busy time; occupancy_queued: the same while requests waited, None where none did; queued_share: share
    of the busy time in which requests waited. kv_usage: blocks in use / all, mean over the busy time; kv_peak: at most.
    padding_waste, kv_waste: over all steps, weighted by what they computed or allocated. mixed_step: times of steps
    with prompt tokens beside decodes; decode_step: of steps of decodes alone. prefix_share: of ended requests' prompt
    tokens, found cached. time_in: seconds of all ended requests, by PARTS. queued_by: of the queue's seconds, by
    reason. service: prompt and output tokens by tenant. snapshots: None where the model keeps no recurrent state.
    drafts: None without speculation.
    """

    steps: int
    failed_steps: int
    seconds: float
    busy: float
    steps_per_s: float
    step_seconds: Percentiles
    mixed_step: Percentiles
    decode_step: Percentiles
    step_tokens: Percentiles
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    occupancy: float
    occupancy_queued: float | None
    queued_share: float
    padding_waste: float
    kv_waste: float
    kv_usage: float
    kv_peak: float
    preemptions: int
    recomputed_tokens: int
    computed_tokens: int
    moved_out: int
    moved_back: int
    prefix_share: float
    waiting_mean: float
    waiting_peak: float
    time_in: Mapping[str, float]
    queued_by: Mapping[str, float]
    service: Mapping[str, int]
    fairness: float
    outgrown: int
    snapshots: SnapshotFigures | None = None
    drafts: DraftFigures | None = None


def engine_figures(run: EngineRun) -> EngineFigures:
    steps, capacity = run.steps, run.capacity
    seconds = max(steps.end - steps.start, 1e-9)
    busy = [end - start for start, end in zip(steps.began, steps.ended, strict=True)]
    queue = waiting(run)
    queued = [queue.at(start) > 0 for start in steps.began]
    rows = [occupancy(held, capacity.max_rows) for held in steps.rows]
    usage = [share(held, capacity.num_blocks) for held in steps.held_blocks]
    mixed = [d > 0 and p + a > 0 for d, p, a in zip(steps.decode, steps.prompt, steps.recomputed, strict=True)]
    pure = [d > 0 and p + a == 0 for d, p, a in zip(steps.decode, steps.prompt, steps.recomputed, strict=True)]
    tokens = [steps.tokens(index) for index in range(len(steps))]
    prompts = sum(request.prompt_tokens for request in run.requests)
    cached = sum(request.timings.cached_tokens for request in run.requests)
    service = _service(run)
    return EngineFigures(
        steps=len(steps),
        failed_steps=steps.failed,
        seconds=seconds,
        busy=share(steps.busy, seconds),
        steps_per_s=len(steps) / seconds,
        step_seconds=percentiles(busy),
        mixed_step=percentiles(time for time, is_mixed in zip(busy, mixed, strict=True) if is_mixed),
        decode_step=percentiles(time for time, is_pure in zip(busy, pure, strict=True) if is_pure),
        step_tokens=percentiles(tokens),
        prefill_tokens_per_s=(sum(steps.prompt) + sum(steps.recomputed)) / seconds,
        decode_tokens_per_s=sum(steps.decode) / seconds,
        occupancy=mean_over_time(rows, busy),
        occupancy_queued=mean_while(rows, busy, queued),
        queued_share=mean_over_time([float(one) for one in queued], busy),
        padding_waste=padding_waste(sum(steps.padding), sum(tokens)),
        kv_waste=kv_waste(sum(steps.allocated), sum(steps.used)),
        kv_usage=mean_over_time(usage, busy),
        kv_peak=max(usage),
        preemptions=run.preemptions,
        recomputed_tokens=sum(steps.recomputed),
        computed_tokens=sum(tokens) - sum(steps.padding),
        moved_out=steps.moved_out,
        moved_back=steps.moved_back,
        prefix_share=share(cached, prompts),
        waiting_mean=queue.mean(steps.start, steps.end),
        waiting_peak=queue.greatest,
        time_in={part: sum(getattr(one.timings, key) for one in run.requests) / 1e3 for part, key in PARTS.items()},
        queued_by={
            reason: sum(one.timings.queued_by.get(reason, 0.0) for one in run.requests) / 1e3
            for reason in QUEUE_REASONS
        },
        service=service,
        fairness=jain(list(service.values())) if service else 1.0,
        outgrown=sum(one.outgrown for one in run.requests),
        snapshots=_snapshots(run),
        drafts=_drafts(run),
    )


def _snapshots(run: EngineRun) -> SnapshotFigures | None:
    slots, of = run.capacity.state_snapshots, run.snapshots
    return SnapshotFigures(share(of.used, slots), of.taken, of.evicted, of.hits) if slots else None


def _drafts(run: EngineRun) -> DraftFigures | None:
    of, counts = run.drafts, run.drafts.counts
    if not counts.chunks:
        return None
    return DraftFigures(
        draft_tokens=counts.tokens,
        accepted_share=share(counts.accepted_tokens, counts.tokens),
        tokens_with_drafts=1 + counts.accepted_tokens / counts.chunks,
        draft_steps=share(sum(drafted > 0 for drafted in of.drafted), len(run.steps)),
        draft_time=share(of.seconds, sum(run.steps.seconds)),
    )


def _service(run: EngineRun) -> dict[str, int]:
    served: Counter[str] = Counter()
    for one in run.requests:
        served[one.tenant] += one.prompt_tokens + one.output_tokens
    return dict(sorted(served.items(), key=lambda one: -one[1]))
