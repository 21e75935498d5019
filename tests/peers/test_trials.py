"""Figures from observations made by hand."""

from __future__ import annotations

import pytest

from benchmarks.peers.trials import (
    MIXED_TOKENS,
    MIXED_TTFT,
    POISSON_ITL,
    POISSON_TTFT,
    QUICK,
    Sizes,
    arrivals,
    decode_rate,
    measures,
    trials,
)

from .builders import SMALL, every, observed


def test_decoding_counts_while_all_decode() -> None:
    early = observed(*every(1.0, 0.5, 9))  # its prompt was computed first; ends at 5
    late = observed(*every(2.0, 0.5, 9))  # joins at 2
    assert decode_rate([early, late]) == pytest.approx(4.0), "two tokens every half second, from 2 to 5"


def test_what_never_decodes_together_has_no_rate() -> None:
    assert decode_rate([observed(1.0, 2.0), observed(2.0, 3.0)]) is None


def test_a_prefill_is_the_prompts_tokens_over_the_time_to_their_first_token() -> None:
    prefill = next(trial for trial in trials(SMALL) if trial.title.startswith("prefill"))
    assert [len(works[0].prompt) for works in prefill.works] == [5] * 4
    found = prefill.figures(
        [[observed(10.5, prompt_tokens=5, intended=10.0)], [observed(21.5, prompt_tokens=5, intended=20.0)]]
    )
    assert found == {"prefill of 5, tokens/s": pytest.approx(10 / 2.0)}


def test_the_mix_has_throughput_and_latency() -> None:
    mix = list(trials(SMALL))[-1]
    found = mix.figures([[observed(1.0, 2.0, 4.0), observed(3.0, 4.0)]])
    assert found == {MIXED_TOKENS.title: pytest.approx(5 / 4.0), MIXED_TTFT.title: pytest.approx(2.0)}


def test_arrivals_come_at_a_share_of_what_the_best_peer_does() -> None:
    trial = arrivals(Sizes(mixed=64), capacity=300.0)
    assert trial.title == "64 mixed requests, 1.28 a second"  # 0.6 x 300 x 64 / 9,013
    found = trial.figures([[observed(1.0, 1.1), observed(5.5, 5.8, intended=5.0)]])
    assert found[POISSON_TTFT.title] == pytest.approx(1.0, rel=0.01)
    assert found[POISSON_ITL.title] == pytest.approx(300, rel=0.01), "milliseconds"


def test_few_rows_may_wait_for_memory() -> None:
    all_of_them = [*trials(Sizes(batches=(16, 32), prefills=(512,))), arrivals(Sizes(), capacity=300.0)]
    assert [trial.reads for trial in all_of_them] == [True, False, False, False, False]


def test_every_figure_of_a_trial_has_a_row() -> None:
    for sizes in (Sizes(), QUICK):
        rows = {measure.title for measure in measures(sizes)}
        for trial in trials(sizes):
            answers = [[observed(*every(1.0, 1.0, one.output_tokens)) for one in works] for works in trial.works]
            assert trial.figures(answers).keys() <= rows


def test_the_cache_holds_every_trial() -> None:
    assert Sizes().kv_tokens() == 13656 + 9013
    assert Sizes(mixed=1).kv_tokens() == 64 * 256
