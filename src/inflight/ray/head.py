"""Check Ray's head: its version and address before Ray is loaded, and later whether it accepts connections.

Does not import Ray.
"""

from __future__ import annotations

import asyncio
import os
import socket
from dataclasses import dataclass

from inflight.config.setting import SettingsError
from inflight.extras import pip_install

MIN_VERSION = (2, 55)
CONNECT_SECONDS = 5.0
GRPC_SECONDS = 15.0
LOOK_SECONDS = 1.0  # between two attempts to connect, and the timeout of each
OWN_PATIENCE = 5.0  # seconds without an answer of a head on this machine, which no supervisor restarts
CLUSTER_PATIENCE = 45.0  # seconds of a cluster's head, which may restart with its state
_QUESTION = "/ray.rpc.NodeInfoGcsService/CheckAlive"


def check_version(version: str) -> None:
    """Raise SettingsError if this version of Ray is too old."""
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if numbers < MIN_VERSION:
        needed = ".".join(map(str, MIN_VERSION))
        raise SettingsError(
            f"--replicas needs Ray {needed} or later, and {version} is installed; {pip_install('ray')}."
        )


def check_address(address: str) -> None:
    """Raise SettingsError if the address is malformed or refuses connections: Ray itself would try for minutes."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise SettingsError(
            f"--ray-address is {address!r}; give HOST:PORT of a head, as `ray start --head` prints it (6379), or "
            "auto for the cluster that this machine belongs to."
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        late = isinstance(error, TimeoutError)
        cause = f"no answer within {CONNECT_SECONDS:g} s" if late else error.strerror or str(error)
        raise SettingsError(f"--ray-address {address} cannot be reached ({cause}). {advice(address)}") from None


def greet_head(address: str | None) -> None:
    """Check that a Ray head answers at the address, before Ray is loaded: Ray itself would try for minutes.

    If the head requires a token, set RAY_AUTH_MODE: Ray uses its stored token only for a head that it found itself.

    Raises:
        SettingsError: No head answers there.
    """
    if address in (None, "auto") or "RAY_AUTH_MODE" in os.environ or os.environ.get("RAY_USE_TLS", "0") != "0":
        return
    import grpc

    with grpc.insecure_channel(address) as channel:
        try:
            grpc.channel_ready_future(channel).result(GRPC_SECONDS)
            channel.unary_unary(_QUESTION)(b"", timeout=GRPC_SECONDS)
        except grpc.FutureTimeoutError:
            raise SettingsError(
                f"--ray-address {address} is not a Ray head: it did not answer by gRPC within {GRPC_SECONDS:g} s. "
                f"{advice(address)}"
            ) from None
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNAUTHENTICATED:
                os.environ["RAY_AUTH_MODE"] = "token"


def advice(address: str | None) -> str:
    """Return the next step after Ray could not be started or joined."""
    if address is None:
        return "See Ray's logs below /tmp/ray/session_latest/logs; or serve one engine, without --replicas."
    return (
        "Start a head with `ray start --head` and give its address, or leave the option out for a Ray of this machine."
    )


@dataclass(frozen=True, slots=True)
class HeadWatch:
    """Watch one head.

    Without its head Ray neither schedules nor replaces replicas, and after 60 s ends every process that has joined it.
    The watch stops the engine with an error message before that.

    Attributes:
        address: Host and port.
        patience: Seconds without an answer after which the head counts as lost.
    """

    address: str
    patience: float

    async def until_lost(self) -> str:
        """Wait until the head is lost; return the error message."""
        loop = asyncio.get_running_loop()
        last = loop.time()
        while loop.time() - last < self.patience:
            if await asyncio.to_thread(self.answers):
                last = loop.time()
            await asyncio.sleep(LOOK_SECONDS)
        return (
            f"Ray's head at {self.address} has not answered for {self.patience:g} s, and without it no replica can be "
            "reached; send the request again in a moment."
        )

    def answers(self) -> bool:
        host, _, port = self.address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=LOOK_SECONDS).close()
        except OSError:
            return False
        return True
