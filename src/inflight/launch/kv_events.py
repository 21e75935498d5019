"""Open the publisher of KV events for `inflight serve`, before the model is loaded, and log its addresses."""

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
    """Raise SettingsError if KV events are configured but prefix caching is off."""
    if options is not None and not engine.enable_prefix_caching:
        raise SettingsError(
            f"{OPTION} publishes changes of the prefix cache, and --no-prefix-caching leaves it empty; leave one of "
            "them out."
        )


def open_kv_events(options: KVEventOptions | None, engine: EngineSettings) -> KVEventPublisher | None:
    """Open the configured addresses and return the publisher.

    Raises:
        SettingsError: Prefix caching is off.
        KVEventAddressError: An address cannot be opened.
    """
    if options is None:
        return None
    from inflight.engine.kv_events.publisher import KVEventPublisher

    check_kv_events(options, engine)
    publisher = KVEventPublisher(options)
    missed = "" if publisher.replayed is None else f", missed ones are asked for at {publisher.replayed}"
    listens = any(mark in options.endpoint for mark in ("*", "::"))
    how = "published at" if listens else "sent to the subscriber at"
    log.info(f"KV events: {how} {publisher.published}{missed}.")
    if listens:
        log.info(
            "Every client that can reach that address receives the tokens of all prompts and answers; keep it within "
            "your network."
        )
    return publisher
