"""Implement Ray Serve's request router by our own (`inflight.routing`)."""

from __future__ import annotations

from typing import Any

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from inflight.ray import routing_board  # not what is in it: Ray hands this module around by value
from inflight.routing.router import NoReplica


class RoutedRequestRouter(RequestRouter):  # type: ignore[misc]  # Ray is not there where types are checked
    """Send a request where our router says, a `NamedFrame` to its replica, and any other call to any replica."""

    def initialize_state(self, policy: str = "prefix-aware", deployment: str = "", **more: Any) -> None:
        self._board = routing_board.board_of(deployment)
        self._board.use(policy)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        frame = pending_request.args[0] if pending_request is not None and pending_request.args else None
        by_name = {one.replica_id.unique_id: one for one in candidate_replicas}
        if isinstance(frame, routing_board.NamedFrame) and frame.replica in by_name:
            return [[by_name[frame.replica]]]
        if not isinstance(frame, routing_board.RoutedFrame):
            return [list(candidate_replicas)]
        try:
            chosen = self._board.route(frame.routed, {name: one.routing_stats for name, one in by_name.items()})
        except NoReplica:
            return []
        frame.route_to(chosen)
        return [[by_name[chosen]]]

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        super().update_replicas(replicas)
        self._board.set_replicas([one.replica_id.unique_id for one in replicas])
