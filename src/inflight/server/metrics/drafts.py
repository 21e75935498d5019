"""Running totals of speculation, which the controller keeps itself, filled from the snapshot when somebody asks."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric

from inflight.core.speculation.speculation import SpeculationStats
from inflight.server.metrics.families import labelled


def collect(stats: SpeculationStats) -> Iterator[Metric]:
    drafter = stats.drafter
    for name, about, counts in (
        ("inflight_draft_tokens", "Drafts computed, by their place among a step's (from 0).", stats.drafted),
        ("inflight_accepted_draft_tokens", "Of these, those that were right.", stats.accepted),
    ):
        by_place = {(drafter, str(place)): count for place, count in enumerate(counts or (0,))}
        yield labelled(CounterMetricFamily, name, about, ["drafter", "position"], by_place)
    for name, about, count in (
        ("inflight_draft_requests", "Times that the drafter was asked for drafts of a sequence.", stats.asked),
        ("inflight_drafts", "Sequences with drafts in a step, over all steps.", num_drafts(stats)),
        ("inflight_steps_with_drafts", "Steps in which any sequence had drafts.", stats.steps),
    ):
        yield labelled(CounterMetricFamily, name, about, ["drafter"], {(drafter,): count})
    seconds = {(drafter, "won"): stats.won_seconds, (drafter, "lost"): stats.lost_seconds}
    about = "Estimated time of steps that right drafts saved, less what drafts cost; lost: where that is below 0."
    yield labelled(CounterMetricFamily, "inflight_speculation_seconds", about, ["drafter", "outcome"], seconds)


def num_drafts(stats: SpeculationStats) -> int:
    """Sequences with drafts in a step, over all steps: what vLLM calls a draft."""
    return stats.chunks
