"""The end of a device: no step can be computed any more, whatever is asked of it."""

from __future__ import annotations


class DeviceLost(RuntimeError):
    """A sentence: what the device says, and what to do. Where this is raised no step has merely failed: the engine
    ends."""


def sentence(why: str) -> str:
    """Make the error message of a lost device. why: the device's own message."""
    return (
        f"The device computes nothing any more ({why.rstrip('.')}), and each step from now on would fail; start the "
        "engine again, and look at nvidia-smi -q and the kernel's log (dmesg, Xid) if it happens again"
    )
