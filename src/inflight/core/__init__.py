"""The rules of batching: requests, sequences, KV blocks, plans, and the scheduler that makes them.

Standard library only; no clock (time is an argument), no I/O, no threads, no tensors. Everything here replays.
"""
