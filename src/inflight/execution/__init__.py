"""Weights → tokens: a Hugging Face folder becomes one decoder over a backend.

Knows configurations, checkpoints, memory and the forward pass. Knows no scheduler, no policy, no server and no clock:
what to compute in a step is handed in. Importing this package loads nothing; each module is imported where it is used.
"""
