"""Check Ray before it is loaded: its version, whether a head listens at the address, whether it requires a token.

Does not import Ray.
"""

from __future__ import annotations

import os
import socket

from inflight.config.setting import SettingsError
from inflight.extras import pip_install

MIN_VERSION = (2, 55)
CONNECT_SECONDS = 5.0
GRPC_SECONDS = 15.0
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
