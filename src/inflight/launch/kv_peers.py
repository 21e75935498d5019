"""Configure KV transfer with peers for `inflight serve`: read the shared secret, describe the engine to peers."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from inflight.config.setting import SettingsError
from inflight.peer_secret import PeerSecretError, read_peer_secret
from inflight.server.kv_peers import KVPeering
from inflight.server.settings import ServerSettings

if TYPE_CHECKING:
    from inflight.build import Engine, KVPeerSettings


def wanted_peers(settings: ServerSettings) -> KVPeerSettings | None:
    """Return the settings of KV transfer, or None if it is off. Raises SettingsError for an unreadable secret."""
    options = settings.kv_exchange
    if options is None:
        return None
    from inflight.build import KVPeerSettings

    try:
        return KVPeerSettings(options, read_peer_secret(settings.kv_peer_secret_file))
    except PeerSecretError as error:
        raise SettingsError(str(error)) from None


def peering(settings: ServerSettings, engine: Engine) -> KVPeering | None:
    """Describe a loaded engine to its peers; None if KV transfer is off."""
    options = settings.kv_exchange
    if options is None or engine.exchange is None:
        return None
    host, port = engine.exchange.address
    return KVPeering(options, uuid.uuid4().hex, host, port, engine.capacity.block_size)


def peering_sentence(peering: KVPeering) -> str:
    """Describe the engine's part in KV transfer for the log."""
    if not peering.options.is_producer:
        return "KV transfer: loads the keys and values of prompts from peers."
    also = ", and loads them from peers" if peering.options.is_consumer else ""
    return f"KV transfer: exports the keys and values of prompts to peers at {peering.host}:{peering.port}{also}."
