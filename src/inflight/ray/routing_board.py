"""Guard the router of a deployment's replicas by a lock, and define the frames that it routes.

Two threads call it: Ray's, where replicas come and go and requests are sent, and the server's, where events arrive.
Replicas have Ray's names.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from typing import Any

from msgspec import Struct, convert

from inflight.routing.registry import make_router
from inflight.routing.replica_view import ServingCosts
from inflight.routing.routed_request import RoutedRequest


class ReplicaStats(Struct, frozen=True):
    """The stats that a replica reports through Ray.

    Attributes:
        kv_tokens: Tokens that its KV cache holds.
        fair: Whether its scheduling policy is fair.
        costs: None before its engine has seen enough steps.
        peer: Host and port at which it exports KV blocks; None: it exports none.
    """

    kv_tokens: int
    fair: bool
    costs: ServingCosts | None
    peer: tuple[str, int] | None = None


class RoutingBoard:
    """The router of one deployment."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._router = make_router("round-robin")
        self._known: set[str] = set()
        self._peers: dict[str, tuple[str, int]] = {}

    def use(self, policy: str) -> None:
        """Replace the routing policy; requests in flight are not counted any more. Raises SettingsError."""
        with self._lock:
            self._router = make_router(policy)
            for name in self._known:
                self._router.join(name)

    def set_replicas(self, names: Collection[str]) -> None:
        """Set the replicas that receive requests."""
        with self._lock:
            for gone in self._known.difference(names):
                self._router.leave(gone)
                self._peers.pop(gone, None)
            for new in set(names) - self._known:
                self._router.join(new)
            self._known = set(names)

    def route(self, request: RoutedRequest, stats: Mapping[str, Mapping[str, Any]]) -> str:
        """Choose a known replica among those in `stats`, count the request there, and return the replica's name.

        Args:
            request: Not counted any more at a replica where it was sent before.
            stats: `ReplicaStats` of the candidates, by name; an empty mapping before the first report.

        Raises:
            NoReplica: None of the candidates is known.
        """
        with self._lock:
            for name, reported in stats.items():
                self._update(name, reported)
            self._router.ended(request.request_id)
            return self._router.send(request, stats.keys() & self._known).name

    def first_token(self, request_id: str) -> None:
        with self._lock:
            self._router.first_token(request_id)

    def ended(self, request_id: str, output_tokens: int | None = None) -> None:
        with self._lock:
            self._router.ended(request_id, output_tokens)

    def knows(self, name: str) -> bool:
        """Return whether the replica receives requests."""
        with self._lock:
            return name in self._known

    @property
    def has_replicas(self) -> bool:
        """Whether any replica receives requests."""
        with self._lock:
            return bool(self._known)

    def peer_of(self, name: str) -> tuple[str, int] | None:
        """Return the host and port at which a replica exports KV blocks; None: unknown, or it exports none."""
        with self._lock:
            return self._peers.get(name)

    def queued(self) -> dict[str, int]:
        """Return the number of requests in flight, by replica."""
        with self._lock:
            return {one.name: one.requests for one in self._router.replicas}

    def is_busy(self) -> bool:
        """Return whether any request is in flight."""
        return any(self.queued().values())

    def _update(self, name: str, reported: Mapping[str, Any]) -> None:
        if name in self._known and reported:
            stats = convert(reported, ReplicaStats)
            if stats.peer is not None:
                self._peers[name] = stats.peer
            if stats.costs is not None:
                self._router.update_replica(name, stats.costs, stats.kv_tokens, stats.fair)


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


_boards: dict[str, RoutingBoard] = {}  # a global of the process: Ray makes its request routers itself, by name


def board_of(deployment: str) -> RoutingBoard:
    """Return the process's board of a deployment; make it on the first call."""
    return _boards.setdefault(deployment, RoutingBoard())
