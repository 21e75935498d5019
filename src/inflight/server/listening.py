"""Open the socket that the server listens on, and raise the limit of file descriptors for its connections."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import socket
from pathlib import Path

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
    if settings.uds is not None:
        return _listen_at(settings.uds)
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


def _listen_at(path: Path) -> socket.socket:
    """Listen at a Unix socket, which its owner and group may connect to. A file that a server has left is replaced.
    Raises AddressError."""
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o117)
    try:
        if path.is_socket() and not _is_listened_at(path):
            path.unlink()
        bound.bind(str(path))
        bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        cause = error.strerror or error
        if error.errno == errno.EADDRINUSE:
            cause = "another server listens there" if path.is_socket() else "there is another file"
        raise AddressError(f"--uds {path} cannot be used ({cause}); choose another path.") from None
    finally:
        os.umask(before)
    return bound


def _is_listened_at(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(1.0)
        try:
            asking.connect(str(path))
        except ConnectionRefusedError:
            return False
        except OSError:
            pass  # bind reports it
    return True


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
    """Return the server's address; of a Unix socket unix:PATH."""
    if settings.uds is not None:
        return f"unix:{settings.uds}"
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    scheme = "http" if settings.ssl_certfile is None else "https"
    return f"{scheme}://{host}:{bound.getsockname()[1]}{settings.root_path}"
