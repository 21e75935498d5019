"""Where KV events are told, and how much is kept for those who fall behind. Knows numbers and addresses, not ZMQ."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class KVEventOptions:
    """endpoint: where events are published; replay_endpoint: where missed ones are asked for; None: nowhere.
    buffer_steps: messages that are kept for that. hwm: messages that wait for a subscriber, before it loses some.
    max_queue_size: messages that wait for being sent, before steps share one. topic: the first frame of each."""

    endpoint: str = "tcp://*:5557"
    replay_endpoint: str | None = None
    buffer_steps: int = 10_000
    hwm: int = 100_000
    max_queue_size: int = 100_000
    topic: str = ""
