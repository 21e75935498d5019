"""What goes to a replica through Ray, and beside it what our request router asks, as long as it is in this process.

Knows how the two kinds of frames arrive; who is chosen, `request_router` and `routing_board` know.
"""

from __future__ import annotations

from collections.abc import Callable

from inflight.routing.routed_request import RoutedRequest


class RoutedFrame:
    """A request on its way to whom the router chooses. Arrives as its data and the link under which its events are to
    come."""

    __slots__ = ("_chosen", "_link", "data", "routed")

    def __init__(self, data: bytes, routed: RoutedRequest, chosen: Callable[[str], str]):
        """data: `engine.remote.messages.Open`, encoded. chosen: told the replica's name, in Ray's thread; returns the
        link to it."""
        self.data, self.routed = data, routed
        self._chosen, self._link = chosen, ""

    def goes_to(self, replica: str) -> None:
        """It is sent there, or was before to another one that would not have it."""
        self._link = self._chosen(replica)

    def __reduce__(self) -> tuple[type[tuple[bytes, str]], tuple[tuple[bytes, str]]]:
        return tuple, ((self.data, self._link),)


class NamedFrame:
    """What only one replica can answer. Arrives as its name, so that another one, which gets it when this one is gone,
    knows that it is not meant."""

    __slots__ = ("replica",)

    def __init__(self, replica: str):
        self.replica = replica

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (self.replica,)
