"""Rules on KV memory: pressure, preemptions, waste, prefixes."""

from __future__ import annotations

from inflight.report.charts.quantity import quantity
from inflight.report.diagnosis.finding import Evidence, Finding
from inflight.report.engine_figures import EngineFigures

FULL = 0.95  # share of the blocks held
OFTEN = 0.05  # preemptions by request
RECOMPUTED = 0.02  # recomputed share of the tokens computed
QUEUED = 0.2  # share of the queue's time that waits for blocks
LACKED = 0.5  # share of the blocks held at most, below which waste takes nothing from anybody
WASTED = 0.3  # share of held token slots; a half-filled last block of short requests makes 10 to 20 %
REPEATED = 0.2  # share of prompt tokens that could have been found and were not


def pressure(evidence: Evidence, engine: EngineFigures) -> Finding | None:
    if engine.kv_peak < FULL:
        return None
    queue = engine.time_in["queue"]
    blocked = engine.queued_by["blocks"] / queue if queue else 0.0
    if not engine.preemptions and blocked < QUEUED:
        return None
    return Finding(
        "KV memory is the limit",
        f"At most {quantity(engine.kv_peak, 'share')} of the blocks were held, {quantity(engine.kv_usage, 'share')} "
        f"on average; {quantity(engine.preemptions)} preemptions; {quantity(blocked, 'share')} of the queue's time "
        "waited for blocks.",
        "The requests that run together need more keys and values than fit.",
        "More --kv-memory (or --num-blocks); else fewer rows (--max-num-seqs), or a shorter --max-model-len.",
        weight=3,
    )


def preemptions(evidence: Evidence, engine: EngineFigures) -> Finding | None:
    if not engine.preemptions or not evidence.summary.offered:
        return None
    often = engine.preemptions / evidence.summary.offered
    recomputed = engine.recomputed_tokens / engine.computed_tokens if engine.computed_tokens else 0.0
    if often < OFTEN and recomputed < RECOMPUTED:
        return None
    swap = "" if evidence.settings.get("preemption") in ("swap", "auto") else ", or --preemption auto with --swap-space"
    return Finding(
        "Running requests are pushed out",
        f"{quantity(engine.preemptions)} preemptions for {quantity(evidence.summary.offered)} requests; "
        f"{quantity(engine.recomputed_tokens)} tokens ({quantity(recomputed, 'share')} of all) were computed again; "
        f"{quantity(engine.time_in['preempted'], 's')} of requests' time was spent preempted.",
        "Newcomers are let in while running requests still grow, or work that ranks higher takes their place.",
        f"A higher --watermark leaves room to grow{swap}; more --kv-memory where it is the blocks that lack.",
    )


def waste(evidence: Evidence, engine: EngineFigures) -> Finding | None:
    if engine.kv_waste < WASTED or engine.kv_peak < LACKED:
        return None
    allocation = evidence.settings.get("kv_allocation", "paged")
    if evidence.strategy in ("static", "dynamic"):
        cause = f"Under --strategy {evidence.strategy} a request holds memory for the longest answer that it may have."
        change = "--strategy chunked takes blocks as tokens come; a tighter max_tokens in requests reserves less."
    elif allocation != "paged":
        cause = f"--kv-allocation {allocation} reserves for the longest answer, not for the one that comes."
        change = "--kv-allocation paged takes blocks as tokens come."
    else:
        cause = "Last blocks are partly empty: sequences are short for this block size, or prompts are long in coming."
        change = "A smaller --block-size wastes less of the last block."
    return Finding(
        "Memory is held and not used",
        f"{quantity(engine.kv_waste, 'share')} of the held token slots were empty.",
        cause,
        change,
    )


def prefixes(evidence: Evidence, engine: EngineFigures) -> Finding | None:
    if evidence.repeated_prompts is None or evidence.repeated_prompts - engine.prefix_share < REPEATED:
        return None
    if evidence.settings.get("prefix_caching", True) is False:
        cause, change = "Prefix caching is off.", "Run without --no-prefix-caching."
    elif engine.snapshots is not None and engine.snapshots.snapshots_evicted:
        cause = (
            f"{quantity(engine.snapshots.snapshots_evicted)} of {quantity(engine.snapshots.snapshots_taken)} snapshots "
            "of recurrent state gave their slots to others: behind cached tokens without one nobody can go on."
        )
        change = "More --state-memory keeps more of them."
    else:
        cause = "Cached prefixes were pushed out before they were asked for again, or came at the same moment."
        change = "More --kv-memory keeps them longer; --policy prefix serves those together that share one."
    return Finding(
        "Shared prefixes are computed again",
        f"{quantity(evidence.repeated_prompts, 'share')} of the prompt tokens repeat the beginning of an earlier "
        f"prompt; {quantity(engine.prefix_share, 'share')} were found in the cache.",
        cause,
        change,
    )


def outgrown(evidence: Evidence, engine: EngineFigures) -> Finding | None:
    if not engine.outgrown:
        return None
    return Finding(
        "Answers were cut because memory could not hold them",
        f"{quantity(engine.outgrown)} requests ended when they needed more KV blocks than there are.",
        "A single request may become longer than all of the KV memory.",
        "More --kv-memory (or --num-blocks), or a shorter --max-model-len, which refuses such requests at the door.",
        weight=3,
    )


RULES = (pressure, preemptions, waste, prefixes, outgrown)
