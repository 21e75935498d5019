"""What operators see: counters and histograms of what the engine, the HTTP side and the batch jobs did, as Prometheus
reads them. Each server has its own; nothing here is global."""

from inflight.server.metrics.page import Metrics, Names

__all__ = ["Metrics", "Names"]
