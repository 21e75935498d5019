"""A Ray to run replicas on: one of this machine, or a cluster that is there.

Knows how Ray is started and joined, and says in a sentence why it cannot be; what runs on it, `deployment` knows.
"""

from __future__ import annotations

import atexit
import logging
import os
import queue
import re
import threading
from collections.abc import Callable

import ray
from ray import serve

from inflight.config.setting import SettingsError
from inflight.ray.deployment import PREFILL, Pools
from inflight.ray.head_watch import CLUSTER_PATIENCE, OWN_PATIENCE, HeadWatch
from inflight.ray.ray_address import advice, check_version
from inflight.ray.replica_handle import ReplicaHandle, first_sentence

NAME = "inflight"
START_SECONDS = 240.0  # for which Ray's start is waited for: some 10 s on a machine that has nothing else to do
STARTS = 3  # of a Ray of this machine: its own limit is 30 s, which a busy one may need longer for

_OWN_FAULT = re.compile(r"^inflight\.[\w.]+: (.+)$", re.MULTILINE)

log = logging.getLogger("inflight.server")


class OwnRay:
    """A Ray that this process has begun, or joined. Its own HTTP proxy is not used: the server's limits, keys and pace
    stand before everything. address: of a cluster's head; None: a Ray of this machine, ended with this."""

    def __init__(self, address: str | None, places: int):
        """places: replicas that there may be. Raises SettingsError."""
        self._address = address
        self._starter = _Starter()
        where = f"--ray-address {address}" if address else "Ray on this machine"
        check_version(ray.__version__)
        try:
            self._starter.run(lambda: _start(address, places))
        except Exception as error:  # Ray raises many kinds, some of which are Exception itself
            raise SettingsError(
                f"{where} cannot be used: {first_sentence(str(error)) or type(error).__name__}. {advice(address)}"
            ) from None
        patience = OWN_PATIENCE if address is None else CLUSTER_PATIENCE
        self._head = HeadWatch(ray.get_runtime_context().gcs_address, patience)
        logging.getLogger("ray.serve").setLevel(logging.WARNING)  # the server's own log says the rest

    def run(self, pools: Pools) -> ReplicaHandle:
        """Returns when all replicas of the start are ready. Raises SettingsError."""
        try:
            handle = serve.run(pools.engine, name=NAME, route_prefix=None)
            prefill = None if pools.prefill is None else serve.get_deployment_handle(PREFILL, NAME)
            return ReplicaHandle(handle, self.close, self._head, prefill)
        except RuntimeError as error:
            why = _own_words() or f"{first_sentence(str(error))}. Ray's logs say more."
            raise SettingsError(f"The replicas cannot be started: {why}") from None

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


class _Starter:
    """A thread that stays: Ray's processes end with the thread that has started them (PR_SET_PDEATHSIG). It is no
    reason for this process to stay."""

    def __init__(self) -> None:
        self._ended: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def run(self, start: Callable[[], None]) -> None:
        """Raises what it raises, or TimeoutError."""
        threading.Thread(target=self._main, args=(start,), name="inflight-ray", daemon=True).start()
        try:
            fault = self._ended.get(timeout=START_SECONDS)
        except queue.Empty:
            raise TimeoutError(f"it was not ready in {START_SECONDS:g} s") from None
        if fault is not None:
            raise fault

    def _main(self, start: Callable[[], None]) -> None:
        try:
            start()
        except BaseException as fault:  # Ray leaves by SystemExit, too
            self._ended.put(fault if isinstance(fault, Exception) else RuntimeError(str(fault)))
            return
        self._ended.put(None)
        threading.Event().wait()


def _start(address: str | None, places: int) -> None:
    for left in reversed(range(STARTS)):
        try:
            _init(address, places)
            break
        except Exception as error:
            if address is not None or not left or "timed out" not in str(error):
                raise
            log.warning("%s; Ray is started once more.", first_sentence(str(error)))
            ray.shutdown()
    serve.start(proxy_location="Disabled", logging_config={"log_level": "WARNING"})


def _own_words() -> str:
    """What a replica said itself when it did not start, in the end of a trace that Ray passes on; empty: nothing."""
    application = serve.status().applications.get(NAME)
    told = () if application is None else tuple(one.message for one in application.deployments.values())
    found = [said[1] for message in told for said in _OWN_FAULT.finditer(message)]
    return found[-1] if found else ""


def _init(address: str | None, places: int) -> None:
    ray.init(
        address=address or "local",  # not one that happens to be here
        num_cpus=None if address else max(os.cpu_count() or 1, places),
        include_dashboard=None if address else False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
