"""Draws and scores by kernels against the definition, token by token; what they take of a GPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from breadth import first_of

from inflight.execution.backends.torch.kernels import candidates, selection
from inflight.execution.backends.torch.kernels.sampling import sample, score
from inflight.execution.backends.torch.sampling_tensors import BadSequences, Drawn
from inflight.execution.batch.token_bias import bits
from inflight.execution.ops import sampling as reference

from ..material import normal, sampling
from .compiled import Compiler
from .draw_tensors import bad_words, compared, draws_of, penalties

Both = Callable[..., Drawn]


@pytest.fixture
def both(device: torch.device) -> Both:
    """Asserts that kernels and definition agree."""
    return lambda logits, **given: compared(sample, device, logits, **given)[0]


@pytest.fixture
def few_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Filters often keep more tokens, so that their rows are drawn by selection."""
    monkeypatch.setattr(candidates, "CANDIDATES", 32)
    monkeypatch.setattr(candidates, "RANKED", 32)
    monkeypatch.setattr(selection, "BLOCK", 512)


def test_greedy_takes_the_lowest_id_of_the_largest(both: Both) -> None:
    logits = np.zeros((6, 1500), np.float32)
    logits[0, [70, 1200]] = 3
    logits[1] = -np.inf
    logits[2, 5] = np.nan
    logits[3, 1499] = np.inf
    logits[4] = -5
    logits[5, 1:] = -0.0
    for settings in ({}, {"want_logprobs": [1, 0, 0, 0, 1, 1], "top_logprobs": 3}, {"temperature": 0.5, "top_k": 3}):
        got = both(logits, **settings)
        assert got.is_sound.tolist() == [True, False, True, False, True, True]
        assert not got.was_banned.any()


FILTERS: list[dict[str, Any]] = [
    {"top_k": 300},
    {"top_p": 0.9},
    {"top_k": 200, "top_p": 0.8, "min_p": 0.02},
    {},
    {"min_p": 0.1},
    {"top_k": 1},
    {"top_p": 0.01},
    {"top_p": 0.95, "min_p": 1e-6},
    {"top_p": 0.0},
]


@pytest.mark.parametrize("filters", first_of(FILTERS, 3))
def test_filters(both: Both, filters: dict[str, Any]) -> None:
    """Take a vocabulary of several blocks."""
    logits = np.array([[0.1], [3.0], [30.0]], np.float32) * normal(7, 3, 5003)
    both(logits, temperature=0.7, seed=np.arange(3), draw_index=5, **filters)


@pytest.mark.parametrize("filters", first_of(FILTERS, 5))
def test_filters_that_keep_more_than_is_ranked(both: Both, few_candidates: None, filters: dict[str, Any]) -> None:
    logits = np.repeat(np.array([[0.1], [3.0], [30.0]], np.float32), 2, axis=0) * normal(8, 6, 500)
    both(logits, temperature=0.7, seed=np.arange(6), draw_index=5, **filters)


@pytest.mark.parametrize(
    "filters", first_of([{"top_k": 20}, {"top_p": 0.5}, {"top_k": 200, "top_p": 0.9}, {"min_p": 0.1}], 2)
)
def test_ties_are_taken_by_rising_id(both: Both, few_candidates: None, filters: dict[str, Any]) -> None:
    both(np.round(normal(1, 8, 300)), temperature=1.0, seed=np.arange(8), **filters)


def test_rows_of_every_kind_share_a_batch(both: Both) -> None:
    settings = {
        "temperature": [0, 1, 1, 1, 0.7, 0.7, 2, 1],
        "top_k": [0, 0, 5, 0, 0, 20, 0, 1],
        "top_p": [1, 1, 1, 0.8, 1, 0.9, 1, 1],
        "min_p": [0.2, 0, 0, 0, 0.1, 0.01, 0, 0],  # of the greedy one nothing is a number, once it is scaled
    }
    both(
        2 * normal(1, 8, 400),
        seed=np.arange(8, dtype=np.uint64) + np.uint64(2**63),
        sample_index=np.arange(8),
        **settings,
    )


def test_a_row_is_drawn_alike_in_every_batch(device: torch.device) -> None:
    logits = normal(3, 6, 3000)
    settings: dict[str, Any] = {"temperature": 1.0, "want_logprobs": True}
    whole = draws_of(sampling(6, seed=np.arange(6), **settings), device)
    together = sample(torch.from_numpy(logits.copy()).to(device), whole)
    alone = draws_of(sampling(1, seed=4, **settings), device)
    one = sample(torch.from_numpy(logits[4:5].copy()).to(device), alone)
    assert one.token_ids[0] == together.token_ids[4]
    assert one.logprobs is not None and together.logprobs is not None
    assert one.logprobs[0] == together.logprobs[4]


def test_penalties_and_bias(both: Both) -> None:
    for temperature in (0.0, 0.8):
        both(2 * normal(4, 6, 1300), temperature=temperature, **penalties(6))


@pytest.mark.parametrize("vocabulary", first_of([33, 1100, 1]))
def test_only_what_is_allowed_is_drawn(both: Both, vocabulary: int) -> None:
    rows, rng = 6, np.random.default_rng(6)
    allowed = [rng.integers(0, vocabulary, 1 + row // 2).tolist() for row in range(rows)]
    masks = [bits(one, vocabulary) if row != 4 else None for row, one in enumerate(allowed)]
    for filters in ({}, {"top_k": 5}):
        got = both(
            3 * normal(8, rows, vocabulary),
            temperature=[0.0, 0.9] * 3,
            seed=np.arange(rows),
            allowed=masks,
            want_logprobs=True,
            top_logprobs=2,
            **filters,
        )
        drawn = got.token_ids.tolist()
        assert all(token in one for row, (token, one) in enumerate(zip(drawn, allowed, strict=True)) if row != 4)


def test_where_all_is_banned_the_draw_says_so(both: Both) -> None:
    logits = normal(9, 4, 70)
    logits[3] = np.nan
    nothing = np.zeros(3, np.uint32)
    got = both(logits, allowed=[nothing, None, nothing, None], temperature=[1.0, 0.0, 0.0, 1.0])
    assert got.was_banned.tolist() == [True, False, True, False]
    assert got.is_sound.tolist() == [False, True, False, False]


def test_bad_sequences_are_found_at_the_outputs_end(device: torch.device) -> None:
    logits, batch, bad, banned = bad_words()
    bad = BadSequences(*(one.to(device) for one in bad))
    got = sample(torch.from_numpy(logits.copy()).to(device), draws_of(batch, device, bad))
    for row, ids in enumerate(banned):
        logits[row, ids] = -np.inf
    assert got.token_ids.tolist() == logits.argmax(1).tolist()


@pytest.mark.parametrize("vocabulary", [3, 2500])
def test_scores_are_the_definitions(device: torch.device, vocabulary: int) -> None:
    logits = 4 * normal(6, 5, vocabulary)
    logits[1, : vocabulary // 2] = -np.inf
    logits[2, 0] = np.nan
    token_ids = np.random.default_rng(1).integers(0, vocabulary, 5).astype(np.int32)
    for top in (0, 5, 20):
        got = score(torch.from_numpy(logits).to(device), torch.from_numpy(token_ids).to(device), top)
        want = reference.score(logits, token_ids, np.full(5, top, np.int32))
        np.testing.assert_allclose(got.logprobs.cpu(), want.logprobs, rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(got.top_ids.cpu(), want.top_ids)
        np.testing.assert_allclose(got.top_logprobs.cpu(), want.top_logprobs, rtol=1e-6, atol=1e-6)


def test_what_they_take_of_a_gpu(compiler: Compiler) -> None:
    """Compile for Qwen3's vocabulary, with every setting that there is, and with none."""
    meta, rows = torch.device("meta"), 64
    every = sampling(
        rows,
        temperature=1,
        top_p=0.9,
        histories=[np.zeros(8, np.int32)] * rows,
        prompt_lengths=4,
        draw_index=4,
        allowed=[np.zeros(151936 // 32, np.uint32)] * rows,
        want_logprobs=True,
        top_logprobs=20,
    )
    for batch in (every, sampling(rows)):
        draws, logits = draws_of(batch, meta), torch.empty(rows, 151936, device=meta)
        compiler.fits(partial(sample, logits, draws), registers=128, shared=32 * 1024)
