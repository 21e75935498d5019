"""What goes to a replica through Ray: the bytes of a message, and beside them what the router asks, as long as they are
in this process."""

from __future__ import annotations

from inflight.routing.routed_request import RoutedRequest


class RoutedFrame:
    """data: `engine.remote.messages.Open`, encoded. Arrives as those bytes alone."""

    __slots__ = ("data", "routed")

    def __init__(self, data: bytes, routed: RoutedRequest):
        self.data, self.routed = data, routed

    def __reduce__(self) -> tuple[type[bytes], tuple[bytes]]:
        return bytes, (self.data,)
