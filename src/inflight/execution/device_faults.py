"""Recognize faults of a device: memory that is short, and a device that computes nothing any more."""

from __future__ import annotations


class DeviceLost(RuntimeError):
    """A lost device, with the device's reason and the next step. The engine ends: every later step would fail too."""


def device_lost_message(why: str) -> str:
    """Make the error message of a lost device. why: the device's own message."""
    return (
        f"The device computes nothing any more ({why.rstrip('.')}), and each step from now on would fail; start the "
        "engine again, and look at nvidia-smi -q and the kernel's log (dmesg, Xid) if it happens again"
    )


def is_out_of_memory(fault: Exception) -> bool:
    """Return whether the machine's memory was short, or a device's by PyTorch's error, which need not be installed."""
    return isinstance(fault, MemoryError) or any(one.__name__ == "OutOfMemoryError" for one in type(fault).__mro__)
