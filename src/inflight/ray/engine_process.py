"""Run replicas under Ray Serve, and serve them to API processes as one engine.

Started in place of `inflight.launch.engine_process`, by a `ReplicatedSetup`. Ray's processes end with this one.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from inflight import __version__
from inflight.config.setting import SettingsError
from inflight.counted import counted
from inflight.extras import pip_install
from inflight.launch.engine_loading import log_line
from inflight.launch.engine_process import EngineProcess, run_process
from inflight.launch.engine_setup import EngineSetup
from inflight.launch.one_model import EngineProgram
from inflight.ray.head import greet_head
from inflight.ray.replica_setup import Replicas, ReplicaSetup, pool_setups
from inflight.ray.replicated_engine import ReplicatedEngine
from inflight.server.engine_description import EngineDescription
from inflight.server.loader import LOADER, in_own_thread
from inflight.server.metrics.pool_page import PoolMetrics
from inflight.server.processes.messages import Loading, Model

if TYPE_CHECKING:
    from inflight.ray.replica_handle import ReplicaHandle


ENDING_SECONDS = 60.0  # in which Ray ends its processes, or the replicas of a cluster


class ReplicatedSetup(EngineSetup, frozen=True, kw_only=True):
    """Describe replicas and the process that starts them."""

    replicas: Replicas


def replicas_program(replicas: Replicas) -> EngineProgram:
    """Return the program that runs replicas."""
    return EngineProgram(
        module="inflight.ray.engine_process",
        make_setup=partial(ReplicatedSetup, replicas=replicas),
        ending_seconds=ENDING_SECONDS,
        has_replicas=True,
    )


@dataclass(frozen=True, slots=True)
class _LoadedReplicas:
    """A `HostedEngine` of replicas."""

    bridge: ReplicatedEngine
    metrics: PoolMetrics
    described: EngineDescription
    handle: ReplicaHandle

    async def page(self) -> tuple[bytes, str]:
        return await self.metrics.page()

    async def frames(self, asked: bytes, name: str) -> dict[str, bytes]:
        return dict(await self.handle.shown(asked))


class _ReplicasProcess(EngineProcess):
    def __init__(self, setup: ReplicatedSetup):
        super().__init__(setup)
        self._replicas = setup.replicas
        self._setup_of_replica = ReplicaSetup(
            server=setup.server, engine=setup.engine, scheduling=setup.scheduling, verbose=setup.verbose
        )

    async def load(self) -> _LoadedReplicas:
        handle = await in_own_thread(self._start, LOADER)
        metrics = PoolMetrics(version=__version__, label="replica")
        metrics.pool = handle
        described, client = await handle.connect(self._setup_of_replica.scheduling.weighs_tenants)
        return _LoadedReplicas(client, metrics, described, handle)

    def _start(self) -> ReplicaHandle:
        """Start Ray and the replicas. Raises SettingsError, ModelError."""
        from inflight.build import text_files

        setup, replicas = self._setup_of_replica, self._replicas
        self.send(Model(text_files(setup.engine)))  # checks the model before Ray is started
        self.send(Loading("starting Ray and the replicas"))
        where = "and a Ray of this machine" if replicas.address is None else f"on Ray at {replicas.address}"
        log_line(f"Starting {counted(replicas.started, 'replica')} {where}; half a minute, or more on a busy machine.")
        try:
            greet_head(replicas.address)
            from inflight.ray.deployment import pools, with_core_share
            from inflight.ray.own_ray import OwnRay
        except ImportError as error:
            raise SettingsError(
                f"--replicas needs Ray Serve, and the installed Ray cannot be used ({error}); "
                f"{pip_install('ray')}, or serve one engine."
            ) from None
        is_local = replicas.address is None
        if is_local:
            setup = with_core_share(setup, replicas)
        setups = pool_setups(setup, replicas.prefill is not None, is_local)
        return OwnRay(replicas.address, replicas.limit).run(*pools(*setups, replicas))


def main(control: socket.socket) -> int:
    """Run until the server ends or no replica can be reached. Return the exit code."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _ignore)
    return run_process(control, ReplicatedSetup, _ReplicasProcess)


def _ignore(*_: object) -> None:
    """Ignore a signal: unlike SIG_IGN, Ray's processes do not inherit it."""


if __name__ == "__main__":
    code = main(socket.socket(fileno=int(sys.argv[1])))
    sys.stderr.flush()
    os._exit(code)  # do not wait for threads of libraries
