"""From entries to the engine's requests, for offline runs and simulations.

The answers are those that were drawn or recorded in length, and nothing in content: greedy, past end tokens, to the
forced length. Turns that follow an answer carry what stands for it in `contents`, since no real answer is known here.
"""

from __future__ import annotations

from functools import lru_cache

from inflight.core.types.request import SLO, Request
from inflight.core.types.sampling import SamplingParams
from inflight.workload.workload import Entry


@lru_cache(maxsize=1024)
def _params(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, ignore_eos=True, max_tokens=max_tokens)


def core_request(
    entry: Entry, request_id: str, prompt_token_ids: tuple[int, ...], arrival: float | None = None
) -> Request:
    """arrival: where its time is known only now (later turns, closed loops); None: the entry's."""
    max_tokens = entry.max_tokens or entry.output_tokens
    return Request(
        request_id=request_id,
        prompt_token_ids=prompt_token_ids,
        params=_params(max_tokens),
        arrival=entry.arrival if arrival is None else arrival,
        lane=entry.lane or "interactive",
        tenant=entry.tenant,
        priority=entry.priority or 0,
        slo=SLO(entry.targets.ttft, entry.targets.pace),
        cache_salt=entry.cache_salt,
        forced_output_tokens=min(entry.output_tokens, max_tokens),
    )
