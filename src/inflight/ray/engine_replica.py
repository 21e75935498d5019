"""The body of a Ray Serve replica: one engine, asked by the messages that engines in other processes are asked by.

Knows an engine and its messages; that it is one of several, only Ray and the router know.
"""

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
from inflight.ray.autoscaling import QUEUED_SECONDS
from inflight.ray.prefilling import Prefilling
from inflight.ray.replica_handle import RayCalls
from inflight.ray.replica_links import Links
from inflight.ray.replica_load import ReplicaLoad
from inflight.ray.replica_outbox import Outboxes
from inflight.ray.replica_setup import PeerSetup, ReplicaSetup
from inflight.ray.routing_board import ReplicaStats, board_of
from inflight.ray.service_exchange import decode_given, encode_given
from inflight.ray.wanted_prompts import WantedPrompts
from inflight.routing.replica_view import ServingCosts
from inflight.server.live.frame_shelf import FrameShelf

if TYPE_CHECKING:
    from ray.serve.handle import DeploymentHandle

    from inflight.build import KVPeerSettings


class EngineReplica:
    def __init__(self, setup: ReplicaSetup, prefill: DeploymentHandle[Any] | None = None):
        """prefill: replicas that compute prompts for this one; None: it computes its own. Raises what loading a model
        raises; Ray tells it and tries again."""
        self._fair = setup.scheduling.policy == "fair"
        self._hold = 0.0 if setup.peers is None else setup.peers.options.hold
        self._load = ReplicaLoad(setup.scheduling, self._begun, self._gone)
        self._engine, self._loaded = load_engine(
            setup.server,
            setup.engine,
            setup.scheduling,
            None,
            setup.verbose,
            lambda doing: None,
            lambda folder: None,
            peers=None if setup.peers is None else _peers(setup.peers),
        )
        self._shelf = FrameShelf(self._loaded.shown)
        self._outboxes = Outboxes(self._loaded.bridge, self._load)
        self._prefill = prefill
        self._prefilling: Prefilling | None = None  # made in the event loop
        self._wanted = None if self._engine.exchange is None else WantedPrompts(self._engine.exchange)

    async def open(self, frame: tuple[bytes, str]) -> bytes:
        """frame: `Open`, its requests' arrivals as seconds before now, since clocks of machines differ, and the link on
        which what happens is to be told. `Accepted`, `Refused`, or `Stopped` where the engine works no more."""
        data, link = frame
        message = decode_to_engine(data)
        assert isinstance(message, Open), "nothing else is sent"
        now = self._engine.loop.clock.now()
        requests = [structs.replace(await self._prepared(one), arrival=now + one.arrival) for one in message.requests]
        if not all([await self._is_wanted(one) for one in requests]):
            return encode(Refused(0, "Nobody has asked for the prompt's blocks.", None, None, None))
        return encode(await self._outboxes.open(link, tuple(requests)))

    async def follow(self, replica: str, link: str) -> AsyncIterator[bytes]:
        """What happens on this link; `Stopped` where the engine works no more, or that replica is gone."""
        if replica != _own_name():
            yield encode(Stopped(f"{replica} is gone."))
            return
        async for item in self._outboxes.follow(link):
            yield item

    async def leave(self, replica: str, link: str, request_ids: list[str]) -> None:
        """Nobody reads these any more; ids of links are no other replica's."""
        self._outboxes.leave(link, request_ids)
        if self._wanted is not None and replica == _own_name():
            for request_id in request_ids:
                self._wanted.left(request_id)

    async def _prepared(self, request: Request) -> Request:
        """Its prompt is being computed elsewhere, where that is to be."""
        if self._prefill is None:
            return request
        if self._prefilling is None:
            board, links = board_of(self._prefill.deployment_name), Links(RayCalls(self._prefill))
            self._prefilling = Prefilling(links, board, self._engine.capacity.block_size)
        return await self._prefilling.taken_over(request, -request.arrival)

    async def _is_wanted(self, request: Request) -> bool:
        """What is computed for others is once these ask for it."""
        exchange = self._engine.exchange
        if exchange is None or self._wanted is None or request.kv_transfer is None or not request.kv_transfer.give:
            return True
        if await self._wanted.is_wanted(request.kv_transfer.give, self._hold):
            return True
        exchange.withdraw(request.kv_transfer.give)
        return False

    def _begun(self, request_id: str) -> None:
        if self._prefilling is not None:
            self._prefilling.begun(request_id)

    def _gone(self, request: Request) -> None:
        """It was refused, or is left: nobody waits for its blocks, or need wait."""
        if self._prefilling is not None:
            self._prefilling.left(request.request_id)
        if request.kv_transfer is not None and request.kv_transfer.give and self._engine.exchange is not None:
            self._engine.exchange.withdraw(request.kv_transfer.give)

    async def describe(self) -> bytes:
        """`EngineDescription`."""
        return msgspec.msgpack.encode(self._loaded.described)

    async def page(self) -> tuple[str, bytes]:
        """Its name, and the metrics of its engine."""
        return _own_name(), (await self._loaded.page())[0]

    async def shown(self, asked: bytes) -> tuple[str, bytes]:
        """Its name, and what its engine does, as `live.distant` writes it."""
        name = _own_name()
        return name, await self._shelf.answer(asked, name)

    async def sync_tenant_usage(self, data: bytes) -> tuple[str, bytes]:
        """data: what each replica gave to tenants, by its name. Returns its own name, and what was given here since.
        Raises EngineStopped, MessageError."""
        name, given = _own_name(), decode_given(data)
        exchange = self._engine.loop.sync_tenant_usage
        own = await self._loaded.bridge.ask(lambda: exchange(usage_of_others(given, name)))
        return name, encode_given({name: own})

    def check_health(self) -> None:
        """Ray's question; one that raises is replaced."""
        if (why := self._loaded.bridge.stopped) is not None:
            raise RuntimeError(why)

    def record_routing_stats(self) -> dict[str, Any]:
        """What Ray carries to the routers."""
        capacity = self._engine.capacity
        exchange = self._engine.exchange
        peer = None if exchange is None or not exchange.address[1] else exchange.address
        stats = ReplicaStats(capacity.num_blocks * capacity.block_size, self._fair, self._costs(), peer)
        told: dict[str, Any] = msgspec.to_builtins(stats)
        return told

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """What Ray scales by (`autoscaling`). A coroutine, so that it runs where requests come and go."""
        return {QUEUED_SECONDS: self._load.seconds(self._costs())}

    def _costs(self) -> ServingCosts | None:
        """By the engine's own model of its steps, once it has seen enough of them."""
        latency = self._engine.loop.latency
        return ServingCosts.probed(latency.seconds, self._engine.capacity.max_rows) if latency.ready else None

    async def __del__(self) -> None:
        """Ray calls it when what was under way has ended."""
        if (loaded := getattr(self, "_loaded", None)) is not None:
            await asyncio.to_thread(loaded.bridge.close)


def _peers(peers: PeerSetup) -> KVPeerSettings:
    import ray.util

    from inflight.build import KVPeerSettings

    host = "127.0.0.1" if peers.is_local else ray.util.get_node_ip_address()
    return KVPeerSettings(replace(peers.options, host=host), peers.secret, "--prefill-replicas")


def _own_name() -> str:
    """Ray's for this replica."""
    from ray import serve

    name: str = serve.get_replica_context().replica_id.unique_id
    return name
