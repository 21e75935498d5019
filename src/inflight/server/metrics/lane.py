"""Counts of one lane's requests. Latencies as in `inflight.metrics.definitions`: TTFT and E2E count from the request's
intended send time."""

from __future__ import annotations

from inflight.core.types.timings import QUEUE_REASONS
from inflight.server.metrics.buckets import (
    SECONDS,
    VLLM_FIRST_TOKEN,
    VLLM_NEXT_TOKEN,
    VLLM_REQUEST,
    VLLM_SAMPLES,
    lengths,
)
from inflight.server.metrics.histogram import Histogram

FINISH_REASONS = ("stop", "length", "abort", "error")


class LaneRequests:
    """Times in seconds. Every attribute but the counters is a histogram.

    queue, prefill, decode: the account of each ended request. computed_prompt: prompt tokens that were not cached.
    longest: output tokens of the longest sample; output: of each sample.
    """

    def __init__(self, max_model_len: int):
        sizes = lengths(max_model_len)
        self.accepted = 0
        self.finished = dict.fromkeys(FINISH_REASONS, 0)
        self.prompt_tokens = self.cached_tokens = self.computed_tokens = self.output_tokens = 0
        self.queued_by = dict.fromkeys(QUEUE_REASONS, 0.0)
        self.ttft = Histogram(SECONDS, VLLM_FIRST_TOKEN)
        self.itl = Histogram(SECONDS, VLLM_NEXT_TOKEN)
        self.tpot = Histogram(SECONDS, VLLM_NEXT_TOKEN)
        self.e2e = Histogram(SECONDS, VLLM_REQUEST)
        self.queue = Histogram(SECONDS, VLLM_REQUEST)
        self.prefill = Histogram(SECONDS, VLLM_REQUEST)
        self.decode = Histogram(SECONDS, VLLM_REQUEST)
        self.inference = Histogram(VLLM_REQUEST)
        self.prompt = Histogram(sizes)
        self.output = Histogram(sizes)
        self.longest = Histogram(sizes)
        self.computed_prompt = Histogram(sizes)
        self.max_tokens = Histogram(sizes)
        self.samples = Histogram(VLLM_SAMPLES)
