"""Draws and scores in PyTorch against the definition, token by token."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import draws
from inflight.execution.backends.torch.eager.logprobs import score
from inflight.execution.backends.torch.eager.sampling import philox4x32_10, sample, uniform
from inflight.execution.batch.token_bias import bits
from inflight.execution.ops import sampling as reference

from ..material import normal, sampling
from .draw_tensors import bad_words, compared, draws_of

CPU = torch.device("cpu")
both = partial(compared, sample, CPU)


def test_words_of_the_generator_are_the_definitions():
    rng = np.random.default_rng(5)
    keys = [0, 2**64 - 1, 2**63, *rng.integers(0, 2**64, 200, np.uint64).tolist()]
    first = [0, 2**32 - 1, 2**31, *rng.integers(0, 2**32, 200).tolist()]
    second = [0, 2**32 - 1, 7, *rng.integers(0, 2**32, 200).tolist()]
    numbers = list(zip(keys, first, second, strict=True))
    seeds = torch.from_numpy(np.array(keys, np.uint64).view(np.int64))
    words = philox4x32_10(torch.tensor(first), torch.tensor(second), seeds)
    want = [reference.philox4x32_10((i, j, 0, 0), (key & 0xFFFFFFFF, key >> 32)) for key, i, j in numbers]
    assert list(zip(*(one.tolist() for one in words), strict=True)) == want
    batch = sampling(len(keys), seed=keys, draw_index=first, sample_index=second)
    assert uniform(draws_of(batch, CPU)).tolist() == [reference.uniform(*one) for one in numbers]


def test_greedy_takes_the_lowest_id_of_the_largest():
    logits = np.zeros((5, 300), np.float32)
    logits[0, [70, 200]] = 3
    logits[1] = -np.inf
    logits[2, 5] = np.nan
    logits[3, 299] = np.inf
    logits[4] = -5
    got, _ = both(logits)
    assert got.token_ids.tolist() == [70, 0, 0, 299, 0]
    assert got.is_sound.tolist() == [True, False, True, False, True]
    assert not got.was_banned.any()
    both(logits, temperature=0.5, top_k=3)


FILTERS: list[dict[str, Any]] = [
    {},
    {"top_k": 1},
    {"top_k": 7},
    {"top_k": 900},
    {"top_p": 0.9},
    {"top_p": 0.01},
    {"min_p": 0.1},
    {"min_p": 1.0},
    {"top_k": 50, "top_p": 0.8, "min_p": 0.02},
    {"top_p": 0.95, "min_p": 1e-6},
    {"top_p": 0.0},
]


@pytest.mark.parametrize("vocabulary", [3, 64, 1000, 5003])
@pytest.mark.parametrize("filters", FILTERS)
def test_filters(vocabulary, filters):
    for spread in (0.1, 3.0, 30.0):
        both(spread * normal(7, 12, vocabulary), temperature=0.7, seed=np.arange(12), draw_index=5, **filters)


def test_rows_with_and_without_filters_share_a_batch():
    settings = {
        "temperature": [0, 1, 1, 1, 0.7, 0.7, 2, 1],
        "top_k": [0, 0, 5, 0, 0, 20, 0, 1],
        "top_p": [1, 1, 1, 0.8, 1, 0.9, 1, 1],
        "min_p": [0.2, 0, 0, 0, 0.1, 0.01, 0, 0],  # of the greedy one nothing is a number, once it is scaled
    }
    for seed in range(5):
        both(2 * normal(seed, 8, 400), seed=np.arange(8) + 100 * seed, **settings)


def test_ties_are_taken_by_rising_id():
    logits = np.round(normal(1, 40, 500))
    for filters in ({}, {"top_k": 20}, {"top_p": 0.5}, {"top_k": 400, "top_p": 0.99}):
        both(logits, temperature=1.0, seed=np.arange(40), **filters)


def test_penalties_and_bias():
    rows, vocabulary = 9, 400
    rng = np.random.default_rng(3)
    histories = [None if r % 3 == 0 else rng.integers(0, 40, 60 + r).astype(np.int32) for r in range(rows)]
    prompts = np.where(np.arange(rows) % 2, 30, 60)
    has = np.array([one is not None for one in histories])
    for temperature in (0.0, 0.8):
        both(
            2 * normal(4, rows, vocabulary),
            temperature=temperature,
            seed=np.arange(rows),
            histories=histories,
            prompt_lengths=prompts,
            draw_index=np.where(has, 60 + np.arange(rows) - prompts, 11),
            repetition_penalty=np.where(has, 1.3, 1),
            presence_penalty=np.where(has, 0.4, 0),
            frequency_penalty=np.where(has, np.linspace(-0.5, 0.5, rows), 0),
            bias_offsets=(np.arange(rows + 1) * 2).astype(np.int32),
            bias_ids=rng.integers(0, 50, 2 * rows).astype(np.int32),
            bias_values=np.where(np.arange(2 * rows) % 3, 2.5, -np.inf).astype(np.float32),
            want_logprobs=True,
            top_logprobs=np.arange(rows),
        )


@pytest.mark.parametrize("vocabulary", [1, 31, 32, 33, 1000])
@pytest.mark.parametrize("filters", [{}, {"top_k": 5}, {"top_p": 0.9}])
def test_only_what_is_allowed_is_drawn(vocabulary, filters):
    rows, rng = 10, np.random.default_rng(6)
    allowed = [set(rng.integers(0, vocabulary, 1 + row // 2).tolist()) for row in range(rows)]
    got, _ = both(
        3 * normal(8, rows, vocabulary),
        temperature=[0.0, 0.9] * 5,
        seed=np.arange(rows),
        allowed=[bits(one, vocabulary) if row != 4 else None for row, one in enumerate(allowed)],
        want_logprobs=True,
        top_logprobs=2,
        **filters,
    )
    drawn = got.token_ids.tolist()
    assert all(token in one for row, (token, one) in enumerate(zip(drawn, allowed, strict=True)) if row != 4)


def test_where_all_is_banned_the_draw_says_so():
    logits = normal(9, 4, 70)
    logits[3] = np.nan
    nothing = np.zeros(3, np.uint32)
    got, _ = both(logits, allowed=[nothing, None, nothing, None], temperature=[1.0, 0.0, 0.0, 1.0])
    assert got.was_banned.tolist() == [True, False, True, False]
    assert got.is_sound.tolist() == [False, True, False, False]
    every = {"bias_offsets": np.array([0, 70, 70], np.int32), "bias_ids": np.arange(70, dtype=np.int32)}
    got, _ = both(logits[:2], bias_values=np.full(70, -np.inf, np.float32), temperature=0.5, **every)
    assert got.was_banned.tolist() == [True, False]


def test_bad_sequences_are_found_at_the_outputs_end():
    logits, batch, bad, banned = bad_words()
    assert sum(map(len, banned)) > 10
    got = sample(torch.from_numpy(logits.copy()), draws_of(batch, CPU, bad))
    for row, ids in enumerate(banned):
        logits[row, ids] = -np.inf
    assert got.token_ids.tolist() == logits.argmax(1).tolist()


def test_log_probabilities():
    logits = 4 * normal(5, 6, 1000)
    logits[1, :990] = -np.inf
    got, _ = both(logits, temperature=1.0, want_logprobs=[True] * 5 + [False], top_logprobs=[0, 20, 1, 600, 1000, 3])
    np.testing.assert_allclose(got.top_logprobs[4].exp().sum(), 1, rtol=1e-5)


@pytest.mark.parametrize("vocabulary", [3, 1000])
def test_scores_are_the_definitions(vocabulary):
    logits = 4 * normal(6, 20, vocabulary)
    logits[1, : vocabulary // 2] = -np.inf
    logits[2, 0] = np.nan
    token_ids = np.random.default_rng(1).integers(0, vocabulary, 20).astype(np.int32)
    for top in (0, 5, 20):
        got = score(torch.from_numpy(logits), torch.from_numpy(token_ids), top)
        want = reference.score(logits, token_ids, np.full(20, top, np.int32))
        np.testing.assert_allclose(got.logprobs, want.logprobs, rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(got.top_ids, want.top_ids)
        np.testing.assert_allclose(got.top_logprobs, want.top_logprobs, rtol=1e-6, atol=1e-6)


@given(st.data())
def test_any_settings(data):
    vocabulary, rows = data.draw(st.integers(1, 700)), data.draw(st.integers(1, 4))
    logits = data.draw(st.sampled_from([0.0, 0.5, 5.0])) * normal(data.draw(st.integers(0, 99)), rows, vocabulary)
    banned = data.draw(st.integers(0, vocabulary - 1))
    logits[:, :banned] = data.draw(st.sampled_from([-np.inf, 0.0]))
    both(
        logits,
        temperature=data.draw(st.sampled_from([0.0, 0.01, 1.0, 2.0])),
        top_k=data.draw(st.integers(0, 800)),
        top_p=data.draw(st.floats(0, 1, width=32)),
        min_p=data.draw(st.floats(0, 1, width=32)),
        seed=data.draw(st.integers(0, 2**64 - 1)),
        sample_index=np.arange(rows),
        draw_index=data.draw(st.integers(0, 2**32 - 1)),
        want_logprobs=True,
        top_logprobs=data.draw(st.integers(0, 9)),
    )


@pytest.mark.parametrize("kind", draws.KINDS, ids=lambda kind: kind.name)
def test_draws_are_the_kernels_of_the_cpus(kind):
    """A few of the million that the program counts."""
    found = draws.agreement(sample, CPU, kind, 1280, 300)
    assert found.draws == 1280 and found.is_kept


def test_what_counts_as_a_tie():
    """A draw of exactly a quarter falls between tokens 0 and 1 of four alike; so does where top-p of a half ends."""
    alike, kind = np.zeros(4, np.float32), draws.Kind("")
    assert [draws.is_tie(alike, kind, 0.25, token) for token in range(4)] == [True, True, False, False]
    half = kind._replace(top_p=0.5)
    assert [draws.is_tie(alike, half, 0.9, token) for token in range(4)] == [False, True, True, False]
    assert not draws.is_tie(alike, kind._replace(temperature=0.0), 0.25, 1)


def test_other_draws_are_noticed():
    def likeliest(logits, of):
        return sample(logits, of._replace(greedy=True))

    assert not draws.agreement(likeliest, CPU, draws.KINDS[1], 256, 300).is_kept
