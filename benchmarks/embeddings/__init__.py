"""Vectors of texts beside other engines: `python -m benchmarks.embeddings`. The command is in `__main__`."""
