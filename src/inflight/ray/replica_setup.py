"""What every replica is made of: of one pool, or of a pool that computes prompts and one that goes on with them.

Knows settings, and that replicas share a secret which nobody else is told; not how they are run.
"""

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
    """A replica among its peers. secret: of all of them. is_local: they are all on this machine."""

    options: KVExchangeOptions
    secret: PeerSecret
    is_local: bool


@dataclass(frozen=True, slots=True)
class ReplicaSetup:
    """peers: None: each computes its own prompts."""

    server: ServerSettings
    engine: EngineSettings
    scheduling: SchedulingSettings
    verbose: bool
    peers: PeerSetup | None = None


@dataclass(frozen=True, slots=True)
class PoolSetups:
    """engine: of replicas that requests are sent to. prefill: of those that compute prompts for them, if there are."""

    engine: ReplicaSetup
    prefill: ReplicaSetup | None = None


def pool_setups(setup: ReplicaSetup, has_prefill: bool, is_local: bool) -> PoolSetups:
    """setup: what was asked for, of all of them. Raises SettingsError."""
    options = setup.server.kv_exchange
    if not has_prefill or options is None:
        return PoolSetups(setup)
    secret = _secret(setup.server)
    # Whoever has HTTP exchanges nothing.
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
    """The one that was given; else a new one. Raises SettingsError."""
    if server.kv_peer_secret_file is None:
        return PeerSecret.new()
    try:
        return read_peer_secret(server.kv_peer_secret_file)
    except PeerSecretError as error:
        raise SettingsError(str(error)) from None
