"""The body of a Ray Serve replica: one engine, asked by the messages that engines in other processes are asked by.

Knows an engine and its messages; that it is one of several, only Ray and the router know.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import msgspec

from inflight.cli.engine_loading import load_engine
from inflight.cli.replicas.autoscaling import QUEUED_SECONDS
from inflight.cli.replicas.replica_setup import ReplicaSetup
from inflight.cli.replicas.routing_board import ReplicaStats
from inflight.cli.replicas.service_exchange import decode_given, encode_given
from inflight.core.tenants.service import elsewhere
from inflight.core.types.events import Event, FinishedEvent, TokensEvent
from inflight.core.types.request import RequestRefused
from inflight.engine.event_stream import EngineStopped
from inflight.engine.remote.messages import Accepted, Happened, Open, Refused, Stopped, decode_to_engine, encode
from inflight.routing.replica_queue import ReplicaQueue
from inflight.routing.serving_costs import ServingCosts
from inflight.server.heap import share_one_heap
from inflight.server.live.frame_shelf import FrameShelf


class EngineReplica:
    def __init__(self, setup: ReplicaSetup):
        """Raises what loading a model raises; Ray tells it and tries again."""
        share_one_heap()
        self._fair = setup.scheduling.policy == "fair"
        self._queue = ReplicaQueue(setup.scheduling)
        self._engine, self._loaded = load_engine(
            setup.server, setup.engine, setup.scheduling, None, setup.verbose, lambda doing: None, lambda folder: None
        )
        self._shelf = FrameShelf(self._loaded.shown)

    async def generate(self, data: bytes) -> AsyncIterator[bytes]:
        """data: `Open`, its requests' arrivals as seconds before now, since clocks of machines differ. Yields
        `Accepted` and then what happens, or `Refused`; `Stopped` where the engine works no more."""
        message = decode_to_engine(data)
        assert isinstance(message, Open), "nothing else is sent"
        now = self._engine.loop.clock.now()
        requests = [replace(one, arrival=now + one.arrival) for one in message.requests]
        try:
            stream = await self._loaded.bridge.open(*requests)
        except RequestRefused as refusal:
            told = Refused(message.stream, str(refusal), refusal.retry_after, refusal.field, refusal.code)
            yield encode(told)
            return
        except EngineStopped as fault:
            yield encode(Stopped(str(fault)))
            return
        tokens = dict.fromkeys((one.request_id for one in requests), 0)
        for one in requests:
            self._queue.came(one)
        try:
            yield encode(Accepted(message.stream))
            async for events in stream:
                self._count(events, tokens)
                yield encode(Happened.of(events))
        except EngineStopped as fault:
            yield encode(Stopped(str(fault)))
        finally:
            for request_id in tokens:  # that came to no end
                self._queue.ended(request_id, None)
            await stream.aclose()

    def _count(self, events: list[Event], tokens: dict[str, int]) -> None:
        """tokens: that each request has had, until it ends."""
        for event in events:
            self._queue.first_token(event.request_id)
            if isinstance(event, TokensEvent):
                tokens[event.request_id] += len(event.token_ids)
            elif isinstance(event, FinishedEvent):
                self._queue.ended(event.request_id, tokens.pop(event.request_id))

    async def describe(self) -> bytes:
        """`Described`."""
        return msgspec.msgpack.encode(self._loaded.described)

    async def page(self) -> tuple[str, bytes]:
        """Its name, and the metrics of its engine."""
        return _own_name(), (await self._loaded.page())[0]

    async def shown(self, asked: bytes) -> tuple[str, bytes]:
        """Its name, and what its engine does, as `live.distant` writes it."""
        name = _own_name()
        return name, await self._shelf.answer(asked, name)

    async def exchange_service(self, data: bytes) -> tuple[str, bytes]:
        """data: what each replica gave to tenants, by its name. Returns its own name, and what was given here since.
        Raises EngineStopped, MessageError."""
        name, given = _own_name(), decode_given(data)
        exchange = self._engine.loop.exchange_service
        own = await self._loaded.bridge.ask(lambda: exchange(elsewhere(given, name)))
        return name, encode_given({name: own})

    def check_health(self) -> None:
        """Ray's question; one that raises is replaced."""
        if (why := self._loaded.bridge.stopped) is not None:
            raise RuntimeError(why)

    def record_routing_stats(self) -> dict[str, Any]:
        """What Ray carries to the routers."""
        capacity = self._engine.capacity
        stats = ReplicaStats(capacity.num_blocks * capacity.block_size, self._fair, self._costs())
        told: dict[str, Any] = msgspec.to_builtins(stats)
        return told

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """What Ray scales by (`autoscaling`). A coroutine, so that it runs where requests come and go."""
        return {QUEUED_SECONDS: self._queue.seconds(self._costs())}

    def _costs(self) -> ServingCosts | None:
        """By the engine's own model of its steps, once it has seen enough of them."""
        latency = self._engine.loop.latency
        return ServingCosts.probed(latency.seconds, self._engine.capacity.max_rows) if latency.ready else None

    async def __del__(self) -> None:
        """Ray calls it when what was under way has ended."""
        if (loaded := getattr(self, "_loaded", None)) is not None:
            await asyncio.to_thread(loaded.bridge.close)


def _own_name() -> str:
    """Ray's for this replica."""
    from ray import serve

    name: str = serve.get_replica_context().replica_id.unique_id
    return name
