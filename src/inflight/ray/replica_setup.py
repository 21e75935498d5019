"""Define how many replicas a server has, and the settings of each: of one pool, or of a decode and a prefill pool."""

from __future__ import annotations

from dataclasses import dataclass, replace

from msgspec import structs

from inflight.config.setting import SettingsError
from inflight.core.types.kv_transfer import KVTransferOptions
from inflight.launch.engine_setup import ModelSetup
from inflight.peer_secret import PeerSecret, PeerSecretError, read_peer_secret
from inflight.server.settings import ServerSettings


@dataclass(frozen=True, slots=True)
class Scale:
    """The size of one pool.

    Attributes:
        replicas: At the start, and the lowest number.
        max_replicas: Autoscaling adds replicas up to this number; None: no autoscaling.
    """

    replicas: int
    max_replicas: int | None = None

    @property
    def limit(self) -> int:
        """Highest number of replicas."""
        return self.max_replicas or self.replicas


@dataclass(frozen=True, slots=True)
class Replicas:
    """The replicas of a server.

    Attributes:
        scale: Size of the pool that receives requests.
        address: Of a Ray cluster's head; None: start a Ray on this machine.
        router: Name of the routing policy.
        prefill: Size of the pool that computes prompts for the others; None: each replica computes its own.
    """

    scale: Scale
    address: str | None
    router: str
    prefill: Scale | None = None

    @property
    def started(self) -> int:
        return self.scale.replicas + (0 if self.prefill is None else self.prefill.replicas)

    @property
    def limit(self) -> int:
        """Highest number of replicas."""
        return self.scale.limit + (0 if self.prefill is None else self.prefill.limit)


@dataclass(frozen=True, slots=True)
class PeerSetup:
    """Settings of KV transfer between replicas.

    Attributes:
        options: Role and transport of this replica.
        secret: Shared by all replicas.
        is_local: Whether all replicas run on this machine.
    """

    options: KVTransferOptions
    secret: PeerSecret
    is_local: bool


class ReplicaSetup(ModelSetup, frozen=True, kw_only=True):
    """Settings of one replica. peers: None: it computes its own prompts."""

    peers: PeerSetup | None = None


def pool_setups(setup: ReplicaSetup, has_prefill: bool, is_local: bool) -> tuple[ReplicaSetup, ReplicaSetup | None]:
    """Derive the settings of engine replicas and prefill replicas from the server's.

    Raises:
        SettingsError: The secret is unreadable.
    """
    options = setup.server.kv_transfer
    if not has_prefill or options is None:
        return setup, None
    secret = _secret(setup.server)
    # The process that serves HTTP transfers no blocks.
    alone = replace(
        setup.server,
        role=None,
        kv_transport=None,
        kv_transfer_timeout=None,
        kv_transfer_hold=None,
        kv_peer_secret_file=None,
    )
    setup = structs.replace(setup, server=alone)
    decode = PeerSetup(replace(options, role="decode"), secret, is_local)
    prefill = PeerSetup(replace(options, role="prefill"), secret, is_local)
    return structs.replace(setup, peers=decode), structs.replace(setup, peers=prefill)


def _secret(server: ServerSettings) -> PeerSecret:
    """Read the secret from the server's file, or make a new one. Raises SettingsError."""
    if server.kv_peer_secret_file is None:
        return PeerSecret.new()
    try:
        return read_peer_secret(server.kv_peer_secret_file)
    except PeerSecretError as error:
        raise SettingsError(str(error)) from None
