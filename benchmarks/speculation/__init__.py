"""Measure what speculation brings and what it costs: `python -m benchmarks.speculation`."""
