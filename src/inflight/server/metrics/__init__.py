"""Counters and histograms of the engine, HTTP and batch jobs, as Prometheus reads them. Each server has its own."""
