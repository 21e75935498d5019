"""Requests and sequences for tests, with few words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from inflight.core.sequence import Sequence, SequenceView
from inflight.core.stopping import StopChecker
from inflight.core.types.length_distribution import point
from inflight.core.types.request import Request
from inflight.core.types.sampling import SamplingParams

_FIELDS = (
    *(
        "seed",
        "arrival",
        "lane",
        "cache_salt",
        "tenant",
        "priority",
        "slo",
        "pooling",
        "bad_token_ids",
        "session",
        "program",
    ),
    "call_marks",
)


def request(name: str = "r", prompt: Iterable[int] = (0, 1, 0), output: int | None = 4, **params: Any) -> Request:
    """output: how many tokens it will have (None: until a stop rule ends it). Other names are the request's fields or
    sampling settings; greedy, and without end tokens, unless said otherwise."""
    fields = {key: params.pop(key) for key in _FIELDS if key in params}
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
    max_output_tokens = 100 if of.params.max_tokens is None else of.params.max_tokens
    return Sequence(number, of, sample, StopChecker(of, frozenset(), max_output_tokens, None), max_output_tokens, ())


def expect(one: Sequence, output: float) -> None:
    """Predict the output tokens of a sequence."""
    one.predicted, one.lengths = output, point(max(1, round(output)))


def view(
    number: int = 0, *, predicted: float = 0.0, cached: int = 0, running: bool = False, **params: Any
) -> SequenceView:
    """Return a policy's view of a sequence. predicted: expected output tokens; cached: tokens in the prefix cache."""
    one = sequence(number, **params)
    expect(one, predicted)
    one.cached_hint, one.row = cached, 0 if running else None
    return SequenceView(one)
