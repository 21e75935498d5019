"""Requests and sequences for tests, with few words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from inflight.core.request import Request
from inflight.core.sampling import SamplingParams
from inflight.core.sequence import Sequence
from inflight.core.stopping import StopChecker


def request(name: str = "r", prompt: Iterable[int] = (0, 1, 0), output: int | None = 4, **params: Any) -> Request:
    """output: how many tokens it will have (None: until a stop rule ends it). Other names are the request's fields or
    sampling settings; greedy, and without end tokens, unless said otherwise."""
    fields = {key: params.pop(key) for key in ("seed", "arrival", "lane", "cache_salt") if key in params}
    settings = {"temperature": 0.0, "ignore_eos": True, "max_tokens": None, **params}
    return Request(
        request_id=name,
        prompt_token_ids=tuple(prompt),
        params=SamplingParams(**settings),
        forced_output_tokens=output,
        **fields,
    )


def sequence(number: int = 0, prompt: Iterable[int] = (0, 1, 0), sample: int = 0, **params: Any) -> Sequence:
    """A sequence outside of any scheduler."""
    of = request(f"r{number}", prompt, **params)
    return Sequence(number, of, sample, StopChecker(of, frozenset(), 100, None), 100, ())
