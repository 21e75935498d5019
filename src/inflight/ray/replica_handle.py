"""Call the replicas through Ray's deployment handle.

Requests and events are sent by value, over Ray Serve's gRPC, not through Ray's object store, which takes longer for
each message. All of Ray's errors become ReplicaLost.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any

import grpc
import msgspec
from prometheus_client.core import GaugeMetricFamily, Metric
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator

from inflight.core.tenants import TenantUsage
from inflight.ray.head import HeadWatch
from inflight.ray.replica_links import Links, ReplicaLost
from inflight.ray.replicated_engine import ReplicatedEngine
from inflight.ray.routing_board import NamedFrame, RoutedFrame, board_of
from inflight.ray.tenant_usage_sync import decode_usage, encode_usage, sync_periodically
from inflight.server.engine_description import EngineDescription, decode_description
from inflight.server.metrics.families import labelled

FRAMES_SECONDS = 0.8  # limit of waiting for frames of all replicas; the server waits 1 s
ANSWER_SECONDS = 4.0  # limit of waiting for the answers of all replicas; the server waits 5 s for the metrics
_LOST = (RayError, RayServeException, grpc.RpcError)


class ReplicaHandle:
    """All replicas of the server, of both pools."""

    def __init__(
        self,
        handle: DeploymentHandle[Any],
        closed: Callable[[], None],
        head: HeadWatch | None = None,
        prefill: DeploymentHandle[Any] | None = None,
    ):
        """Wrap Ray's handles.

        Args:
            handle: Replicas that receive requests.
            closed: Called when the client is closed.
            head: Watches Ray's head; its loss stops the client. None: Ray stops the process itself.
            prefill: Replicas that compute prompts for the others, if there are any; only their metrics and frames are
                read here.
        """
        self._handle, self._closed, self._head = handle, closed, head
        self._pools = [handle] if prefill is None else [handle, prefill]
        self._pool_of: dict[str, str] = {}  # pool of each replica whose metrics were read last
        self._board = board_of(handle.deployment_name)

    async def connect(self, syncs_usage: bool) -> tuple[EngineDescription, ReplicatedEngine]:
        """Return the description of the engine, which all replicas share, and its client in the running event loop.

        Args:
            syncs_usage: Whether replicas learn the tenant usage of the others.
        """
        described = decode_description(await self._handle.describe.remote())
        zero = time.monotonic()  # arrivals count from here; replicas receive ages, since their clocks differ
        return msgspec.structs.replace(described, clock_zero=zero), self._client(zero, syncs_usage)

    def _client(self, clock_zero: float, syncs_usage: bool) -> ReplicatedEngine:
        loop, tasks = asyncio.get_running_loop(), list[asyncio.Task[None]]()

        def closed() -> None:
            for one in tasks:
                if not loop.is_closed():
                    loop.call_soon_threadsafe(one.cancel)
            self._closed()

        engine = ReplicatedEngine(Links(RayCalls(self._handle)), self._board, clock_zero, closed)
        if syncs_usage:
            tasks.append(loop.create_task(sync_periodically(self._sync_tenant_usage, self._board.is_busy)))
        if self._head is not None:
            tasks.append(loop.create_task(_stop_without(self._head, engine)))
        return engine

    async def metrics(self) -> Mapping[str, bytes]:
        """Return the metrics pages of the replicas that answer, by Ray's names of them."""
        by_pool = await self._call_by_pool("page")
        self._pool_of = {name: pool for pool, pages in by_pool.items() for name, _ in pages}
        return {name: page for pages in by_pool.values() for name, page in pages}

    async def shown(self, asked: bytes) -> Mapping[str, bytes]:
        """Return the frames of the replicas that answer, as `live.distant` encodes them, by Ray's names."""
        return dict(await self._call_all("shown", asked, seconds=FRAMES_SECONDS))

    async def _sync_tenant_usage(self, usage: Mapping[str, TenantUsage]) -> Mapping[str, TenantUsage]:
        answers = await self._call_all("sync_tenant_usage", encode_usage(usage))
        return {name: decode_usage(data)[name] for name, data in answers}

    async def _call_all(
        self, method: str, *arguments: bytes, seconds: float = ANSWER_SECONDS
    ) -> list[tuple[str, bytes]]:
        """Call all replicas; return the names and answers of those that answer."""
        return [
            one
            for of_pool in (await self._call_by_pool(method, *arguments, seconds=seconds)).values()
            for one in of_pool
        ]

    async def _call_by_pool(
        self, method: str, *arguments: bytes, seconds: float = ANSWER_SECONDS
    ) -> dict[str, list[tuple[str, bytes]]]:
        """Call all replicas; return the names and answers by the name of the pool."""
        answers = await asyncio.gather(
            *(self._call_pool(pool, method, *arguments, seconds=seconds) for pool in self._pools)
        )
        return {pool.deployment_name: one for pool, one in zip(self._pools, answers, strict=True)}

    async def _call_pool(
        self, pool: DeploymentHandle[Any], method: str, *arguments: bytes, seconds: float
    ) -> list[tuple[str, bytes]]:
        calls = pool.broadcast(method, *arguments)
        try:
            answers = await calls.results_async(timeout_s=seconds, return_exceptions=True)
        except (*_LOST, TimeoutError):
            return []
        return [one for one in answers if not isinstance(one, BaseException)]

    def collect(self) -> Iterable[Metric]:
        """Yield the router's gauges for the metrics page."""
        about = "Requests sent to a replica and not ended, as the router sees them."
        by_replica = {(name,): float(number) for name, number in self._board.queued().items()}
        yield labelled(GaugeMetricFamily, "inflight_replica_requests", about, ["replica"], by_replica)
        about = (
            "Which pool a replica is of: engine (requests are sent to it) or prefill (it computes prompts for them)."
        )
        pools = {(name, pool): 1.0 for name, pool in self._pool_of.items()}
        yield labelled(GaugeMetricFamily, "inflight_replica_pool", about, ["replica", "pool"], pools)


async def _stop_without(head: HeadWatch, engine: ReplicatedEngine) -> None:
    engine.stop(await head.until_lost())


class RayCalls:
    """Implement `Transport` by Ray's handle."""

    def __init__(self, handle: DeploymentHandle[Any]):
        self._board = board_of(handle.deployment_name)
        by_value = handle.options(_by_reference=False, request_serialization="pickle", response_serialization="pickle")
        self._open, self._leave = by_value.open, by_value.leave
        self._follow = by_value.options(stream=True).follow

    async def open(self, frame: RoutedFrame) -> bytes:
        try:
            answer: bytes = await self._open.remote(frame)
        except _LOST as error:
            raise ReplicaLost(first_sentence(str(error))) from None
        return answer

    def follow(self, replica: str, link: str) -> _Followed:
        """Open the stream of events of a link. Raises ReplicaLost."""
        try:
            return _Followed(self._follow.remote(NamedFrame(replica), link))
        except _LOST as error:
            raise ReplicaLost(first_sentence(str(error))) from None

    async def leave(self, replica: str, link: str, request_ids: list[str]) -> None:
        try:
            await self._leave.remote(NamedFrame(replica), link, request_ids)
        except _LOST as error:
            raise ReplicaLost(first_sentence(str(error))) from None

    def is_routed(self, replica: str) -> bool:
        return self._board.knows(replica)


class _Followed:
    """Wrap a stream of Ray's so that all of its errors become ReplicaLost."""

    def __init__(self, generator: DeploymentResponseGenerator[bytes]):
        self._generator = generator
        self._ended = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for data in self._generator:
                yield data
        except _LOST as error:
            raise ReplicaLost(first_sentence(str(error))) from None
        finally:
            self._ended = True

    def cancel(self) -> None:
        if not self._ended:
            self._generator.cancel()


def first_sentence(text: str) -> str:
    """Return the first sentence of one of Ray's errors, without its ids and traces."""
    return text.partition("\n")[0].partition(". ")[0].rstrip(".")[:300]
