"""Gauges and running totals that the scheduler keeps itself, filled from its snapshot when somebody asks."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from inflight.core.request_timings import OTHER
from inflight.core.scheduling.snapshot import Snapshot
from inflight.core.types.plan import Capacity
from inflight.metrics.definitions import kv_waste, occupancy
from inflight.records.timings import QUEUE_REASONS


def collect(snapshot: Snapshot, capacity: Capacity) -> Iterator[Metric]:
    yield from _sequences(snapshot, capacity)
    yield from _kv_memory(snapshot, capacity)
    yield from _totals(snapshot)


def _sequences(snapshot: Snapshot, capacity: Capacity) -> Iterator[Metric]:
    running = GaugeMetricFamily("inflight_sequences_running", "Rows in use (a request has n of them).", labels=["lane"])
    waiting = GaugeMetricFamily(
        "inflight_sequences_waiting",
        "Sequences without a row, by what their lane's queue stands still for.",
        labels=["lane", "reason"],
    )
    for lane in snapshot.lanes:
        running.add_metric([lane.name], lane.running)
        for reason in (*QUEUE_REASONS, OTHER):
            waiting.add_metric([lane.name, reason], lane.waiting if lane.stands_for == reason else 0)
    yield running
    yield waiting
    yield _gauge("inflight_sequences_swapped", "Preempted and to come back to kept blocks.", snapshot.swapped_sequences)
    yield _gauge("inflight_rows", "Rows that there are (max_num_seqs).", capacity.max_rows)
    share = occupancy(snapshot.running, capacity.max_rows)
    yield _gauge("inflight_batch_occupancy_ratio", "Rows in use over rows.", share)


def _kv_memory(snapshot: Snapshot, capacity: Capacity) -> Iterator[Metric]:
    blocks = GaugeMetricFamily(
        "inflight_kv_blocks", "KV blocks: held, idle (cached, nobody's), free.", labels=["state"]
    )
    blocks.add_metric(["held"], snapshot.held_blocks)
    blocks.add_metric(["idle"], snapshot.idle_blocks)
    blocks.add_metric(["free"], snapshot.free_blocks)
    yield blocks
    yield _gauge("inflight_kv_usage_ratio", "Held blocks over all.", kv_usage(snapshot, capacity))
    slots = GaugeMetricFamily("inflight_kv_slots", "Token slots of held blocks, and those in use.", labels=["state"])
    slots.add_metric(["allocated"], snapshot.held_slots)
    slots.add_metric(["used"], snapshot.used_slots)
    yield slots
    waste = kv_waste(snapshot.held_slots, snapshot.used_slots)
    yield _gauge("inflight_kv_waste_ratio", "Allocated and unused token slots over allocated ones.", waste)
    host = GaugeMetricFamily("inflight_host_blocks", "Blocks of the host's swap space.", labels=["state"])
    host.add_metric(["held"], snapshot.held_host_blocks)
    host.add_metric(["free"], capacity.host_blocks - snapshot.held_host_blocks)
    yield host


def _totals(snapshot: Snapshot) -> Iterator[Metric]:
    preemptions = CounterMetricFamily(
        "inflight_preemptions", "Preemptions; swap: blocks kept on the host while it has room.", labels=["kind"]
    )
    preemptions.add_metric(["recompute"], snapshot.preemptions - snapshot.swap_preemptions)
    preemptions.add_metric(["swap"], snapshot.swap_preemptions)
    yield preemptions
    yield CounterMetricFamily(
        "inflight_recomputed_tokens", "Tokens computed again after preemptions.", snapshot.recomputed_tokens
    )
    yield CounterMetricFamily(
        "inflight_prefix_cache_query_tokens", "Tokens of newcomers, looked up in the cache.", snapshot.prefix_queries
    )
    yield CounterMetricFamily(
        "inflight_prefix_cache_hit_tokens", "Of the tokens looked up, found in the prefix cache.", snapshot.prefix_hits
    )


def kv_usage(snapshot: Snapshot, capacity: Capacity) -> float:
    return snapshot.held_blocks / capacity.num_blocks


def host_usage(snapshot: Snapshot, capacity: Capacity) -> float:
    return snapshot.held_host_blocks / capacity.host_blocks if capacity.host_blocks else 0.0


def _gauge(name: str, about: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, about, value)
