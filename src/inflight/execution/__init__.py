"""Compute a model: checkpoints become weights of a backend, and plans of steps become tokens."""
