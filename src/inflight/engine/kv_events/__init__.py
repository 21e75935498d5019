"""KV events: changes of a replica's prefix cache, published for routers on vLLM's wire.

`publisher` has the observer of an engine, the thread that sends, and the replay; `events` makes events of changes.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class KVEventOptions:
    """Where KV events are published, and how many messages are retained.

    Attributes:
        endpoint: Where events are published.
        replay_endpoint: Where missed ones are asked for; None: nowhere.
        buffer_steps: Messages that are retained for that.
        hwm: Messages that wait for a subscriber before it loses some.
        max_queue_size: Messages that wait to be sent before steps share one.
        topic: First frame of each message.
    """

    endpoint: str = "tcp://*:5557"
    replay_endpoint: str | None = None
    buffer_steps: int = 10_000
    hwm: int = 100_000
    max_queue_size: int = 100_000
    topic: str = ""
