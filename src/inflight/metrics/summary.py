"""The summary of a run: throughput and latency side by side, by the definitions of this package.

Knows per-request times and counts, whoever measured them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from inflight.metrics.definitions import Percentiles, percentiles, tpot


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """One finished request; seconds on one clock. Rejected and failed ones are counted by the caller.

    output_tokens: of all samples together; longest_output: of the longest one, which the last token belongs to.
    """

    intended_send: float
    first_token: float | None
    last_token: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    longest_output: int


@dataclass(frozen=True, slots=True)
class Summary:
    """Token rates are per second of wall time; latencies in seconds."""

    requests: int
    failed: int
    wall_seconds: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    requests_per_s: float
    input_tokens_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    ttft: Percentiles
    tpot: Percentiles
    e2e: Percentiles

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def summarize(times: list[RequestTimes], failed: int, wall_seconds: float) -> Summary:
    wall = max(wall_seconds, 1e-9)
    prompt = sum(one.prompt_tokens for one in times)
    output = sum(one.output_tokens for one in times)
    tpots = [
        value
        for one in times
        if one.first_token is not None
        and (value := tpot(one.first_token, one.last_token, one.longest_output)) is not None
    ]
    return Summary(
        requests=len(times),
        failed=failed,
        wall_seconds=wall_seconds,
        prompt_tokens=prompt,
        cached_tokens=sum(one.cached_tokens for one in times),
        output_tokens=output,
        requests_per_s=len(times) / wall,
        input_tokens_per_s=prompt / wall,
        output_tokens_per_s=output / wall,
        total_tokens_per_s=(prompt + output) / wall,
        ttft=percentiles(one.first_token - one.intended_send for one in times if one.first_token is not None),
        tpot=percentiles(tpots),
        e2e=percentiles(one.last_token - one.intended_send for one in times),
    )
