"""Counts of steps: how long they took, how full they were, and which token slots they computed."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from inflight.core.types.plan import BatchPlan, StepResult
from inflight.server.metrics.families import labelled
from inflight.server.metrics.histogram import POWERS, SECONDS, VLLM_STEP_TOKENS, Histogram


class StepCounts:
    def __init__(self) -> None:
        self.seconds = Histogram(SECONDS)
        self.tokens = Histogram(POWERS, VLLM_STEP_TOKENS)
        self.rows = Histogram(POWERS)
        self._prompt = self._decode = self._padding = self._failed = self._out = self._back = 0

    def count(self, plan: BatchPlan, result: StepResult) -> None:
        decode = prompt = 0
        for chunk in plan.chunks:
            if chunk.length == (chunk.sample or 1):
                decode += chunk.length
            else:
                prompt += chunk.length
        padding = sum(plan.padding)
        self._decode += decode
        self._prompt += prompt
        self._padding += padding
        self._failed += result.error is not None
        self._out += len(plan.copies("store"))
        self._back += len(plan.copies("load"))
        self.seconds.observe(result.seconds)
        self.tokens.observe(decode + prompt + padding)
        self.rows.observe(len(plan.chunks))

    def collect(self) -> Iterator[Metric]:
        for name, about, histogram, bounds in (
            ("inflight_step_seconds", "Time of one step (forward pass).", self.seconds, SECONDS),
            ("inflight_step_tokens", "Token slots computed in one step, padding included.", self.tokens, POWERS),
            ("inflight_step_rows", "Sequences with a chunk in one step.", self.rows, POWERS),
        ):
            yield HistogramMetricFamily(name, about, histogram.buckets(bounds), histogram.sum())
        yield labelled(
            CounterMetricFamily,
            "inflight_token_slots",
            "Token slots computed: prompt (chunks of several tokens), decode (of one, and drafts), padding. "
            "Padding waste is padding over all.",
            ["kind"],
            {("prompt",): self._prompt, ("decode",): self._decode, ("padding",): self._padding},
        )
        yield CounterMetricFamily("inflight_steps_failed", "Steps that broke.", self._failed)
        yield labelled(
            CounterMetricFamily,
            "inflight_swapped_blocks",
            "KV blocks copied to the host (out) and back.",
            ["direction"],
            {("out",): self._out, ("back",): self._back},
        )
