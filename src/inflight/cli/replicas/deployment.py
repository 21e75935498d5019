"""The deployment of replicas: started on a Ray of this machine or on a cluster, asked, and ended.

Knows Ray Serve; what a replica computes and which of them gets a request, others know. Ray's own HTTP proxy is not
used: the server's limits, keys and pace stand before everything.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import msgspec
import ray
from prometheus_client.core import GaugeMetricFamily, Metric
from ray import serve
from ray.exceptions import RayError
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator

from inflight.cli.replicas.engine_replica import EngineReplica, ReplicaSetup
from inflight.cli.replicas.replicated_engine import ReplicaLost, ReplicatedEngine
from inflight.cli.replicas.routed_frame import RoutedFrame
from inflight.cli.replicas.routing_board import BOARD
from inflight.cli.replicas.scale import Scale
from inflight.config.setting import SettingsError
from inflight.server.loaded_engine import Described
from inflight.server.metrics.families import labelled

NAME = "inflight"
STATS_SECONDS = 1.0  # after which replicas tell again what their steps take
HEALTH_SECONDS = 2.0  # between two questions whether a replica works
MOST_ONGOING = 100_000  # requests that Ray lets wait at a replica: its own queue is the engine's
_LOST = (RayError, RayServeException)


class ReplicaDeployment:
    """address: of a cluster's head; None: a Ray of this machine, ended with this."""

    def __init__(self, address: str | None, router: str, scale: Scale, drain_seconds: float):
        self._address, self._router, self._scale, self._drain = address, router, scale, drain_seconds
        # Ray's processes end with the thread that has started them (PR_SET_PDEATHSIG): here with one that stays.
        self._starter = ThreadPoolExecutor(1, "inflight-ray")

    def start(self, setup: ReplicaSetup) -> Described:
        """Returns when all replicas of the start are ready: what each of them is. Raises SettingsError."""
        try:
            self._starter.submit(
                ray.init,
                address=self._address or "local",  # not one that happens to be here
                num_cpus=None if self._address else max(os.cpu_count() or 1, self._scale.most or self._scale.replicas),
                include_dashboard=False if self._address is None else None,
                log_to_driver=setup.verbose,
                logging_level=logging.ERROR,
            ).result()
        except (ConnectionError, ValueError, RuntimeError) as error:
            where = f"--ray-address {self._address}" if self._address else "Ray"
            raise SettingsError(f"{where} cannot be used: {error}") from None
        serve.start(proxy_location="Disabled", logging_config={"log_level": "WARNING"})
        try:
            self._handle: DeploymentHandle[Any] = serve.run(self._application(setup), name=NAME, route_prefix=None)
        except RuntimeError as error:
            raise SettingsError(f"The replicas cannot be started: {_first_sentence(str(error))}") from None
        described = self._handle.describe.remote().result()
        return msgspec.msgpack.decode(described, type=Described)

    def ask(self, frame: RoutedFrame) -> _RayAnswer:
        """Raises ReplicaLost."""
        try:
            return _RayAnswer(self._handle.options(stream=True).generate.remote(frame))
        except _LOST as error:
            raise ReplicaLost(_first_sentence(str(error))) from None

    async def client(self, clock_zero: float) -> ReplicatedEngine:
        """In this event loop."""
        return ReplicatedEngine(self.ask, BOARD, clock_zero, self.close)

    async def metrics(self) -> Mapping[str, bytes]:
        """Pages of the replicas that answer, by Ray's names for them."""
        answers = self._handle.broadcast("page")
        try:
            pages = await asyncio.to_thread(answers.results, timeout_s=5.0)
        except (*_LOST, TimeoutError):
            return {}
        return dict(pages)

    def collect(self) -> Iterable[Metric]:
        about = "Requests sent to a replica and not ended, as the router sees them."
        by_replica = {(name,): float(number) for name, number in BOARD.queued().items()}
        yield labelled(GaugeMetricFamily, "inflight_replica_requests", about, ["replica"], by_replica)

    def close(self) -> None:
        """Of this machine's Ray nothing is left; of a cluster's, the replicas end."""
        if not ray.is_initialized():
            return
        if self._address is not None:
            serve.delete(NAME)
        ray.shutdown()
        self._starter.shutdown()

    def _application(self, setup: ReplicaSetup) -> serve.Application:
        scale: dict[str, Any] = {"num_replicas": self._scale.replicas}
        if self._scale.most is not None:
            policy = AutoscalingPolicy(policy_function="inflight.cli.replicas.autoscaling:wanted_replicas")
            scale = {
                "autoscaling_config": AutoscalingConfig(
                    min_replicas=self._scale.replicas,
                    initial_replicas=self._scale.replicas,
                    max_replicas=self._scale.most,
                    policy=policy,
                )
            }
        deployment = serve.deployment(
            EngineReplica,
            name="engine",
            max_ongoing_requests=MOST_ONGOING,
            ray_actor_options=_resources(setup),
            health_check_period_s=HEALTH_SECONDS,
            graceful_shutdown_timeout_s=self._drain,
            request_router_config=RequestRouterConfig(
                request_router_class="inflight.cli.replicas.request_router:RoutedRequestRouter",
                request_router_kwargs={"policy": self._router},
                request_routing_stats_period_s=STATS_SECONDS,
            ),
            **scale,
        )
        return deployment.bind(setup)


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
            raise ReplicaLost(_first_sentence(str(error))) from None
        finally:
            self._ended = True

    def cancel(self) -> None:
        if not self._ended:
            self._generator.cancel()


def sharing_this_machine(setup: ReplicaSetup, scale: Scale) -> ReplicaSetup:
    """Each with its part of the cores, where nobody said how many threads it has."""
    if setup.engine.threads is not None or setup.engine.device.startswith("cuda"):
        return setup
    threads = max(1, len(os.sched_getaffinity(0)) // (scale.most or scale.replicas))
    return replace(setup, engine=replace(setup.engine, threads=threads))


def _resources(setup: ReplicaSetup) -> dict[str, float]:
    """What Ray keeps free for one. A replica on a CPU takes a place, not so many cores: its threads are its own."""
    if setup.engine.device.startswith("cuda"):
        return {"num_cpus": 1, "num_gpus": setup.engine.tensor_parallel_size}
    return {"num_cpus": 1}


def _first_sentence(text: str) -> str:
    """Of Ray's errors, which go on with ids and traces."""
    return text.partition("\n")[0].partition(". ")[0].rstrip(".")[:300]
