"""File descriptors: as many as the system lets this process have. Each connection holds one."""

from __future__ import annotations

import resource

MIN_DESCRIPTORS = 64  # of a process; a server of one model has some 25 before anybody connects
_RESERVED = 128  # for files, the database, the model, the event loop; but at most half of what there is
_MOST = 1 << 20  # of what a system without a limit would give


class DescriptorsError(ValueError):
    """The system gives this process too few descriptors; the sentence says how many."""


def raise_descriptor_limit() -> int:
    """Raise the soft limit to the hard one; return what is in force. Raises DescriptorsError where that is too little
    to serve at all."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
        except (OSError, ValueError):  # some systems allow less than they say
            pass
    found = _MOST if soft == resource.RLIM_INFINITY else min(soft, _MOST)
    if found < MIN_DESCRIPTORS:
        raise DescriptorsError(
            f"The system lets a process have {found} open files, and a server needs {MIN_DESCRIPTORS}; raise the limit "
            "(ulimit -n, or LimitNOFILE in a systemd unit)."
        )
    return found


def possible_connections(descriptors: int) -> int:
    """Return how many connections a process with so many descriptors can have, beside all else that holds one."""
    return descriptors - min(_RESERVED, descriptors // 2)
