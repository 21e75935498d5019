"""What binding outputs to grammars costs: `python -m benchmarks.structured_output`."""
