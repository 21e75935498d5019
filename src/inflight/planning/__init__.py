"""Sizing and tuning: how many of which machines, under which settings, for which traffic and SLOs.

The engine's own scheduler answers, in virtual time (`simulate`). Knows memory, SLOs, searches and reasons; not how
a question is asked or an answer printed.
"""

from inflight.planning.curve import throughput_latency_curve
from inflight.planning.memory import estimate_kv_cache, max_concurrent_sequences
from inflight.planning.traffic import analyze_traffic

__all__ = ["analyze_traffic", "estimate_kv_cache", "max_concurrent_sequences", "throughput_latency_curve"]
