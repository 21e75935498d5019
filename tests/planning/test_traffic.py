"""Figures of workloads: rates, bursts, lengths, shared prefixes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inflight.planning import analyze_traffic
from inflight.planning.demand import traffic_of
from inflight.workload.contents import Contents
from inflight.workload.workload import Entry, Workload

from .builders import drawn, workload


def test_rates_and_lengths() -> None:
    found = analyze_traffic(workload((0, 100, 10), (1, 200, 20), (2, 300, 30)))
    assert (found.requests, found.span_s, found.rate) == (3, 2, 1)
    assert (found.input.p50, found.output.mean, found.longest) == (200, 20, 330)
    assert found.gap_variation == 0


def test_the_context_of_a_running_sequence_weighs_long_answers_more() -> None:
    found = analyze_traffic(workload((0, 100, 10), (1, 100, 90)))
    assert found.mean_context == pytest.approx((10 * 105 + 90 * 145) / 100)


@pytest.mark.wide
@pytest.mark.parametrize(("given", "least", "most"), [(1.0, 0.8, 1.2), (4.0, 3.0, 5.0), (0.25, 0.2, 0.3)])
def test_gap_variation_is_found_again(given: float, least: float, most: float) -> None:
    assert least < traffic_of(drawn(gap_variation=given)).gap_variation < most


def test_the_peak_is_that_of_the_busiest_five_minutes() -> None:
    quiet = [(float(time), 10, 10) for time in range(0, 3600, 10)]
    busy = [(1000 + 0.5 * number, 10, 10) for number in range(600)]
    found = analyze_traffic(workload(*sorted(quiet + busy)))
    assert found.peak_rate == pytest.approx(2.1, rel=0.02)
    assert found.rate < 0.3


def test_a_short_workload_has_no_other_peak() -> None:
    found = analyze_traffic(workload(*((float(time), 10, 10) for time in range(100))))
    assert found.peak_rate == found.rate


def test_shared_prefixes_count_from_the_second_on() -> None:
    entries = [Entry(float(k), 64, 10, prefix=(1, 2, 3 + k), block_size=16) for k in range(4)]
    found = analyze_traffic(Workload(tuple(entries), "made"))
    assert found.shared == pytest.approx(3 * 32 / (4 * 64))


def test_the_same_block_after_another_beginning_is_not_shared() -> None:
    entries = [Entry(0.0, 32, 1, prefix=(1, 2), block_size=16), Entry(1.0, 32, 1, prefix=(5, 2), block_size=16)]
    assert analyze_traffic(Workload(tuple(entries), "made")).shared == 0


def test_recorded_prompts_that_begin_alike_are_shared() -> None:
    begin = tuple(range(48))
    entries = [Entry(float(k), 64, 10, prompt=(*begin, *range(100 + 16 * k, 116 + 16 * k))) for k in range(4)]
    found = analyze_traffic(Workload(tuple(entries), "recorded"))
    assert found.shared == pytest.approx(3 * 48 / (4 * 64)) and found.fresh.p50 == 16
    salted = [replace(one, cache_salt=str(number)) for number, one in enumerate(entries)]
    assert analyze_traffic(Workload(tuple(salted), "recorded")).shared == 0


def test_texts_share_what_their_tokens_in_a_simulation_do() -> None:
    begin = "You answer in one sentence. " * 8  # 224 bytes: 56 tokens, three whole blocks
    entries = tuple(Entry(float(k), 80, 10, prompt=f"{begin}{chr(65 + k) * 96}") for k in range(3))
    assert analyze_traffic(Workload(entries, "texts")).shared == pytest.approx(2 * 48 / (3 * 80))
    tokens = [Contents(entries, 1 << 15, stand_in=True).prompt(index) for index in range(3)]
    assert tokens[0][:48] == tokens[1][:48] and tokens[0][48:64] != tokens[1][48:64]


def test_a_later_turn_shares_the_conversation_so_far() -> None:
    entries = (Entry(0.0, 40, 8, prompt="a" * 160), Entry(1.0, 64, 8, prompt="b" * 64, after=0))
    assert analyze_traffic(Workload(entries, "a conversation")).shared == pytest.approx(48 / 104)


def test_notes_stay_and_no_requests_are_refused() -> None:
    assert analyze_traffic(workload((0, 1, 1), (1, 1, 1), notes=("3 rows dropped.",))).notes == ("3 rows dropped.",)
    with pytest.raises(ValueError, match="0 requests"):
        analyze_traffic(workload())
