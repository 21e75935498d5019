"""Identifies this machine, so that two processes can find out whether they share memory."""

from __future__ import annotations

from pathlib import Path


def this_host() -> str:
    """Return an id of this machine since it was started, the same for all its processes; empty where unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
