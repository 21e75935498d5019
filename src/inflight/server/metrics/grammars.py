"""Running totals of outputs that follow grammars, which the engine keeps itself, filled from the snapshot when somebody
asks."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from inflight.core.types.sampling import GrammarStats
from inflight.server.metrics.families import labelled


def collect(stats: GrammarStats) -> Iterator[Metric]:
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
