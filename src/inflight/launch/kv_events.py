"""How `inflight serve` comes to tell KV events: the addresses are opened before the model is loaded.

Knows settings that do not go together, and what an operator is to hear; the events themselves are the engine's.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from inflight.config.engine import EngineSettings
from inflight.config.kv_events import OPTION
from inflight.config.setting import SettingsError
from inflight.engine.kv_events import KVEventOptions

if TYPE_CHECKING:
    from inflight.engine.kv_events.publisher import KVEventPublisher

log = logging.getLogger("inflight.server")


def check_kv_events(options: KVEventOptions | None, engine: EngineSettings) -> None:
    """Raise SettingsError where events were asked for that cannot be published."""
    if options is not None and not engine.enable_prefix_caching:
        raise SettingsError(
            f"{OPTION} publishes changes of the prefix cache, and --no-prefix-caching leaves it empty; leave one of "
            "them out."
        )


def open_kv_events(options: KVEventOptions | None, engine: EngineSettings) -> KVEventPublisher | None:
    """Open the addresses. Raises SettingsError, KVEventAddressError."""
    if options is None:
        return None
    from inflight.engine.kv_events.publisher import KVEventPublisher

    check_kv_events(options, engine)
    publisher = KVEventPublisher(options)
    missed = "" if publisher.replayed is None else f", missed ones are asked for at {publisher.replayed}"
    listens = any(mark in options.endpoint for mark in ("*", "::"))
    how = "published at" if listens else "sent to whoever listens at"
    log.info(f"KV events: {how} {publisher.published}{missed}.")
    if listens:
        log.info(
            "Whoever reaches that address hears the tokens of all prompts and answers; keep it within your network."
        )
    return publisher
