"""Sampling settings: their bounds, and the sentences of refusals."""

from __future__ import annotations

from typing import Any

import pytest

from inflight.core.types.sampling import InvalidSampling, PoolingParams, SamplingParams


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0, "top_k": 0, "top_p": 1, "min_p": 1, "logprobs": 0, "seed": -(2**63), "n": 1024},
        {"top_p": 0.001, "logprobs": 20, "prompt_logprobs": 20, "seed": 2**64 - 1},
        {"presence_penalty": -2, "frequency_penalty": 2, "repetition_penalty": 0.1},
        {"max_tokens": None, "min_tokens": 1000},
        {"max_tokens": 5, "min_tokens": 5},
        {"max_tokens": 0, "prompt_logprobs": 0},
    ],
)
def test_bounds_are_allowed(params: dict[str, Any]) -> None:
    made = SamplingParams(**params)
    assert all(getattr(made, name) == value for name, value in params.items())


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"n": 0}, "n is 0; give a whole number from 1"),
        ({"n": True}, "n is True; give a whole number"),
        ({"n": 1.0}, "n is 1.0"),
        ({"temperature": -0.1}, "temperature is -0.1"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": float("inf")}, "temperature is inf"),
        ({"temperature": "hot"}, "temperature is 'hot'; give a number"),
        ({"top_k": -2}, "top_k is -2"),
        ({"top_p": 0}, "top_p is 0; give a number above 0 and up to 1"),
        ({"top_p": 1.1}, "top_p is 1.1"),
        ({"min_p": -0.1}, "min_p is -0.1"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0"),
        ({"repetition_penalty": 5e-324}, "repetition_penalty is 5e-324; give a number from 0.001 to 100"),
        ({"presence_penalty": 2.1}, "presence_penalty is 2.1; give a number from -2 to 2"),
        ({"frequency_penalty": -2.1}, "frequency_penalty is -2.1"),
        ({"max_tokens": -1}, "max_tokens is -1; give a whole number at least 0"),
        ({"max_tokens": 0, "min_tokens": 1}, "min_tokens is 1; give a whole number from 0 to 0"),
        ({"max_tokens": 3, "min_tokens": 4}, "min_tokens is 4; give a whole number from 0 to 3"),
        ({"logprobs": 21}, "logprobs is 21"),
        ({"prompt_logprobs": 21}, "prompt_logprobs is 21; give a whole number from 0 to 20"),
        ({"prompt_logprobs": -1}, "prompt_logprobs is -1; give a whole number from 0 to 20"),
        ({"seed": 2**64}, "seed is"),
        ({"stop": ["a", ""]}, "stop holds ''"),
        ({"stop_token_ids": [-1]}, "stop_token_ids is -1"),
        ({"logit_bias": [1]}, "logit_bias is"),
        ({"logit_bias": {"x": 1}}, "logit_bias names the token 'x'"),
        ({"logit_bias": {-1: 1}}, "logit_bias token id is -1"),
        ({"logit_bias": {1: 101}}, "logit_bias of token 1 is 101"),
        ({"logit_bias": dict.fromkeys(range(301), 0)}, "logit_bias has 301 entries; at most 300"),
    ],
)
def test_refusals_name_the_field_and_its_value(params: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSampling) as refusal:
        SamplingParams(**params)
    assert words in str(refusal.value)


def test_settings_have_one_form() -> None:
    params = SamplingParams(stop="end", stop_token_ids=[1, 2], top_k=-1, logit_bias={"7": 1})
    assert params.stop == ("end",)
    assert params.stop_token_ids == (1, 2)
    assert params.top_k == 0
    assert params.logit_bias == {7: 1.0}
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")


def test_penalties_need_the_history() -> None:
    assert not SamplingParams().needs_history
    for name in ("repetition_penalty", "presence_penalty", "frequency_penalty"):
        assert SamplingParams(**{name: 0.5}).needs_history


def test_a_switch_of_pooling_is_true_or_false() -> None:
    assert PoolingParams().normalize
    with pytest.raises(InvalidSampling, match="normalize is 1; give true or false"):
        PoolingParams(normalize=1)
