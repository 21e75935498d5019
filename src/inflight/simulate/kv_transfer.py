"""Prefill here, decode there: how a request moves from the pool that computes prompts to the one that goes on.

The first engine computes the prompt and samples the first token (`max_tokens` 1); the second gets prompt and first
token, with the keys and values of the prompt's whole blocks handed to it (`Request.handed_tokens`), and computes the
rest of the last block again. Between the two lies the transfer: setup + prompt tokens · bytes per token / bandwidth,
one after the other on each sender's link. The sender's blocks are taken as free when the first token is there.
Splitwise (arXiv 2311.18677) and DistServe (arXiv 2401.09670) describe the scheme.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from inflight.core.types.request import Request


@dataclass(frozen=True, slots=True)
class Link:
    """bytes_per_token: of keys and values, all layers. gbps: gigabits per second that really pass. setup_s: seconds
    that every transfer takes anyway."""

    bytes_per_token: float
    gbps: float
    setup_s: float = 0.001

    def seconds(self, tokens: int) -> float:
        return self.setup_s + tokens * self.bytes_per_token * 8 / (self.gbps * 1e9)


def for_prefill(request: Request) -> Request:
    """The prompt and the first token."""
    return replace(request, params=replace(request.params, max_tokens=1, min_tokens=0), forced_output_tokens=1)


def for_decode(request: Request, first_token: int) -> Request | None:
    """The rest of the answer, or None where the first token was all of it."""
    length, most = request.forced_output_tokens, request.params.max_tokens
    if length == 1 or most == 1:
        return None
    return replace(
        request,
        prompt_token_ids=(*request.prompt_token_ids, first_token),
        params=replace(request.params, max_tokens=None if most is None else most - 1),
        forced_output_tokens=None if length is None else length - 1,
        handed_tokens=len(request.prompt_token_ids),
    )
