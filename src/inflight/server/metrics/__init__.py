"""Counters and histograms of the engine, HTTP and batch jobs, as Prometheus reads them. Each server has its own."""

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"  # of the page
