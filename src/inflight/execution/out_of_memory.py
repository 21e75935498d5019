"""How a fault tells that memory was short: of the machine, or of a device whose library need not be here."""

from __future__ import annotations


def is_out_of_memory(fault: Exception) -> bool:
    """Of the machine, or as PyTorch names it of a device."""
    return isinstance(fault, MemoryError) or any(one.__name__ == "OutOfMemoryError" for one in type(fault).__mro__)
