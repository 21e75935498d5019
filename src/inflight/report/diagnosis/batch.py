"""Rules on the batch: what the queue waits for, rows that stay empty, slots computed for nothing."""

from __future__ import annotations

from inflight.report.charts.quantity import quantity
from inflight.report.diagnosis.finding import Evidence, Finding
from inflight.report.diagnosis.requests import itl_tail
from inflight.report.engine_figures import EngineFigures

QUEUED = 0.2  # share of requests' time that is worth a setting
LOW = 0.5  # occupancy
IDLE = 0.1  # share of the time with a step under way, below which it is single requests that are seen, not a load
SOMETIMES = 0.1  # share of the busy time in which somebody waited
PADDED = 0.1  # share of token slots
LAY_READY = 0.2  # share of requests' time, between an answer's last token and its batch's end
TOGETHER = ("static", "dynamic")

_WAITED = {
    "rows": ("All rows were taken", "--max-num-seqs gives more rows, as long as steps stay short enough"),
    "blocks": (
        "KV blocks were short",
        "--kv-memory (or --num-blocks) gives more, and --kv-cache-dtype int8 holds nearly twice as many tokens",
    ),
    "budget": (
        "A step's prompt tokens were used up",
        "a larger --max-num-batched-tokens takes prompts in faster, and makes the gaps between tokens longer",
    ),
    "share": (
        "The lane had used its share of the step",
        "give its lane more weight, or raise its max_tokens, under [lanes.NAME] in --config",
    ),
    "window": (
        "The batch under way, or its window, had to end first",
        "--strategy chunked lets requests join at any step; a shorter --max-wait (static) or --window (dynamic) "
        "starts incomplete batches sooner",
    ),
    "grammar": (
        "Schemas and grammars were being compiled",
        "smaller ones compile faster, and one that was asked for before is there at once",
    ),
    "adapter": (
        "Their adapters were not in memory",
        "a larger --max-loras holds more of them at a time, and takes memory from keys and values",
    ),
    "kv": (
        "Keys and values of their prompts were on the way from a tier or a peer",
        "a faster disk or link brings them sooner; what takes longer than computing them is not brought at all",
    ),
}


def queue_reason(evidence: Evidence, engine: EngineFigures) -> Finding | None:
    total, queue = sum(engine.time_in.values()), engine.time_in["queue"]
    if not total or queue < QUEUED * total:
        return None
    reason = max(engine.queued_by, key=lambda one: engine.queued_by[one])
    shares = ", ".join(
        f"{quantity(seconds / queue, 'share')} for {name}"
        for name, seconds in sorted(engine.queued_by.items(), key=lambda one: -one[1])
        if seconds > 0.01 * queue
    )
    cause, change = _WAITED[reason]
    if reason == "blocks" and evidence.settings.get("kv_allocation", "paged") != "paged":
        change += "; --kv-allocation paged reserves none ahead"
    if reason == "budget" and itl_tail(evidence) is not None:
        change += "; as streams are stalled already, less load or more --threads is what helps both"
    is_before = reason in ("grammar", "adapter", "kv")
    when = "before they could join the queue" if is_before else "when the first in the queue was looked at"
    empty = ""
    if engine.occupancy_queued is not None and engine.occupancy_queued < LOW:
        empty = f" While somebody waits, only {quantity(engine.occupancy_queued, 'share')} of the rows are in use."
    return Finding(
        f"Requests wait for {_for(reason)}",
        f"{quantity(queue / total, 'share')} of requests' time was spent in the queue: {shares}; "
        f"{quantity(engine.waiting_mean)} sequences wait on average.{empty}",
        f"{cause} {when}.",
        f"{change[0].upper()}{change[1:]}.",
        weight=3 if queue > LOW * total else 2,
    )


def idle(engine: EngineFigures) -> bool:
    """Whether it hardly computed, and kept nobody waiting when it did."""
    return engine.busy < IDLE and engine.queued_share < SOMETIMES


def room(evidence: Evidence, engine: EngineFigures) -> Finding | None:
    """Rows, or the whole engine, that stay empty without a queue."""
    if engine.queued_share >= SOMETIMES or (engine.occupancy >= LOW and not idle(engine)):
        return None
    change = "Nothing needs to change for this load; fewer rows (--max-num-seqs) would leave memory for other things."
    if idle(engine):
        change = "Nothing needs to change for this load; what a larger one needs, only a run under that load can tell."
    return Finding(
        "The engine has room",
        f"A step is under way {quantity(engine.busy, 'share')} of the time; rows are "
        f"{quantity(engine.occupancy, 'share')} in use while steps run, and somebody waits "
        f"{quantity(engine.queued_share, 'share')} of that time.",
        "The load is below what this setting can serve.",
        change,
        weight=1,
    )


def padding(evidence: Evidence, engine: EngineFigures) -> Finding | None:
    if engine.padding_waste < PADDED:
        return None
    buckets = (
        "--strategy dynamic with --buckets puts prompts of like length together; "
        if evidence.strategy == "static"
        else ""
    )
    return Finding(
        "Much of the work is padding",
        f"{quantity(engine.padding_waste, 'share')} of the token slots computed held nothing.",
        "A batch that starts and ends as one is filled up to its longest prompt, and rows that have ended go on as "
        "padding.",
        f"{buckets}--strategy chunked (or continuous) computes no padding.",
        weight=3,
    )


def lay_ready(evidence: Evidence, engine: EngineFigures) -> Finding | None:
    """Under static and dynamic batching, what is not queue, prefill or decode is mostly waiting for the batch's end."""
    if evidence.strategy not in TOGETHER or not (total := sum(engine.time_in.values())):
        return None
    share = engine.time_in["other"] / total
    if share < LAY_READY:
        return None
    return Finding(
        "Finished answers wait for their batch",
        f"{quantity(share, 'share')} of requests' time is neither queue nor computing: answers lay ready.",
        f"Under --strategy {evidence.strategy} a batch hands out its answers when its last one has ended.",
        "--strategy chunked or continuous gives out tokens as they come; a smaller --batch-size shortens the wait.",
    )


def _for(reason: str) -> str:
    names = {
        "budget": "the step's budget",
        "share": "their lane's share",
        "window": "the batch before them",
        "grammar": "their grammars",
        "adapter": "their adapters",
        "kv": "their keys and values",
    }
    return names.get(reason, reason)


RULES = (queue_reason, room, padding, lay_ready)
