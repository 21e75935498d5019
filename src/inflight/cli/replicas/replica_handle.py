"""The replicas, as whoever has HTTP asks them: through Ray's handle.

Knows Ray's handle and its errors, which are all one here; requests and events, `replicated_engine` knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any

import msgspec
from prometheus_client.core import GaugeMetricFamily, Metric
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator

from inflight.cli.replicas.replicated_engine import ReplicaLost, ReplicatedEngine
from inflight.cli.replicas.routed_frame import RoutedFrame
from inflight.cli.replicas.routing_board import BOARD
from inflight.server.loaded_engine import Described
from inflight.server.metrics.families import labelled

PAGE_SECONDS = 5.0  # for which the replicas' metrics are waited for
_LOST = (RayError, RayServeException)


class ReplicaHandle:
    def __init__(self, handle: DeploymentHandle[Any], closed: Callable[[], None]):
        """closed: told that nobody asks any more."""
        self._handle, self._closed = handle, closed

    async def describe(self) -> Described:
        """What each of them is."""
        return msgspec.msgpack.decode(await self._handle.describe.remote(), type=Described)

    def client(self, clock_zero: float) -> ReplicatedEngine:
        """In the running event loop. clock_zero: see there."""
        return ReplicatedEngine(self._ask, BOARD, clock_zero, self._closed)

    async def metrics(self) -> Mapping[str, bytes]:
        """Pages of the replicas, by Ray's names for them; none where one does not answer."""
        answers = self._handle.broadcast("page")
        try:
            return dict(await asyncio.to_thread(answers.results, timeout_s=PAGE_SECONDS))
        except (*_LOST, TimeoutError):
            return {}

    def collect(self) -> Iterable[Metric]:
        about = "Requests sent to a replica and not ended, as the router sees them."
        by_replica = {(name,): float(number) for name, number in BOARD.queued().items()}
        yield labelled(GaugeMetricFamily, "inflight_replica_requests", about, ["replica"], by_replica)

    def _ask(self, frame: RoutedFrame) -> _RayAnswer:
        """Raises ReplicaLost."""
        try:
            return _RayAnswer(self._handle.options(stream=True).generate.remote(frame))
        except _LOST as error:
            raise ReplicaLost(first_sentence(str(error))) from None


class _RayAnswer:
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
