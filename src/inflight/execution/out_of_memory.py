"""Recognizes faults of short memory: of the machine, or of a device whose library need not be installed."""

from __future__ import annotations


def is_out_of_memory(fault: Exception) -> bool:
    """Return whether the machine's memory, or a device's as PyTorch names it, was short."""
    return isinstance(fault, MemoryError) or any(one.__name__ == "OutOfMemoryError" for one in type(fault).__mro__)
