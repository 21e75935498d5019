"""Whether a Ray can be what replicas need, as far as that is known before it is loaded: its version, that a head
listens where one is to be, and whether it wants the token that Ray keeps in the user's folder.

Knows addresses, and one question that every head answers; loads nothing of Ray.
"""

from __future__ import annotations

import os
import socket

from inflight.config.setting import SettingsError
from inflight.extras import pip_install

LEAST_VERSION = (2, 55)
CONNECT_SECONDS = 5.0
GRPC_SECONDS = 15.0
_QUESTION = "/ray.rpc.NodeInfoGcsService/CheckAlive"


def check_version(version: str) -> None:
    """Raises SettingsError."""
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if numbers < LEAST_VERSION:
        least = ".".join(map(str, LEAST_VERSION))
        raise SettingsError(f"--replicas needs Ray {least} or later, and {version} is installed; {pip_install('ray')}.")


def check_address(address: str) -> None:
    """Whether somebody listens there: Ray itself would try for minutes. Raises SettingsError."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise SettingsError(
            f"--ray-address is {address!r}; give HOST:PORT of a head, as `ray start --head` tells it (6379), or "
            "auto for the cluster that this machine belongs to."
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        late = isinstance(error, TimeoutError)
        cause = f"no answer within {CONNECT_SECONDS:g} s" if late else error.strerror or str(error)
        raise SettingsError(f"--ray-address {address} cannot be reached ({cause}). {advice(address)}") from None


def greet_head(address: str | None) -> None:
    """Before Ray is loaded: whether who listens there speaks as a head does, which Ray itself would find out in
    minutes. A head with tokens is joined with one: Ray uses its own token only where it has found the head itself.
    Raises SettingsError."""
    if address in (None, "auto") or "RAY_AUTH_MODE" in os.environ or os.environ.get("RAY_USE_TLS", "0") != "0":
        return
    import grpc

    with grpc.insecure_channel(address) as channel:
        try:
            grpc.channel_ready_future(channel).result(GRPC_SECONDS)
            channel.unary_unary(_QUESTION)(b"", timeout=GRPC_SECONDS)
        except grpc.FutureTimeoutError:
            raise SettingsError(
                f"--ray-address {address} is no head of Ray's: whoever listens there has not spoken gRPC within "
                f"{GRPC_SECONDS:g} s. {advice(address)}"
            ) from None
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNAUTHENTICATED:
                os.environ["RAY_AUTH_MODE"] = "token"


def advice(address: str | None) -> str:
    if address is None:
        return "Ray's logs below /tmp/ray/session_latest/logs say more; or serve one engine, without --replicas."
    return (
        "Start a head with `ray start --head` and give its address, or leave the option out for a Ray of this machine."
    )
