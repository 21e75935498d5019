"""Gauges and running totals that the scheduler keeps itself, filled from its snapshot when somebody asks."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from inflight.core.request_timings import OTHER
from inflight.core.scheduling.stats import AdapterStats, LaneStats, SchedulerStats
from inflight.core.types.plan import Capacity
from inflight.core.types.timings import ADAPTER, GRAMMAR, KV, QUEUE_REASONS
from inflight.metrics.definitions import kv_waste, occupancy
from inflight.server.metrics import drafts, grammars, tiers
from inflight.server.metrics.families import labelled


def collect(snapshot: SchedulerStats, capacity: Capacity) -> Iterator[Metric]:
    yield from _sequences(snapshot, capacity)
    yield from _kv_memory(snapshot, capacity)
    yield from _totals(snapshot)
    yield from _recurrent_state(snapshot, capacity)
    if snapshot.speculation is not None:
        yield from drafts.collect(snapshot.speculation)
    if snapshot.adapters is not None:
        yield from _adapters(snapshot.adapters)
    if snapshot.grammars is not None:
        yield from grammars.collect(snapshot.grammars)
    if snapshot.tiers is not None:
        yield from tiers.collect(snapshot.tiers)
    if snapshot.folder is not None:
        yield from tiers.collect_folder(snapshot.folder)
    if snapshot.handed_over is not None:
        yield from tiers.collect_handed_over(snapshot.handed_over)


def _sequences(snapshot: SchedulerStats, capacity: Capacity) -> Iterator[Metric]:
    running = {(lane.name,): lane.running for lane in snapshot.lanes}
    yield labelled(
        GaugeMetricFamily, "inflight_sequences_running", "Rows in use (a request has n of them).", ["lane"], running
    )
    waiting = {
        (lane.name, reason): _waiting(lane, reason) for lane in snapshot.lanes for reason in (*QUEUE_REASONS, OTHER)
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
        "inflight_sequences_swapped", "Preempted and to come back to kept blocks.", snapshot.swapped_sequences
    )
    yield GaugeMetricFamily("inflight_rows", "Rows that there are (max_num_seqs).", capacity.max_rows)
    share = occupancy(snapshot.running, capacity.max_rows)
    yield GaugeMetricFamily("inflight_batch_occupancy_ratio", "Rows in use over rows.", share)


def _waiting(lane: LaneStats, reason: str) -> int:
    if reason == GRAMMAR:
        return lane.compiling
    if reason == ADAPTER:
        return lane.loading
    if reason == KV:
        return lane.fetching
    return lane.waiting - lane.loading - lane.fetching if lane.stands_for == reason else 0


def _adapters(counts: AdapterStats) -> Iterator[Metric]:
    yield GaugeMetricFamily("inflight_adapter_slots", "Adapters in memory at a time (max_loras).", counts.slots)
    requests = {(name,): held for name, held in counts.held}
    yield labelled(
        GaugeMetricFamily,
        "inflight_adapter_requests",
        "Requests that wait or run with an adapter that is in memory.",
        ["adapter"],
        requests,
    )
    yield CounterMetricFamily("inflight_adapter_loads", "Adapters that were loaded into a slot.", counts.loads)


def _kv_memory(snapshot: SchedulerStats, capacity: Capacity) -> Iterator[Metric]:
    blocks = {("held",): snapshot.held_blocks, ("idle",): snapshot.idle_blocks, ("free",): snapshot.free_blocks}
    yield labelled(
        GaugeMetricFamily,
        "inflight_kv_blocks",
        "KV blocks: held, idle (cached, nobody's), free.",
        ["state"],
        blocks,
    )
    yield GaugeMetricFamily("inflight_kv_usage_ratio", "Held blocks over all.", kv_usage(snapshot, capacity))
    slots = {("allocated",): snapshot.held_slots, ("used",): snapshot.used_slots}
    yield labelled(
        GaugeMetricFamily, "inflight_kv_slots", "Token slots of held blocks, and those in use.", ["state"], slots
    )
    waste = kv_waste(snapshot.held_slots, snapshot.used_slots)
    yield GaugeMetricFamily("inflight_kv_waste_ratio", "Allocated and unused token slots over allocated ones.", waste)
    host = {("held",): snapshot.held_host_blocks, ("free",): capacity.host_blocks - snapshot.held_host_blocks}
    yield labelled(GaugeMetricFamily, "inflight_host_blocks", "Blocks of the host's swap space.", ["state"], host)


def _recurrent_state(snapshot: SchedulerStats, capacity: Capacity) -> Iterator[Metric]:
    used = snapshot.used_state_snapshots
    yield labelled(
        GaugeMetricFamily,
        "inflight_state_snapshots",
        "Slots for snapshots of recurrent state.",
        ["state"],
        {("used",): used, ("free",): capacity.state_snapshots - used},
    )
    yield CounterMetricFamily(
        "inflight_state_snapshot_hits",
        "Sequences that went on from a snapshot of recurrent state.",
        snapshot.state_hits,
    )
    yield CounterMetricFamily(
        "inflight_state_missed_tokens",
        "Tokens found in the prefix cache and computed all the same, for want of a snapshot behind them.",
        snapshot.state_missed_tokens,
    )


def _totals(snapshot: SchedulerStats) -> Iterator[Metric]:
    recomputed = snapshot.preemptions - snapshot.swap_preemptions
    yield labelled(
        CounterMetricFamily,
        "inflight_preemptions",
        "Preemptions; swap: blocks kept on the host while it has room.",
        ["kind"],
        {("recompute",): recomputed, ("swap",): snapshot.swap_preemptions},
    )
    yield CounterMetricFamily(
        "inflight_recomputed_tokens", "Tokens computed again after preemptions.", snapshot.recomputed_tokens
    )
    yield CounterMetricFamily(
        "inflight_prefix_cache_query_tokens", "Tokens of newcomers, looked up in the cache.", snapshot.prefix_queries
    )
    yield CounterMetricFamily(
        "inflight_prefix_cache_hit_tokens", "Of the tokens looked up, found in the prefix cache.", snapshot.prefix_hits
    )


def kv_usage(snapshot: SchedulerStats, capacity: Capacity) -> float:
    return snapshot.held_blocks / capacity.num_blocks


def host_usage(snapshot: SchedulerStats, capacity: Capacity) -> float:
    return snapshot.held_host_blocks / capacity.host_blocks if capacity.host_blocks else 0.0
