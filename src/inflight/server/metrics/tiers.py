"""Tiers and peers: what was brought instead of being computed, what was kept, and what lies in the folder."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from inflight.core.types.tier_counts import FolderStats, TierCounts
from inflight.server.metrics.families import labelled


def collect(counts: TierCounts) -> Iterator[Metric]:
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


def collect_folder(folder: FolderStats) -> Iterator[Metric]:
    yield GaugeMetricFamily("inflight_tier_folder_bytes", "Bytes in the folder, of all models.", folder.nbytes)
    yield GaugeMetricFamily("inflight_tier_folder_limit_bytes", "That it may hold.", folder.most_bytes)
    yield GaugeMetricFamily("inflight_tier_folder_blocks", "Blocks of this model that can be found.", folder.blocks)
    yield CounterMetricFamily("inflight_tier_read_bytes", "Bytes of blocks read from the folder.", folder.read_bytes)
    yield CounterMetricFamily("inflight_tier_written_bytes", "Bytes of blocks written to it.", folder.written_bytes)
    yield CounterMetricFamily("inflight_tier_evicted_blocks", "Files that gave way to others.", folder.evicted)
    faults = {("damaged",): folder.damaged, ("write",): folder.write_errors}
    yield labelled(
        CounterMetricFamily,
        "inflight_tier_faults",
        "Files that were not what they should be, and writes that failed.",
        ["kind"],
        faults,
    )
