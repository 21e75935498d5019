"""Define the arguments of Ray calls: data for the replica, with what our request router reads in this process."""

from __future__ import annotations

from collections.abc import Callable

from inflight.routing.routed_request import RoutedRequest


class RoutedFrame:
    """A request for the replica that the router chooses.

    The replica receives a pair: the data, and the id of the link for the request's events.
    """

    __slots__ = ("_chosen", "_link", "data", "routed")

    def __init__(self, data: bytes, routed: RoutedRequest, chosen: Callable[[str], str]):
        """Make a frame.

        Args:
            data: An encoded `engine.remote.messages.Open`.
            routed: The request, as the router reads it.
            chosen: Called with the replica's name, in Ray's thread; returns the link to the replica.
        """
        self.data, self.routed = data, routed
        self._chosen, self._link = chosen, ""

    def route_to(self, replica: str) -> None:
        """Set the replica; a second call follows if the first one did not accept the frame."""
        self._link = self._chosen(replica)

    def __reduce__(self) -> tuple[type[tuple[bytes, str]], tuple[tuple[bytes, str]]]:
        return tuple, ((self.data, self._link),)


class NamedFrame:
    """A call for one certain replica.

    The replica receives its name. Ray sends the call to another replica if that one is gone, which sees that the name
    is not its own.
    """

    __slots__ = ("replica",)

    def __init__(self, replica: str):
        self.replica = replica

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (self.replica,)
