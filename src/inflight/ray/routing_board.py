"""The router of a deployment's replicas, for those who ask it in two threads: Ray's, where replicas come and go and
requests are sent, and the server's, where events come back.

Knows replicas by Ray's names for them, and what each tells of itself (`ReplicaStats`).
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from typing import Any

from msgspec import Struct, convert

from inflight.routing.registry import make_router
from inflight.routing.replica_view import ServingCosts
from inflight.routing.routed_request import RoutedRequest


class ReplicaStats(Struct, frozen=True):
    """What a replica tells of itself, as Ray carries it. costs: None before its engine has seen enough steps. peer:
    host and port at which it gives blocks to others; None: it does not."""

    kv_tokens: int
    fair: bool
    costs: ServingCosts | None
    peer: tuple[str, int] | None = None


class RoutingBoard:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._router = make_router("round-robin")
        self._known: set[str] = set()
        self._peers: dict[str, tuple[str, int]] = {}

    def use(self, policy: str) -> None:
        """From now on, as if nothing were under way. Raises SettingsError."""
        with self._lock:
            self._router = make_router(policy)
            for name in self._known:
                self._router.join(name)

    def replicas(self, names: Collection[str]) -> None:
        """These are there, and no others."""
        with self._lock:
            for gone in self._known.difference(names):
                self._router.leave(gone)
                self._peers.pop(gone, None)
            for new in set(names) - self._known:
                self._router.join(new)
            self._known = set(names)

    def choose(self, request: RoutedRequest, told: Mapping[str, Mapping[str, Any]]) -> str:
        """One of those in `told`, which must be known; the request counts there from now on, and nowhere else. told:
        what each says of itself. Raises NoReplica."""
        with self._lock:
            for name, stats in told.items():
                self._reckon(name, stats)
            self._router.ended(request.request_id)  # where it was sent before, if it was
            return self._router.send(request, told.keys() & self._known).name

    def first_token(self, request_id: str) -> None:
        with self._lock:
            self._router.first_token(request_id)

    def ended(self, request_id: str, output_tokens: int | None = None) -> None:
        with self._lock:
            self._router.ended(request_id, output_tokens)

    def knows(self, name: str) -> bool:
        """Whether it is sent requests."""
        with self._lock:
            return name in self._known

    @property
    def has_replicas(self) -> bool:
        """Whether anybody is sent requests."""
        with self._lock:
            return bool(self._known)

    def peer_of(self, name: str) -> tuple[str, int] | None:
        """Host and port at which it gives blocks; None: that is not known, or it does not."""
        with self._lock:
            return self._peers.get(name)

    def queued(self) -> dict[str, int]:
        """Requests under way, by replica."""
        with self._lock:
            return {one.name: one.requests for one in self._router.replicas}

    def is_busy(self) -> bool:
        """Whether anything is under way."""
        return any(self.queued().values())

    def _reckon(self, name: str, stats: Mapping[str, Any]) -> None:
        if name in self._known and stats:
            told = convert(stats, ReplicaStats)
            if told.peer is not None:
                self._peers[name] = told.peer
            if told.costs is not None:
                self._router.update_replica(name, told.costs, told.kv_tokens, told.fair)


_boards: dict[str, RoutingBoard] = {}  # of this process: Ray makes its request routers itself, and hands them names


def board_of(deployment: str) -> RoutingBoard:
    """Of the replicas of this deployment."""
    return _boards.setdefault(deployment, RoutingBoard())
