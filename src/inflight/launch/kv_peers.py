"""How `inflight serve` comes to exchange keys and values with other engines: the secret is read before the model is
loaded, and what an engine is to its peers is told when it is.

Knows settings, and what an operator is to hear; the exchange itself is `execution.kv_exchange`'s.
"""

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
    """None: with nobody. Raises SettingsError."""
    options = settings.kv_exchange
    if options is None:
        return None
    from inflight.build import KVPeerSettings

    try:
        return KVPeerSettings(options, read_peer_secret(settings.kv_peer_secret_file))
    except PeerSecretError as error:
        raise SettingsError(str(error)) from None


def peering(settings: ServerSettings, engine: Engine) -> KVPeering | None:
    """Of an engine that is loaded; None where it has no peers."""
    options = settings.kv_exchange
    if options is None or engine.exchange is None:
        return None
    host, port = engine.exchange.address
    return KVPeering(options, uuid.uuid4().hex, host, port, engine.capacity.block_size)


def sentence(told: KVPeering) -> str:
    """For the log."""
    if not told.options.is_producer:
        return "Keys and values of prompts are taken over from peers."
    also = ", and taken over from them" if told.options.is_consumer else ""
    return f"Keys and values of prompts are handed over to peers at {told.host}:{told.port}{also}."
