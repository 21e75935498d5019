"""Open the socket that the server listens on, and raise the limit of file descriptors for its connections."""

from __future__ import annotations

import contextlib
import resource
import socket

from inflight.server.settings import ServerSettings

BACKLOG = 2048  # connections that wait to be taken
# Buffer of the kernel for the unread bytes of a connection. By default it is some 6 MB for each, and with hundreds of
# them no memory is left for others. At 50 ms 20 Mbit/s come through.
RECEIVE_BYTES = 128 << 10
MIN_DESCRIPTORS = 64  # of a process, which has some 25 before it has connections
RESERVED_DESCRIPTORS = 128  # for files, databases and sockets to other processes; at most half of what there is
MAX_DESCRIPTORS = 1 << 20  # where the system has no limit


class AddressError(ValueError):
    """The address cannot be listened on."""


class DescriptorsError(ValueError):
    """The system gives this process too few descriptors; the sentence says how many."""


def listen(settings: ServerSettings) -> socket.socket:
    """Listen before anything is loaded, so that a port in use is an error at once.

    Raises:
        AddressError: The address cannot be used.
        DescriptorsError: The system gives too few descriptors.
    """
    possible_connections(settings.max_connections)
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Connections inherit these.
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # a client that takes nothing for longer than a call may last is gone
        milliseconds = int(settings.request_timeout * 1000)
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, min(milliseconds, 2**31 - 1))
    try:
        bound.bind((settings.host, settings.port))
        bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        raise AddressError(
            f"The address {settings.host}:{settings.port} cannot be used ({error.strerror or error}); choose another "
            "with --host and --port."
        ) from None
    return bound


def possible_connections(wanted: int) -> int:
    """Raise the limit of descriptors as far as the system allows; return how many of the wanted connections there can
    be. Raises DescriptorsError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    maximum = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < maximum:
        with contextlib.suppress(OSError, ValueError):  # some systems allow less than they say
            resource.setrlimit(resource.RLIMIT_NOFILE, (maximum, hard))
            soft = maximum
    found = MAX_DESCRIPTORS if soft == resource.RLIM_INFINITY else min(soft, MAX_DESCRIPTORS)
    if found < MIN_DESCRIPTORS:
        raise DescriptorsError(
            f"The system lets a process have {found} open files, and a server needs {MIN_DESCRIPTORS}; raise the limit "
            "(ulimit -n, or LimitNOFILE in a systemd unit)."
        )
    return min(wanted, found - min(RESERVED_DESCRIPTORS, found // 2))


def url(settings: ServerSettings, bound: socket.socket) -> str:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    scheme = "http" if settings.ssl_certfile is None else "https"
    return f"{scheme}://{host}:{bound.getsockname()[1]}"
