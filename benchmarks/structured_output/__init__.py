"""Measure what constraining outputs by grammars costs: `python -m benchmarks.structured_output`."""
