"""Gauges and running totals that the scheduler keeps itself, made from its stats when the page is read."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from inflight.core.request_timings import OTHER
from inflight.core.scheduling.stats import AdapterStats, LaneStats, SchedulerStats
from inflight.core.speculation.speculation import SpeculationStats
from inflight.core.types.kv_transfer import FolderStats, KVExportStats, TierStats
from inflight.core.types.plan import Capacity
from inflight.core.types.sampling import GrammarStats
from inflight.core.types.suspension import SuspensionStats
from inflight.core.types.timings import ADAPTER, GRAMMAR, KV, QUEUE_REASONS
from inflight.metrics.definitions import kv_waste, occupancy
from inflight.server.metrics.families import labelled


def collect(stats: SchedulerStats, capacity: Capacity) -> Iterator[Metric]:
    yield from _sequences(stats, capacity)
    yield from _kv_memory(stats, capacity)
    yield from _totals(stats)
    yield from _recurrent_state(stats, capacity)
    if stats.speculation is not None:
        yield from _speculation(stats.speculation)
    if stats.adapters is not None:
        yield from _adapters(stats.adapters)
    if stats.grammars is not None:
        yield from _grammars(stats.grammars)
    if stats.kv.tiers is not None:
        yield from _tiers(stats.kv.tiers)
    if stats.folder is not None:
        yield from collect_folder(stats.folder)
    if stats.kv_exports is not None:
        yield from collect_exports(stats.kv_exports)
    if stats.suspended is not None:
        yield from _suspensions(stats.suspended)


def _sequences(stats: SchedulerStats, capacity: Capacity) -> Iterator[Metric]:
    running = {(lane.name,): lane.running for lane in stats.lanes}
    yield labelled(
        GaugeMetricFamily, "inflight_sequences_running", "Request slots in use (a request has n).", ["lane"], running
    )
    waiting = {
        (lane.name, reason): _waiting(lane, reason) for lane in stats.lanes for reason in (*QUEUE_REASONS, OTHER)
    }
    yield labelled(
        GaugeMetricFamily,
        "inflight_sequences_waiting",
        "Sequences without a row, by what their lane's queue stands still for; grammar: those whose own is compiled; "
        "adapter: those whose own is not there; kv: those whose keys and values are brought.",
        ["lane", "reason"],
        waiting,
    )
    yield GaugeMetricFamily(
        "inflight_sequences_swapped", "Preempted and to come back to kept blocks.", stats.kv.swapped_sequences
    )
    yield GaugeMetricFamily("inflight_rows", "Maximum request slots (max_num_seqs).", capacity.max_rows)
    share = occupancy(stats.running, capacity.max_rows)
    yield GaugeMetricFamily("inflight_batch_occupancy_ratio", "Request slots in use over all slots.", share)


def _waiting(lane: LaneStats, reason: str) -> int:
    if reason == GRAMMAR:
        return lane.compiling
    if reason == ADAPTER:
        return lane.loading
    if reason == KV:
        return lane.fetching
    return lane.waiting - lane.loading - lane.fetching if lane.blocked_on == reason else 0


def _adapters(counts: AdapterStats) -> Iterator[Metric]:
    yield GaugeMetricFamily("inflight_adapter_slots", "Adapters in memory at a time (max_loras).", counts.slots)
    requests = {(name,): count for name, count in counts.held}
    yield labelled(
        GaugeMetricFamily,
        "inflight_adapter_requests",
        "Requests that wait or run with an adapter that is in memory.",
        ["adapter"],
        requests,
    )
    yield CounterMetricFamily("inflight_adapter_loads", "Adapters that were loaded into a slot.", counts.loads)


def _kv_memory(stats: SchedulerStats, capacity: Capacity) -> Iterator[Metric]:
    blocks = {("held",): stats.kv.held_blocks, ("idle",): stats.kv.evictable_blocks, ("free",): stats.kv.free_blocks}
    yield labelled(
        GaugeMetricFamily,
        "inflight_kv_blocks",
        "KV blocks: held, idle (cached, of no sequence), free.",
        ["state"],
        blocks,
    )
    yield GaugeMetricFamily("inflight_kv_usage_ratio", "Held blocks over all.", kv_usage(stats, capacity))
    slots = {("allocated",): stats.kv.held_slots, ("used",): stats.kv.used_slots}
    yield labelled(
        GaugeMetricFamily, "inflight_kv_slots", "Token slots of held blocks, and those in use.", ["state"], slots
    )
    waste = kv_waste(stats.kv.held_slots, stats.kv.used_slots)
    yield GaugeMetricFamily("inflight_kv_waste_ratio", "Allocated and unused token slots over allocated ones.", waste)
    host = {("held",): stats.kv.used_host_blocks, ("free",): capacity.host_blocks - stats.kv.used_host_blocks}
    yield labelled(GaugeMetricFamily, "inflight_host_blocks", "Blocks of the host's swap space.", ["state"], host)


def _recurrent_state(stats: SchedulerStats, capacity: Capacity) -> Iterator[Metric]:
    used = stats.kv.used_checkpoints
    yield labelled(
        GaugeMetricFamily,
        "inflight_state_snapshots",
        "Slots for checkpoints of recurrent state.",
        ["state"],
        {("used",): used, ("free",): capacity.state_snapshots - used},
    )
    yield CounterMetricFamily(
        "inflight_state_snapshot_hits",
        "Sequences that went on from a checkpoint of recurrent state.",
        stats.kv.checkpoint_hits,
    )
    yield CounterMetricFamily(
        "inflight_state_missed_tokens",
        "Tokens found in the prefix cache and computed all the same, for want of a checkpoint behind them.",
        stats.kv.checkpoint_missed_tokens,
    )


def _totals(stats: SchedulerStats) -> Iterator[Metric]:
    recomputed = stats.preemptions - stats.swap_preemptions
    yield labelled(
        CounterMetricFamily,
        "inflight_preemptions",
        "Preemptions; swap: blocks kept on the host while it has room.",
        ["kind"],
        {("recompute",): recomputed, ("swap",): stats.swap_preemptions},
    )
    yield CounterMetricFamily(
        "inflight_recomputed_tokens", "Tokens computed again after preemptions.", stats.recomputed_tokens
    )
    yield CounterMetricFamily(
        "inflight_prefix_cache_query_tokens", "Tokens of newcomers, looked up in the cache.", stats.prefix_queries
    )
    yield CounterMetricFamily(
        "inflight_prefix_cache_hit_tokens", "Of the tokens looked up, found in the prefix cache.", stats.prefix_hits
    )


def _suspensions(stats: SuspensionStats) -> Iterator[Metric]:
    about = "Times that a step was suspended between two layers, for short prompts."
    yield CounterMetricFamily("inflight_suspensions", about, stats.suspensions)
    yield CounterMetricFamily("inflight_suspended_seconds", "For which suspended steps rested.", stats.seconds)


def _speculation(stats: SpeculationStats) -> Iterator[Metric]:
    drafter = stats.drafter
    for name, about, counts in (
        ("inflight_draft_tokens", "Drafts computed, by their place among a step's (from 0).", stats.drafted),
        ("inflight_accepted_draft_tokens", "Of these, those that were right.", stats.accepted),
    ):
        by_position = {(drafter, str(position)): count for position, count in enumerate(counts or (0,))}
        yield labelled(CounterMetricFamily, name, about, ["drafter", "position"], by_position)
    for name, about, count in (
        ("inflight_draft_requests", "Times that the drafter was asked for drafts of a sequence.", stats.asked),
        ("inflight_drafts", "Sequences with drafts in a step, over all steps.", num_drafts(stats)),
        ("inflight_steps_with_drafts", "Steps in which any sequence had drafts.", stats.steps),
    ):
        yield labelled(CounterMetricFamily, name, about, ["drafter"], {(drafter,): count})
    seconds = {(drafter, "won"): stats.won_seconds, (drafter, "lost"): stats.lost_seconds}
    about = "Estimated time of steps that right drafts saved, less what drafts cost; lost: where that is below 0."
    yield labelled(CounterMetricFamily, "inflight_speculation_seconds", about, ["drafter", "outcome"], seconds)


def _grammars(stats: GrammarStats) -> Iterator[Metric]:
    compiled = {("compiled",): stats.compiled, ("refused",): stats.refused, ("cached",): stats.cache_hits}
    about = "Grammars that were asked for: compiled, refused by the compiler, or there already."
    yield labelled(CounterMetricFamily, "inflight_grammars", about, ["outcome"], compiled)
    for name, about, value in (
        (
            "inflight_grammar_compile_seconds",
            "Processor time of compiling grammars, beside the steps.",
            stats.compile_seconds,
        ),
        ("inflight_grammar_masks", "Positions whose tokens a grammar decided.", stats.masks),
        ("inflight_grammar_mask_seconds", "Filling masks, beside the forward passes.", stats.mask_seconds),
        ("inflight_grammar_wait_seconds", "Of steps that waited for their masks.", stats.wait_seconds),
        ("inflight_grammar_sit_outs", "Draws that waited for a slow mask, while others drew.", stats.sit_outs),
    ):
        yield CounterMetricFamily(name, about, value=value)
    yield GaugeMetricFamily("inflight_grammar_cache_bytes", "Compiled grammars that are kept.", stats.cached_bytes)


def _tiers(counts: TierStats) -> Iterator[Metric]:
    fetched = {("brought",): counts.brought, ("failed",): counts.failed, ("declined",): counts.declined}
    yield labelled(
        CounterMetricFamily,
        "inflight_tier_fetched_blocks",
        "Blocks that a tier or a peer had for a waiting prompt: brought, failed to come, or declined since computing "
        "them was quicker.",
        ["outcome"],
        fetched,
    )
    stored = {("stored",): counts.stored, ("failed",): counts.unstored, ("missed",): counts.missed}
    yield labelled(
        CounterMetricFamily,
        "inflight_tier_stored_blocks",
        "Blocks that were to be kept in a tier: stored, failed, or given away before their turn came (missed).",
        ["outcome"],
        stored,
    )


def collect_exports(exports: KVExportStats) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "inflight_tier_held_for_peers_blocks", "Blocks of computed prompts that wait for the peers.", exports.held
    )
    names = ("taken", "cached", "expired", "displaced", "withdrawn")
    yield labelled(
        CounterMetricFamily,
        "inflight_tier_handed_over_blocks",
        "Blocks of computed prompts that wait for peers no more: taken, cached by the peer that took the rest, "
        "expired, displaced by later ones, or withdrawn.",
        ["outcome"],
        {(name,): getattr(exports, name) for name in names},
    )


def collect_folder(folder: FolderStats) -> Iterator[Metric]:
    yield GaugeMetricFamily("inflight_tier_folder_bytes", "Bytes in the folder, of all models.", folder.nbytes)
    yield GaugeMetricFamily("inflight_tier_folder_limit_bytes", "That it may hold.", folder.max_bytes)
    yield GaugeMetricFamily("inflight_tier_folder_blocks", "Blocks of this model that can be found.", folder.blocks)
    yield CounterMetricFamily("inflight_tier_read_bytes", "Bytes of blocks read from the folder.", folder.read_bytes)
    yield CounterMetricFamily("inflight_tier_written_bytes", "Bytes of blocks written to it.", folder.written_bytes)
    yield CounterMetricFamily("inflight_tier_evicted_blocks", "Files evicted.", folder.evicted)
    faults = {("damaged",): folder.damaged, ("write",): folder.write_errors}
    yield labelled(
        CounterMetricFamily,
        "inflight_tier_faults",
        "Files that were not what they should be, and writes that failed.",
        ["kind"],
        faults,
    )


def num_drafts(stats: SpeculationStats) -> int:
    """Return the sequences with drafts in a step, over all steps: vLLM calls each a draft."""
    return stats.chunks


def kv_usage(stats: SchedulerStats, capacity: Capacity) -> float:
    return stats.kv.held_blocks / capacity.num_blocks


def host_usage(stats: SchedulerStats, capacity: Capacity) -> float:
    return stats.kv.used_host_blocks / capacity.host_blocks if capacity.host_blocks else 0.0
