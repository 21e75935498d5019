"""Run one engine as a Ray Serve replica, driven by the messages of `engine.remote`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import structs

from inflight.core.tenants import usage_of_others
from inflight.core.types.request import Request
from inflight.engine.remote.messages import Open, Refused, Stopped, decode_to_engine, encode
from inflight.launch.engine_loading import load_engine
from inflight.ray.prefilling import Prefilling, WantedPrompts
from inflight.ray.replica_handle import RayCalls
from inflight.ray.replica_links import Links
from inflight.ray.replica_load import QUEUED_SECONDS, ReplicaLoad
from inflight.ray.replica_outbox import Outboxes
from inflight.ray.replica_setup import PeerSetup, ReplicaSetup
from inflight.ray.routing_board import ReplicaStats, board_of
from inflight.ray.tenant_usage_sync import decode_usage, encode_usage
from inflight.routing.replica_view import ServingCosts

if TYPE_CHECKING:
    from ray.serve.handle import DeploymentHandle

    from inflight.build import KVPeerSettings


class EngineReplica:
    """The class that Ray Serve deploys; Ray calls its public methods."""

    def __init__(self, setup: ReplicaSetup, prefill: DeploymentHandle[Any] | None = None):
        """Load the engine. An exception makes Ray log it and try again.

        Args:
            setup: Settings of the engine and its peers.
            prefill: Replicas that compute prompts for this one; None: it computes its own.
        """
        self._fair = setup.scheduling.policy == "fair"
        self._hold_seconds = 0.0 if setup.peers is None else setup.peers.options.hold
        self._load = ReplicaLoad(setup.scheduling, self._begun, self._gone)
        self._engine, self._loaded = load_engine(setup, peers=None if setup.peers is None else _peers(setup.peers))
        self._outboxes = Outboxes(self._loaded.bridge, self._load)
        self._prefill = prefill
        self._prefilling: Prefilling | None = None  # made in the event loop
        self._wanted = None if self._engine.peer_transfers is None else WantedPrompts(self._engine.peer_transfers)

    async def open(self, frame: tuple[bytes, str]) -> bytes:
        """Add requests to the engine. Return `Accepted`, `Refused`, or `Stopped` after the engine has stopped.

        Args:
            frame: An encoded `Open`, and the link on which the events of its requests are sent. Arrivals are
                seconds before now, since clocks of machines differ.
        """
        data, link = frame
        message = decode_to_engine(data)
        assert isinstance(message, Open), "front ends send no other message"
        now = self._engine.loop.clock.now()
        requests = [structs.replace(await self._prepared(one), arrival=now + one.arrival) for one in message.requests]
        if not all([await self._wait_until_wanted(one) for one in requests]):
            return encode(Refused(0, "No decode replica has requested the prompt's blocks.", None, None, None))
        return encode(await self._outboxes.open(link, tuple(requests)))

    async def follow(self, replica: str, link: str) -> AsyncIterator[bytes]:
        """Yield the events of this link; `Stopped` after the engine has stopped, or for another replica's name."""
        if replica != _own_name():
            yield encode(Stopped(f"{replica} is gone."))
            return
        async for item in self._outboxes.follow(link):
            yield item

    async def leave(self, replica: str, link: str, request_ids: list[str]) -> None:
        """Abort requests whose client has left. A link of another replica is ignored."""
        self._outboxes.leave(link, request_ids)
        if self._wanted is not None and replica == _own_name():
            for request_id in request_ids:
                self._wanted.abandon(request_id)

    async def _prepared(self, request: Request) -> Request:
        """Start the prompt's prefill on a prefill replica, if there are any; return the request to add here."""
        if self._prefill is None:
            return request
        if self._prefilling is None:
            board, links = board_of(self._prefill.deployment_name), Links(RayCalls(self._prefill))
            self._prefilling = Prefilling(links, board, self._engine.capacity.block_size)
        return await self._prefilling.start(request, -request.arrival)

    async def _wait_until_wanted(self, request: Request) -> bool:
        """Wait until the decode replica requests the blocks of a prompt that is computed for it; False: it did not."""
        transfers = self._engine.peer_transfers
        if transfers is None or self._wanted is None or request.kv_transfer is None or not request.kv_transfer.give:
            return True
        if await self._wanted.wait(request.kv_transfer.give, self._hold_seconds):
            return True
        transfers.withdraw(request.kv_transfer.give)
        return False

    def _begun(self, request_id: str) -> None:
        if self._prefilling is not None:
            self._prefilling.end(request_id)

    def _gone(self, request: Request) -> None:
        """Cancel the KV transfers of a request that was refused or aborted."""
        if self._prefilling is not None:
            self._prefilling.end(request.request_id)
        if request.kv_transfer is not None and request.kv_transfer.give and self._engine.peer_transfers is not None:
            self._engine.peer_transfers.withdraw(request.kv_transfer.give)

    async def describe(self) -> bytes:
        """Return the encoded `EngineDescription` of the engine."""
        return msgspec.msgpack.encode(self._loaded.described)

    async def page(self) -> tuple[str, bytes]:
        """Return the replica's name and the metrics page of its engine."""
        return _own_name(), (await self._loaded.page())[0]

    async def shown(self, asked: bytes) -> tuple[str, bytes]:
        """Return the replica's name and its engine's frames, as `live.distant` encodes them."""
        name = _own_name()
        return name, await self._loaded.frame_cache.answer(asked, name)

    async def sync_tenant_usage(self, data: bytes) -> tuple[str, bytes]:
        """Apply the other replicas' tenant usage; return the replica's name and its own usage since the last call.

        Args:
            data: Encoded usage of each replica, by its name.

        Raises:
            EngineStopped: The engine has stopped.
            MessageError: `data` is damaged.
        """
        name, usage = _own_name(), decode_usage(data)
        sync = self._engine.loop.sync_tenant_usage
        own = await self._loaded.bridge.ask(lambda: sync(usage_of_others(usage, name)))
        return name, encode_usage({name: own})

    def check_health(self) -> None:
        """Raise RuntimeError if the engine has stopped: Ray then replaces the replica."""
        if (why := self._loaded.bridge.stopped) is not None:
            raise RuntimeError(why)

    def record_routing_stats(self) -> dict[str, Any]:
        """Return the stats that Ray sends to the routers."""
        capacity = self._engine.capacity
        transfers = self._engine.peer_transfers
        peer = None if transfers is None or not transfers.address[1] else transfers.address
        stats = ReplicaStats(capacity.num_blocks * capacity.block_size, self._fair, self._costs(), peer)
        fields: dict[str, Any] = msgspec.to_builtins(stats)
        return fields

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Return the queue length that Ray scales by. A coroutine, to run in the event loop of the requests."""
        return {QUEUED_SECONDS: self._load.seconds(self._costs())}

    def _costs(self) -> ServingCosts | None:
        """Return step costs from the engine's latency model, or None until it has seen enough steps."""
        latency = self._engine.loop.latency
        return ServingCosts.probed(latency.seconds, self._engine.capacity.max_rows) if latency.ready else None

    async def __del__(self) -> None:
        """Close the engine. Ray calls this after the last request has ended."""
        if (loaded := getattr(self, "_loaded", None)) is not None:
            await asyncio.to_thread(loaded.bridge.close)


def _peers(peers: PeerSetup) -> KVPeerSettings:
    import ray.util

    from inflight.build import KVPeerSettings

    host = "127.0.0.1" if peers.is_local else ray.util.get_node_ip_address()
    return KVPeerSettings(replace(peers.options, host=host), peers.secret, "--prefill-replicas")


def _own_name() -> str:
    """Return Ray's name of this replica."""
    from ray import serve

    name: str = serve.get_replica_context().replica_id.unique_id
    return name
