"""Sizing and tuning: machines, settings and layouts for a demand with SLOs, found in virtual time (`simulate`)."""

from inflight.planning.curve import throughput_latency_curve
from inflight.planning.memory import estimate_kv_cache, max_concurrent_sequences
from inflight.planning.traffic import analyze_traffic

__all__ = ["analyze_traffic", "estimate_kv_cache", "max_concurrent_sequences", "throughput_latency_curve"]
