"""Simulated replicas behind a router: who gets a request, and what the router hears of it.

Knows replicas and their router; not when anything happens, nor what becomes of requests.
"""

from __future__ import annotations

from collections.abc import Sequence

from inflight.core.types.request import Request
from inflight.routing.routed_request import RoutedRequest
from inflight.routing.router import Router
from inflight.simulate.replica import Replica


class RoutedPool:
    def __init__(self, replicas: Sequence[Replica], router: Router):
        """router: it knows each by its number."""
        self.replicas = list(replicas)
        self._router = router

    def send(self, request: Request, routed: RoutedRequest) -> Replica:
        """The replica that gets it, which is to be told."""
        return self.replicas[int(self._router.send(routed).name)]

    def first_token(self, request_id: str) -> None:
        self._router.first_token(request_id)

    def ended(self, request_id: str, now: float, output_tokens: int | None = None) -> None:
        """output_tokens: of its answer, where it came to its end."""
        self._router.ended(request_id, output_tokens)
