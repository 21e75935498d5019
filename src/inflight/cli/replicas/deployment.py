"""The deployment of replicas: what Ray is told of them, and a Ray to run them on, of this machine or of a cluster.

Knows Ray Serve; what a replica computes and which of them gets a request, others know.
"""

from __future__ import annotations

import atexit
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import ray
from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig

from inflight.cli.replicas.engine_replica import EngineReplica
from inflight.cli.replicas.head_watch import CLUSTER_PATIENCE, OWN_PATIENCE, HeadWatch
from inflight.cli.replicas.replica_handle import ReplicaHandle, first_sentence
from inflight.cli.replicas.replica_setup import ReplicaSetup
from inflight.cli.replicas.scale import Scale
from inflight.config.setting import SettingsError
from inflight.routing.autoscaling import DOWN_SECONDS, TELL_SECONDS, UP_SECONDS, WINDOW_SECONDS

NAME = "inflight"
STATS_SECONDS = 1.0  # after which replicas tell again what their steps take
HEALTH_SECONDS = 2.0  # between two questions whether a replica works
MOST_ONGOING = 100_000  # requests that Ray lets wait at a replica: its own queue is the engine's


def engines(setup: ReplicaSetup, router: str, scale: Scale) -> serve.Application:
    """router: name of its policy."""
    size: dict[str, Any] = {"num_replicas": scale.replicas}
    if scale.most is not None:
        policy = AutoscalingPolicy(policy_function="inflight.cli.replicas.autoscaling:wanted_replicas")
        config = AutoscalingConfig(
            min_replicas=scale.replicas,
            initial_replicas=scale.replicas,
            max_replicas=scale.most,
            metrics_interval_s=TELL_SECONDS,
            look_back_period_s=WINDOW_SECONDS,
            upscale_delay_s=UP_SECONDS,
            downscale_delay_s=DOWN_SECONDS,
            policy=policy,
        )
        size = {"autoscaling_config": config}
    deployment = serve.deployment(
        EngineReplica,
        name="engine",
        max_ongoing_requests=MOST_ONGOING,
        ray_actor_options=_resources(setup),
        health_check_period_s=HEALTH_SECONDS,
        graceful_shutdown_timeout_s=setup.server.drain_timeout,
        request_router_config=RequestRouterConfig(
            request_router_class="inflight.cli.replicas.request_router:RoutedRequestRouter",
            request_router_kwargs={"policy": router},
            request_routing_stats_period_s=STATS_SECONDS,
        ),
        **size,
    )
    return deployment.bind(setup)


class OwnRay:
    """A Ray that this process has begun, or joined. Its own HTTP proxy is not used: the server's limits, keys and pace
    stand before everything. address: of a cluster's head; None: a Ray of this machine, ended with this."""

    def __init__(self, address: str | None, places: int):
        """places: replicas that there may be. Raises SettingsError."""
        self._address = address
        # Ray's processes end with the thread that has started them (PR_SET_PDEATHSIG): here with one that stays.
        self._starter = ThreadPoolExecutor(1, "inflight-ray")
        try:
            self._starter.submit(
                ray.init,
                address=address or "local",  # not one that happens to be here
                num_cpus=None if address else max(os.cpu_count() or 1, places),
                include_dashboard=None if address else False,
                log_to_driver=False,
                logging_level=logging.ERROR,
            ).result()
        except (ConnectionError, ValueError, RuntimeError) as error:
            where = f"--ray-address {address}" if address else "Ray"
            raise SettingsError(f"{where} cannot be used: {first_sentence(str(error))}.") from None
        patience = OWN_PATIENCE if address is None else CLUSTER_PATIENCE
        self._head = HeadWatch(ray.get_runtime_context().gcs_address, patience)
        serve.start(proxy_location="Disabled", logging_config={"log_level": "WARNING"})
        logging.getLogger("ray.serve").setLevel(logging.WARNING)  # the server's own log says the rest

    def run(self, application: serve.Application) -> ReplicaHandle:
        """Returns when all replicas of the start are ready. Raises SettingsError."""
        try:
            return ReplicaHandle(serve.run(application, name=NAME, route_prefix=None), self.close, self._head)
        except RuntimeError as error:
            why = first_sentence(str(error))
            raise SettingsError(f"The replicas cannot be started: {why}. Ray's logs say more.") from None

    def close(self) -> None:
        """Of this machine's Ray nothing is left; of a cluster's, the replicas end."""
        if not ray.is_initialized():
            return
        if not self._head.answers():
            atexit.register(os._exit, 1)  # before Ray's own, which would wait half a minute for an answer
            return
        if self._address is not None:
            serve.delete(NAME)
        ray.shutdown()
        self._starter.shutdown()


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
