"""Start a Ray on this machine, or join a cluster, and run the replicas on it."""

from __future__ import annotations

import logging
import os
import queue
import re
import threading
from collections.abc import Callable

import ray
from ray import serve

from inflight.config.setting import SettingsError
from inflight.ray.deployment import PREFILL
from inflight.ray.head import CLUSTER_PATIENCE, OWN_PATIENCE, HeadWatch, advice, check_version
from inflight.ray.replica_handle import ReplicaHandle, first_sentence

NAME = "inflight"
START_SECONDS = 240.0  # limit of Ray's start, which takes some 10 s on an idle machine
STARTS = 3  # attempts to start a Ray of this machine: its own limit of 30 s is too short on a busy one

_OWN_FAULT = re.compile(r"^inflight\.[\w.]+: (.+)$", re.MULTILINE)

log = logging.getLogger("inflight.server")


class OwnRay:
    """A Ray that this process has started or joined.

    Ray's own HTTP proxy is not used: requests pass the server's limits, keys and minimum-rate guard first.
    """

    def __init__(self, address: str | None, max_replicas: int):
        """Start or join Ray. Raises SettingsError if that fails.

        Args:
            address: Of a cluster's head; None: start a Ray on this machine, and end it in `close`.
            max_replicas: Highest number of replicas.
        """
        self._address = address
        self._starter = _Starter()
        where = f"--ray-address {address}" if address else "Ray on this machine"
        check_version(ray.__version__)
        logging.getLogger("ray.serve").setLevel(logging.WARNING)  # the server's own log says the rest
        try:
            self._starter.run(lambda: _start(address, max_replicas))
        except Exception as error:  # Ray raises many kinds, some of which are Exception itself
            raise SettingsError(
                f"{where} cannot be used: {first_sentence(str(error)) or type(error).__name__}. {advice(address)}"
            ) from None
        patience = OWN_PATIENCE if address is None else CLUSTER_PATIENCE
        self._head = HeadWatch(ray.get_runtime_context().gcs_address, patience)

    def run(self, engine: serve.Application, prefill: serve.Application | None) -> ReplicaHandle:
        """Start the pools; return once all initial replicas are ready. Raises SettingsError."""
        try:
            handle = serve.run(engine, name=NAME, route_prefix=None)
            of_prefill = None if prefill is None else serve.get_deployment_handle(PREFILL, NAME)
            return ReplicaHandle(handle, self.close, self._head, of_prefill)
        except RuntimeError as error:
            why = _replica_error() or f"{first_sentence(str(error))}. See Ray's logs."
            raise SettingsError(f"The replicas cannot be started: {why}") from None

    def close(self) -> None:
        """End this machine's Ray, or the replicas on a cluster."""
        if not ray.is_initialized():
            return
        if not self._head.answers():
            return  # Ray would wait half a minute for an answer; this machine's ends with the process
        if self._address is not None:
            serve.delete(NAME)
        ray.shutdown()


class _Starter:
    """Run Ray's start in a daemon thread that never ends.

    Ray's processes end with the thread that started them (PR_SET_PDEATHSIG).
    """

    def __init__(self) -> None:
        self._ended: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def run(self, start: Callable[[], None]) -> None:
        """Call `start` in the thread; raise its exception, or TimeoutError."""
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


def _start(address: str | None, max_replicas: int) -> None:
    for left in reversed(range(STARTS)):
        try:
            _init(address, max_replicas)
            break
        except Exception as error:
            if address is not None or not left or "timed out" not in str(error):
                raise
            log.warning("%s; Ray is started once more.", first_sentence(str(error)))
            ray.shutdown()
    serve.start(proxy_location="Disabled", logging_config={"log_level": "WARNING"})


def _replica_error() -> str:
    """Return our own error message of a replica that did not start, from the trace that Ray reports; empty: none."""
    application = serve.status().applications.get(NAME)
    messages = () if application is None else tuple(one.message for one in application.deployments.values())
    found = [fault[1] for message in messages for fault in _OWN_FAULT.finditer(message)]
    return found[-1] if found else ""


def _init(address: str | None, max_replicas: int) -> None:
    ray.init(
        address=address or "local",  # "local" starts a new Ray even if another one runs on this machine
        num_cpus=None if address else max(os.cpu_count() or 1, max_replicas),
        include_dashboard=None if address else False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
