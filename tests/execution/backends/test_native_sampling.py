"""The kernels' sampler against numpy's, token by token, and against the distribution it should draw from."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight.execution.backends.reference import ReferenceBackend
from inflight.execution.batch.token_bias import bits
from inflight.execution.ops.sampling import philox4x32_10, uniform

from .conftest import ISAS, ops_for
from .material import normal, sampling


def both(isa, logits, threads=2, **given_settings):
    """Sample the same rows with both samplers; assert that they agree."""
    rows = len(logits)
    got = ops_for("float32", isa, threads).sample(logits.copy(), sampling(rows, **given_settings))
    want = ReferenceBackend("float32").sample(logits.copy(), sampling(rows, **given_settings))
    np.testing.assert_array_equal(got.token_ids, want.token_ids)
    wants = np.broadcast_to(given_settings.get("want_logprobs", False), rows)
    np.testing.assert_allclose(got.logprobs[wants], want.logprobs[wants], rtol=1e-6, atol=1e-6)
    tops = np.broadcast_to(given_settings.get("top_logprobs", 0), rows)
    for row in np.flatnonzero(wants):
        n = min(int(tops[row]), logits.shape[1])
        np.testing.assert_array_equal(got.top_ids[row, :n], want.top_ids[row, :n])
        np.testing.assert_allclose(got.top_logprobs[row, :n], want.top_logprobs[row, :n], rtol=1e-6, atol=1e-6)
    return got


def test_philox_known_answers():
    """Compare with vectors of the generator's authors."""
    assert philox4x32_10((0, 0, 0, 0), (0, 0)) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    ones = 0xFFFFFFFF
    assert philox4x32_10((ones,) * 4, (ones,) * 2) == (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)
    assert 0 <= uniform(2**64 - 1, 3, 4) < 1


def test_greedy_takes_the_lowest_id_of_the_largest(isa):
    logits = np.zeros((5, 300), np.float32)
    logits[0, [70, 200]] = 3
    logits[1] = -np.inf
    logits[2, 5] = np.nan
    logits[3, 299] = np.inf
    logits[4] = -5
    assert both(isa, logits).token_ids.tolist() == [70, 0, 0, 299, 0]
    both(isa, logits, temperature=0.5, top_k=3)


@pytest.mark.parametrize("vocabulary", [3, 64, 1000, 5003])
@pytest.mark.parametrize("spread", [0.1, 3.0, 30.0])
@pytest.mark.parametrize(
    "filters",
    [{}, {"top_k": 1}, {"top_k": 7}, {"top_k": 900}, {"top_p": 0.9}, {"top_p": 0.01}, {"min_p": 0.1}, {"min_p": 1.0},
     {"top_k": 50, "top_p": 0.8, "min_p": 0.02}, {"top_p": 0.95, "min_p": 1e-6}, {"top_p": 0.0}],
)  # fmt: skip
def test_filters(isa, vocabulary, spread, filters):
    rows = 12
    both(isa, spread * normal(7, rows, vocabulary), temperature=0.7, seed=np.arange(rows), draw_index=5, **filters)


@pytest.mark.parametrize("filters", [{}, {"top_p": 0.9}, {"top_p": 0.4}])
@pytest.mark.parametrize(("spread", "below"), [(0.0, 9.0), (0.5, 9.5), (2.0, 16.0), (3.0, 300.0)])
def test_a_large_mass_far_below_the_largest_is_as_exact_as_the_rest(isa, spread, below, filters):
    """Its sum in float32 leaves open where many of these draws and cuts fall."""
    rows = 24
    logits = spread * normal(4, rows, 20_011) - np.float32(below)
    logits[:, [9, 7_000]] = 0.5, 0.25
    both(isa, logits, temperature=[1.0, 0.9] * (rows // 2), seed=np.arange(rows), draw_index=3, **filters)


def test_settings_out_of_range_do_no_harm(isa):
    """The door refuses them; the kernels must at least not crash."""
    logits = normal(2, 6, 500)
    both(isa, logits, temperature=-1.0)
    strange = sampling(
        6, temperature=[1, np.nan, np.inf, 1e-30, 1, 1], top_k=-3, top_p=[2, 1, 1, 1, np.nan, -1], min_p=-1
    )
    tokens = ops_for("float32", isa, 2).sample(logits, strange).token_ids
    assert ((tokens >= 0) & (tokens < 500)).all()


def test_ties_are_taken_by_rising_id(isa):
    logits = np.round(normal(1, 40, 500))
    for filters in ({"top_k": 20}, {"top_p": 0.5}, {"top_k": 400, "top_p": 0.99}):
        both(isa, logits, temperature=1.0, seed=np.arange(40), **filters)


def test_penalties_and_bias(isa):
    rows, vocabulary = 9, 400
    rng = np.random.default_rng(3)
    histories = [None if r % 3 == 0 else rng.integers(0, 40, 60).astype(np.int32) for r in range(rows)]
    for temperature in (0.0, 0.8):
        both(
            isa,
            2 * normal(4, rows, vocabulary),
            temperature=temperature,
            seed=np.arange(rows),
            histories=histories,
            prompt_lengths=np.where(np.arange(rows) % 2, 30, 60),
            repetition_penalty=1.3,
            presence_penalty=0.4,
            frequency_penalty=np.linspace(-0.5, 0.5, rows),
            bias_offsets=(np.arange(rows + 1) * 2).astype(np.int32),
            bias_ids=rng.integers(0, 50, 2 * rows).astype(np.int32),
            bias_values=np.where(np.arange(2 * rows) % 3, 2.5, -np.inf).astype(np.float32),
            want_logprobs=True,
            top_logprobs=np.arange(rows),
        )


@pytest.mark.parametrize("vocabulary", [1, 31, 32, 33, 1000])
@pytest.mark.parametrize("filters", [{}, {"top_k": 5}, {"top_p": 0.9}, {"repetition_penalty": 1.3}])
def test_only_what_is_allowed_is_drawn(isa, vocabulary, filters):
    rows, rng = 10, np.random.default_rng(6)
    allowed = [set(rng.integers(0, vocabulary, 1 + row // 2).tolist()) for row in range(rows)]
    histories = [rng.integers(0, vocabulary, 20).astype(np.int32) for _ in range(rows)]
    got = both(
        isa,
        3 * normal(8, rows, vocabulary),
        temperature=[0.0, 0.9] * 5,
        seed=np.arange(rows),
        histories=histories,
        allowed=[bits(one, vocabulary) if row != 4 else None for row, one in enumerate(allowed)],
        want_logprobs=True,
        top_logprobs=2,
        **filters,
    )
    assert all(
        int(token) in one for row, (token, one) in enumerate(zip(got.token_ids, allowed, strict=True)) if row != 4
    )


def test_where_nothing_is_allowed_the_logit_says_so(isa):
    logits = normal(9, 2, 70)
    batch = sampling(2, allowed=[np.zeros(3, np.uint32), None], temperature=[1.0, 0.0])
    drawn = ops_for("float32", isa, 1).sample(logits, batch).token_ids
    assert logits[0, drawn[0]] == -np.inf and np.isfinite(logits[1, drawn[1]])


def test_masks_of_another_size_are_refused(isa):
    with pytest.raises(ValueError, match="allowed must have shape"):
        ops_for("float32", isa, 1).sample(normal(9, 1, 70), sampling(1, allowed=[np.zeros(2, np.uint32)]))


def test_log_probabilities(isa):
    logits = 4 * normal(5, 6, 1000)
    logits[1, :990] = -np.inf
    got = both(isa, logits, temperature=1.0, want_logprobs=[True] * 5 + [False], top_logprobs=[0, 20, 1, 600, 1000, 3])
    assert got.top_ids.shape == (6, 1000)
    np.testing.assert_allclose(np.exp(got.top_logprobs[4]).sum(), 1, rtol=1e-5)


@pytest.mark.parametrize("vocabulary", [3, 64, 1000, 5003])
def test_a_score_is_what_drawing_the_token_would_report(isa, vocabulary):
    rows = 40
    logits = 4 * normal(6, rows, vocabulary)
    logits[1, : vocabulary // 2] = -np.inf
    logits[2, 0] = np.nan
    tops = (np.arange(rows) % 21).astype(np.int32)
    ops = ops_for("float32", isa, 2)
    drawn = ops.sample(
        logits.copy(), sampling(rows, temperature=1.5, seed=np.arange(rows), want_logprobs=True, top_logprobs=tops)
    )
    got = ops.score(logits.copy(), drawn.token_ids, tops)
    want = ReferenceBackend("float32").score(logits.copy(), drawn.token_ids, tops)
    assert got.top_ids.shape == got.top_logprobs.shape == (rows, min(20, vocabulary))
    for row in range(rows):
        assert got.logprobs[row] == drawn.logprobs[row]
        n = min(int(tops[row]), vocabulary)
        np.testing.assert_array_equal(got.top_ids[row, :n], drawn.top_ids[row, :n])
        np.testing.assert_array_equal(got.top_logprobs[row, :n], drawn.top_logprobs[row, :n])
        np.testing.assert_array_equal(got.top_ids[row, :n], want.top_ids[row, :n])
        np.testing.assert_allclose(got.top_logprobs[row, :n], want.top_logprobs[row, :n], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(got.logprobs, want.logprobs, rtol=1e-6, atol=1e-6)


def test_scores_of_any_token(isa):
    logits = normal(7, 5, 300)
    token_ids = np.array([0, 299, 7, 7, 150], np.int32)
    got = ops_for("float32", isa, 1).score(logits.copy(), token_ids, np.zeros(5, np.int32))
    exact = logits.astype(np.float64)
    exact -= np.log(np.exp(exact).sum(1, keepdims=True))
    np.testing.assert_allclose(got.logprobs, exact[np.arange(5), token_ids], rtol=1e-6)
    assert got.top_ids.shape == (5, 0)


def test_tokens_outside_the_vocabulary_are_not_scored():
    for wrong in (-1, 300):
        with pytest.raises(ValueError, match="must be token ids"):
            ops_for("float32", ISAS[0], 1).score(normal(1, 1, 300), np.array([wrong], np.int32), np.zeros(1, np.int32))


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_any_settings(data):
    isa, vocabulary = data.draw(st.sampled_from(ISAS)), data.draw(st.integers(1, 700))
    rows = data.draw(st.integers(1, 4))
    logits = data.draw(st.sampled_from([0.0, 0.5, 5.0])) * normal(data.draw(st.integers(0, 99)), rows, vocabulary)
    banned = data.draw(st.integers(0, vocabulary - 1))
    logits[:, :banned] = data.draw(st.sampled_from([-np.inf, 0.0]))
    both(
        isa,
        logits,
        threads=data.draw(st.integers(1, 3)),
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


def test_a_row_is_drawn_alike_in_every_batch(isa):
    logits = normal(1, 32, 40000)  # enough for several threads
    chosen = dict(temperature=1.0, top_p=0.9)
    whole = ops_for("float32", isa, 3).sample(logits.copy(), sampling(32, seed=np.arange(32), **chosen)).token_ids
    for row in (0, 5, 31):
        alone = ops_for("float32", isa, 1).sample(logits[row : row + 1].copy(), sampling(1, seed=row, **chosen))
        assert alone.token_ids[0] == whole[row]


@pytest.mark.parametrize("filters", [{}, {"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.2}])
def test_draws_follow_the_distribution(filters):
    """Chi-square of 20 000 draws with fixed seeds, against probabilities computed here."""
    draws, vocabulary, temperature = 20_000, 12, 0.8
    logits = 1.5 * normal(8, 1, vocabulary)
    batch = sampling(draws, temperature=temperature, seed=7, draw_index=np.arange(draws), **filters)
    drawn = ops_for("float32", ISAS[0], 2).sample(np.repeat(logits, draws, axis=0), batch).token_ids
    p = np.exp(logits[0].astype(np.float64) / temperature)
    p /= p.sum()
    order = np.argsort(-p)
    before = np.cumsum(p[order]) - p[order]
    keep = np.ones(vocabulary, bool)
    keep[order] &= before < filters.get("top_p", 1.0) + 1e-12
    keep[order[filters.get("top_k", vocabulary) :]] = False
    keep &= p >= filters.get("min_p", 0.0) * p.max()
    p = np.where(keep, p, 0) / p[keep].sum()
    counts = np.bincount(drawn, minlength=vocabulary)
    assert counts[~keep].sum() == 0
    statistic = ((counts - draws * p)[keep] ** 2 / (draws * p[keep])).sum()
    freedom = keep.sum() - 1
    assert statistic < freedom + 4 * (2 * freedom) ** 0.5 + 6  # about one in ten thousand; the seeds are fixed
