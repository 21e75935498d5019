"""File descriptors: as many as the system lets this process have. Each connection holds one."""

from __future__ import annotations

import resource

RESERVED = 128  # for files, the database, the model, the event loop
_MOST = 1 << 20  # of what a system without a limit would give


def raise_descriptor_limit() -> int:
    """The soft limit becomes the hard one; returns what is in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):  # some systems allow less than they say
            return soft
        return wanted
    return _MOST if soft == resource.RLIM_INFINITY else soft
