"""Define the Ray Serve deployments of engine and prefill replicas."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from msgspec import structs
from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig

from inflight.config.setting import SettingsError
from inflight.cpus import usable_cpus
from inflight.ray.engine_replica import EngineReplica
from inflight.ray.replica_setup import Replicas, ReplicaSetup, Scale
from inflight.routing.autoscaling import DOWN_SECONDS, REPORT_SECONDS, UP_SECONDS, WINDOW_SECONDS

ENGINE, PREFILL = "engine", "prefill"  # deployments
STATS_SECONDS = 1.0  # between two reports of a replica's step costs
HEALTH_SECONDS = 2.0  # between two health checks of a replica
MAX_ONGOING = 100_000  # requests that Ray lets wait at a replica: the engine has its own, smaller, queue limit


def pools(
    setup: ReplicaSetup, prefill_setup: ReplicaSetup | None, replicas: Replicas
) -> tuple[serve.Application, serve.Application | None]:
    """Make the applications of engine replicas, and of prefill replicas if there are any."""
    prefill = None
    if prefill_setup is not None and replicas.prefill is not None:
        prefill = _pool(PREFILL, prefill_setup, replicas.router, replicas.prefill).bind(prefill_setup)
    return _pool(ENGINE, setup, replicas.router, replicas.scale).bind(setup, prefill), prefill


def _pool(name: str, setup: ReplicaSetup, router: str, scale: Scale) -> serve.Deployment:
    """Make the deployment of one pool. router: name of the routing policy."""
    size: dict[str, Any] = {"num_replicas": scale.replicas}
    if scale.max_replicas is not None:
        policy = AutoscalingPolicy(policy_function="inflight.ray.replica_load:wanted_replicas")
        config = AutoscalingConfig(
            min_replicas=scale.replicas,
            initial_replicas=scale.replicas,
            max_replicas=scale.max_replicas,
            metrics_interval_s=REPORT_SECONDS,
            look_back_period_s=WINDOW_SECONDS,
            upscale_delay_s=UP_SECONDS,
            downscale_delay_s=DOWN_SECONDS,
            policy=policy,
        )
        size = {"autoscaling_config": config}
    return serve.deployment(
        EngineReplica,
        name=name,
        max_ongoing_requests=MAX_ONGOING,
        ray_actor_options=_resources(setup),
        health_check_period_s=HEALTH_SECONDS,
        graceful_shutdown_timeout_s=setup.server.drain_timeout,
        request_router_config=RequestRouterConfig(
            request_router_class="inflight.ray.request_router:RoutedRequestRouter",
            request_router_kwargs={"policy": router, "deployment": name},
            request_routing_stats_period_s=STATS_SECONDS,
        ),
        **size,
    )


def with_core_share(setup: ReplicaSetup, replicas: Replicas) -> ReplicaSetup:
    """Give each replica an equal share of this machine's cores, unless threads are set or a GPU computes.

    Raises:
        SettingsError: `--cpu-list` is set although there may be several replicas.
    """
    if setup.engine.cpu_list is not None and replicas.limit > 1:
        raise SettingsError(
            "--cpu-list gives the threads of one engine their CPUs, and --replicas asks for up to "
            f"{replicas.limit}; leave one of them out."
        )
    if setup.engine.threads is not None or setup.engine.device.startswith("cuda"):
        return setup
    threads = max(1, usable_cpus().num_threads // replicas.limit)
    return structs.replace(setup, engine=replace(setup.engine, threads=threads))


def _resources(setup: ReplicaSetup) -> dict[str, float]:
    """Return the resources that Ray reserves for a replica. A replica on a CPU counts as one CPU, whatever its
    number of threads."""
    if setup.engine.device.startswith("cuda"):
        return {"num_cpus": 1, "num_gpus": setup.engine.tensor_parallel_size}
    return {"num_cpus": 1}
