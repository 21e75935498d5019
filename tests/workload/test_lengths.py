"""Lengths: what is drawn, and the forms they are written in."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from inflight.workload.lengths import STRATA, Fixed, Histogram, Lengths, Lognormal, Stratified, Uniform, parse_lengths
from inflight.workload.workload import WorkloadError


def drawn(lengths: Lengths, number: int = 20_000) -> list[int]:
    rng = Random(2)
    return [lengths.draw(rng) for _ in range(number)]


def test_fixed_is_always_the_same_and_so_is_lognormal_without_a_tail() -> None:
    assert set(drawn(Fixed(7), 100)) == {7}
    assert set(drawn(Lognormal(40, 40), 100)) == {40}


def test_uniform_has_both_ends_and_all_between_alike() -> None:
    found = Counter(drawn(Uniform(3, 6)))
    assert set(found) == {3, 4, 5, 6}
    assert all(4600 < times < 5400 for times in found.values())


def test_lognormal_has_its_median_and_its_99th_percentile_and_is_cut_at_its_most() -> None:
    found = sorted(drawn(Lognormal(40, 400)))
    assert found[10_000] == pytest.approx(40, rel=0.05)
    assert found[19_800] == pytest.approx(400, rel=0.1)
    assert found[-1] > 500 and found[0] >= 1
    cut = drawn(Lognormal(40, 400, 100))
    assert max(cut) == 100 and cut.count(100) > 1000


def test_a_histogram_is_drawn_by_weight() -> None:
    found = Counter(drawn(Histogram(((10, 1.0), (20, 0.0), (30, 3.0)))))
    assert set(found) == {10, 30}
    assert found[30] == pytest.approx(15_000, rel=0.03)


@pytest.mark.parametrize("header", ["", "tokens,weight\n", "\ufeffTokens, Weight\n"])
def test_a_histogram_comes_from_a_file(tmp_path: Path, header: str) -> None:
    file = tmp_path / "lengths.csv"
    file.write_text(header + "64,3\n\n512, 0.5\n", encoding="utf-8")
    lengths = parse_lengths(f"histogram:{file}")
    assert isinstance(lengths, Histogram) and lengths.bins == ((64, 3.0), (512, 0.5))
    assert str(lengths) == f"histogram:{file}"


@pytest.mark.parametrize(
    "text",
    ["128", "uniform:32-512", "lognormal:40:400", "lognormal:40:400:1000", "histogram:64=3,512=1.5"],
)
def test_what_is_read_writes_itself_as_it_was_read(text: str) -> None:
    assert str(parse_lengths(text)) == text


@pytest.mark.parametrize(
    "text",
    ["", "x", "1.5", "uniform:3", "uniform:3-x", "lognormal:40", "lognormal:1:2:3:4", "histogram:", "histogram:a=b"],
)
def test_unknown_forms_are_answered_with_those_that_are_known(text: str) -> None:
    with pytest.raises(WorkloadError, match=r"uniform:MIN-MAX.*lognormal:P50:P99.*histogram:FILE"):
        parse_lengths(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0", "is 0 tokens"),
        ("uniform:0-5", "is 0 tokens"),
        ("uniform:9-5", "from 9 to 5"),
        ("lognormal:400:40", "p50 400 and p99 40"),
        ("lognormal:nan:40", "p50 nan"),
        ("lognormal:4:40:0", "is 0 tokens"),
        ("histogram:64=0", "no weight above 0"),
        ("histogram:64=-1", "weight -1"),
        ("histogram:/no/such/file", "cannot be read"),
    ],
)
def test_lengths_that_cannot_be_are_refused_with_their_number(text: str, words: str) -> None:
    with pytest.raises(WorkloadError, match=words):
        parse_lengths(text)


def test_a_broken_line_of_a_histogram_is_named(tmp_path: Path) -> None:
    file = tmp_path / "lengths.csv"
    file.write_text("tokens,weight\n64,3\nmany,1\n")
    with pytest.raises(WorkloadError, match=r"line 3: 'many,1'"):
        parse_lengths(f"histogram:{file}")


@pytest.mark.parametrize(
    "text", ["lognormal:1020:4142", "lognormal:40:400:100", "uniform:32-512", "histogram:9=3,512=1,40=2", "128"]
)
def test_spread_draws_have_the_distribution_with_its_tail_in_an_order_of_chance(text: str) -> None:
    lengths, rng = parse_lengths(text), Random(5)
    spread = Stratified(lengths)
    first, second = ([spread.draw(rng) for _ in range(STRATA)] for _ in range(2))
    exact = [lengths.at((share + 0.5) / STRATA) for share in range(STRATA)]
    assert exact == sorted(exact)
    for drawn in (first, second):
        for own, before, after in zip(sorted(drawn), [0, *exact], [*exact[1:], math.inf], strict=False):
            assert before <= own <= after  # each in a share of its own
    assert str(spread) == text and (text == "128" or first not in (second, sorted(first)))


@pytest.mark.parametrize("text", ["lognormal:1020:4142", "uniform:32-512", "histogram:9=3,512=1,40=2"])
def test_a_share_of_a_distribution_is_what_so_many_draws_do_not_exceed(text: str) -> None:
    lengths, rng = parse_lengths(text), Random(6)
    drawn = sorted(lengths.draw(rng) for _ in range(20_000))
    for share in (0.1, 0.45, 0.9, 0.99):
        assert lengths.at(share) == pytest.approx(drawn[int(share * len(drawn))], rel=0.05)
