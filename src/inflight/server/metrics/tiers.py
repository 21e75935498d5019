"""Tiers and peers: what was brought instead of being computed, what was kept, what was handed over, and what lies in
the folder."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from inflight.core.types.kv_transfer import FolderStats, KVExportStats, TierStats
from inflight.server.metrics.families import labelled


def collect(counts: TierStats) -> Iterator[Metric]:
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


def collect_handed_over(handed: KVExportStats) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "inflight_tier_held_for_peers_blocks", "Blocks of computed prompts that wait for the peers.", handed.held
    )
    names = ("taken", "cached", "expired", "displaced", "withdrawn")
    yield labelled(
        CounterMetricFamily,
        "inflight_tier_handed_over_blocks",
        "Blocks of computed prompts that are held for peers no more: taken, cached by the peer that took the rest, "
        "expired since nobody came in time, displaced by later ones, or withdrawn.",
        ["outcome"],
        {(name,): getattr(handed, name) for name in names},
    )


def collect_folder(folder: FolderStats) -> Iterator[Metric]:
    yield GaugeMetricFamily("inflight_tier_folder_bytes", "Bytes in the folder, of all models.", folder.nbytes)
    yield GaugeMetricFamily("inflight_tier_folder_limit_bytes", "That it may hold.", folder.max_bytes)
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
