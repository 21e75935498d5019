"""Define the settings of the replicas of one pool, or of a decode pool and a prefill pool that share a secret."""

from __future__ import annotations

from dataclasses import dataclass, replace

from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.config.setting import SettingsError
from inflight.core.types.kv_transfer import KVExchangeOptions
from inflight.peer_secret import PeerSecret, PeerSecretError, read_peer_secret
from inflight.server.settings import ServerSettings


@dataclass(frozen=True, slots=True)
class PeerSetup:
    """Settings of KV transfer between replicas.

    Attributes:
        options: Role and transport of this replica.
        secret: Shared by all replicas.
        is_local: Whether all replicas run on this machine.
    """

    options: KVExchangeOptions
    secret: PeerSecret
    is_local: bool


@dataclass(frozen=True, slots=True)
class ReplicaSetup:
    """Settings of one replica. peers: None: it computes its own prompts."""

    server: ServerSettings
    engine: EngineSettings
    scheduling: SchedulingSettings
    verbose: bool
    peers: PeerSetup | None = None


@dataclass(frozen=True, slots=True)
class PoolSetups:
    """Settings of the pools.

    Attributes:
        engine: Replicas that receive requests.
        prefill: Replicas that compute prompts for the engine replicas; None: there are none.
    """

    engine: ReplicaSetup
    prefill: ReplicaSetup | None = None


def pool_setups(setup: ReplicaSetup, has_prefill: bool, is_local: bool) -> PoolSetups:
    """Derive the settings of both pools from the server's. Raises SettingsError for an unreadable secret."""
    options = setup.server.kv_exchange
    if not has_prefill or options is None:
        return PoolSetups(setup)
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
    setup = replace(setup, server=alone)
    decode = PeerSetup(replace(options, role="decode"), secret, is_local)
    prefill = PeerSetup(replace(options, role="prefill"), secret, is_local)
    return PoolSetups(replace(setup, peers=decode), replace(setup, peers=prefill))


def _secret(server: ServerSettings) -> PeerSecret:
    """Read the secret from the server's file, or make a new one. Raises SettingsError."""
    if server.kv_peer_secret_file is None:
        return PeerSecret.new()
    try:
        return read_peer_secret(server.kv_peer_secret_file)
    except PeerSecretError as error:
        raise SettingsError(str(error)) from None
