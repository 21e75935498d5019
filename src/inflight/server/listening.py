"""The socket that the server listens on."""

from __future__ import annotations

import socket

from inflight.server.ingress.descriptors import raise_descriptor_limit
from inflight.server.settings import ServerSettings

BACKLOG = 2048  # connections that wait to be taken
# What the kernel keeps of what a connection has sent and nobody has read. Left to itself it keeps some 6 MB of each,
# and with some hundreds of them it has no memory left for others. At 50 ms 20 Mbit/s come through.
RECEIVE_BYTES = 128 << 10


class AddressError(ValueError):
    """The address cannot be listened on."""


def listen(settings: ServerSettings) -> socket.socket:
    """Listen before anything is loaded, so that a port that is taken is an error at once. Raises AddressError,
    DescriptorsError."""
    raise_descriptor_limit()
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)  # connections inherit it
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


def url(settings: ServerSettings, bound: socket.socket) -> str:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    scheme = "http" if settings.ssl_certfile is None else "https"
    return f"{scheme}://{host}:{bound.getsockname()[1]}"
