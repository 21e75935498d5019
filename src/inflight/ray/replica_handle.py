"""The replicas, as whoever has HTTP asks them: through Ray's handle.

Knows Ray's handle and its errors, which are all one here; what is asked and told, `replica_links` and
`replicated_engine` know. Requests and what comes of them go by value, over Serve's gRPC between replicas, and not
through Ray's object store, which takes longer for each message.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any

import grpc
import msgspec
from prometheus_client.core import GaugeMetricFamily, Metric
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator

from inflight.core.tenants import TenantUsage
from inflight.ray.head_watch import HeadWatch
from inflight.ray.replica_links import Links, ReplicaLost
from inflight.ray.replicated_engine import ReplicatedEngine
from inflight.ray.routed_frame import NamedFrame, RoutedFrame
from inflight.ray.routing_board import board_of
from inflight.ray.service_exchange import decode_given, encode_given, exchange_for_ever
from inflight.server.engine_description import EngineDescription
from inflight.server.metrics.families import labelled

ANSWER_SECONDS = 5.0  # for which all replicas' answers are waited for
_LOST = (RayError, RayServeException, grpc.RpcError)


class ReplicaHandle:
    def __init__(
        self,
        handle: DeploymentHandle[Any],
        closed: Callable[[], None],
        head: HeadWatch | None = None,
        prefill: DeploymentHandle[Any] | None = None,
    ):
        """closed: told that nobody asks any more. head: whose loss ends everything; None: Ray sees to that itself.
        prefill: replicas that compute prompts for the others, if there are any; they are asked what they count."""
        self._handle, self._closed, self._head = handle, closed, head
        self._pools = [handle] if prefill is None else [handle, prefill]
        self._pool_of: dict[str, str] = {}  # replicas that answered last
        self._board = board_of(handle.deployment_name)

    async def describe(self) -> EngineDescription:
        """What each of them is."""
        return msgspec.msgpack.decode(await self._handle.describe.remote(), type=EngineDescription)

    def client(self, clock_zero: float, shares_service: bool) -> ReplicatedEngine:
        """In the running event loop. clock_zero: see there. shares_service: whether replicas are told what the others
        gave to tenants."""
        loop, tasks = asyncio.get_running_loop(), list[asyncio.Task[None]]()

        def closed() -> None:
            for one in tasks:
                if not loop.is_closed():
                    loop.call_soon_threadsafe(one.cancel)
            self._closed()

        engine = ReplicatedEngine(Links(RayCalls(self._handle)), self._board, clock_zero, closed)
        if shares_service:
            tasks.append(loop.create_task(exchange_for_ever(self._exchange_service, self._board.is_busy)))
        if self._head is not None:
            tasks.append(loop.create_task(_stop_without(self._head, engine)))
        return engine

    async def metrics(self) -> Mapping[str, bytes]:
        """Pages of the replicas that answer, by Ray's names for them."""
        said = await self._answers_by_pool("page")
        self._pool_of = {name: pool for pool, pages in said.items() for name, _ in pages}
        return {name: page for pages in said.values() for name, page in pages}

    async def shown(self, asked: bytes) -> Mapping[str, bytes]:
        """What the engines of the replicas that answer do, as `live.distant` writes it."""
        return dict(await self._answers("shown", asked))

    async def _exchange_service(self, given: Mapping[str, TenantUsage]) -> Mapping[str, TenantUsage]:
        told = await self._answers("sync_tenant_usage", encode_given(given))
        return {name: decode_given(data)[name] for name, data in told}

    async def _answers(self, question: str, *arguments: bytes) -> list[tuple[str, bytes]]:
        """Of all replicas that answer: their names, and what they say."""
        return [one for of_pool in (await self._answers_by_pool(question, *arguments)).values() for one in of_pool]

    async def _answers_by_pool(self, question: str, *arguments: bytes) -> dict[str, list[tuple[str, bytes]]]:
        """By the pool's name."""
        said = await asyncio.gather(*(self._answers_of(pool, question, *arguments) for pool in self._pools))
        return {pool.deployment_name: one for pool, one in zip(self._pools, said, strict=True)}

    async def _answers_of(
        self, pool: DeploymentHandle[Any], question: str, *arguments: bytes
    ) -> list[tuple[str, bytes]]:
        answers = pool.broadcast(question, *arguments)
        try:
            said = await answers.results_async(timeout_s=ANSWER_SECONDS, return_exceptions=True)
        except (*_LOST, TimeoutError):
            return []
        return [one for one in said if not isinstance(one, BaseException)]

    def collect(self) -> Iterable[Metric]:
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
    """A `Transport`."""

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
        """Raises ReplicaLost."""
        try:
            return _Followed(self._follow.remote(NamedFrame(replica), link))
        except _LOST as error:
            raise ReplicaLost(first_sentence(str(error))) from None

    async def leave(self, replica: str, link: str, request_ids: list[str]) -> None:
        try:
            await self._leave.remote(NamedFrame(replica), link, request_ids)
        except _LOST as error:
            raise ReplicaLost(first_sentence(str(error))) from None

    def is_there(self, replica: str) -> bool:
        return self._board.knows(replica)


class _Followed:
    """A stream of Ray's, whose ends of all kinds are one."""

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
    """Of Ray's errors, which go on with ids and traces."""
    return text.partition("\n")[0].partition(". ")[0].rstrip(".")[:300]
