"""Where a request's time went: the one account that responses, records, engine and simulator share."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from inflight.counted import Count, Seconds, Time

GRAMMAR = "grammar"
ADAPTER = "adapter"
KV = "kv"
QUEUE_REASONS = ("rows", "blocks", "budget", "share", "window", GRAMMAR, ADAPTER, KV)


@dataclass(frozen=True, slots=True)
class Timings:
    """Milliseconds, tokens and blocks of one request; with n > 1, of the sample that ended last.

    queue_ms: waited before its first chunk, split by what it waited for (`queued_by`, keys QUEUE_REASONS), and by the
    lane that had most of that (`queued_behind`, lanes' names; its own lane too): of the rows, of the blocks, of the
    step's prompt tokens (budget, share); for `window`, of the rows of the running batch, or its own lane; for
    `grammar`, which is being compiled before the engine hears of the request, its own lane; so for `adapter`, which is
    being loaded, or waits for a slot, before the request joins its queue; and for `kv`: keys and values of its prompt
    are brought from a tier or a peer.
    prefill_ms: first chunk to first token. decode_ms: first token to last, without preempted_ms (evicted, until its
    next token). other_ms: the rest, chiefly the step that was running when the request came. The five sum to
    total_ms, the time from arrival to the end. Rates are None where nothing was timed.
    started_ms, ttft_ms: from arrival to the first chunk, and to the first token; None: there was none.
    """

    queue_ms: Time
    prefill_ms: Time
    decode_ms: Time
    preempted_ms: Time
    other_ms: Time
    total_ms: Time
    ttft_ms: Time | None
    cached_tokens: Count
    recomputed_tokens: Count
    swapped_blocks: Count
    prompt_tokens_per_s: Seconds | None
    output_tokens_per_s: Seconds | None
    lane: str
    queued_by: dict[str, Time] = field(default_factory=lambda: dict.fromkeys(QUEUE_REASONS, 0.0))
    queued_behind: dict[str, Time] = field(default_factory=dict)
    started_ms: Time | None = None

    def to_json(self) -> dict[str, Any]:
        return {name: _rounded(getattr(self, name)) for name in _NAMES}


_NAMES = tuple(item.name for item in fields(Timings))


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: round(seconds, 3) for name, seconds in value.items()}
    return round(value, 3) if isinstance(value, float) else value
