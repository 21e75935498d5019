"""Whose turn it is, and which runs count; engines are fakes in real processes."""

from __future__ import annotations

import itertools
from pathlib import Path

from benchmarks.peers.trials import MIXED_TOKENS, measures

from .builders import SMALL, contest, job

TITLES = {measure.title for measure in measures(SMALL)}


def test_every_engine_gets_every_measure_in_every_round() -> None:
    both = contest({"inflight": job(), "other": job()})
    both.round(0)
    both.round(1)
    found = {(one.round, one.engine, one.measure) for one in both.figures}
    assert found == set(itertools.product((0, 1), ("inflight", "other"), TITLES))
    assert all(one.counts and one.value > 0 for one in both.figures)
    assert both.versions == {"inflight": "1.0 (of no use)", "other": "1.0 (of no use)"}


def test_they_take_turns_trial_by_trial(tmp_path: Path) -> None:
    log = tmp_path / "log"
    contest({"inflight": job(log=("A", str(log))), "other": job(log=("B", str(log)))}).round(0)
    prefills = [line for line in log.read_text().splitlines() if line.endswith(" 5")]
    assert prefills == ["A 5", "B 5"] + ["A 5"] * 4 + ["B 5"] * 4, "warmed up, then four each"


def test_a_trial_is_repeated_until_the_bandwidth_is_alike() -> None:
    probes = itertools.chain([50e9, 50e9, 20e9, 20e9], itertools.repeat(50e9))  # the second engine's first run
    both = contest({"inflight": job(), "other": job()}, lambda: next(probes))
    both.round(0)
    first = [one for one in both.figures if one.measure == "decode at batch 1, tokens/s"]
    assert [(one.engine, one.bandwidth, one.counts) for one in first] == [
        ("inflight", 50e9, True),
        ("other", 50e9, True),
    ]


def test_a_trial_on_a_restless_machine_does_not_count() -> None:
    probes = itertools.cycle([50e9, 50e9, 20e9, 20e9])
    both = contest({"inflight": job(), "other": job()}, lambda: next(probes))
    both.round(0)
    decoding = [one for one in both.figures if one.measure.startswith("decode")]
    assert decoding and not any(one.counts for one in decoding)
    computing = [one for one in both.figures if one not in decoding]
    assert len(both.figures) == 2 * len(TITLES)
    assert all(one.counts for one in computing), "what the cores bound does not wait for memory"


def test_a_share_says_how_alike_the_bandwidth_must_be() -> None:
    probes = itertools.cycle([50e9, 50e9, 40e9, 40e9])
    both = contest({"inflight": job(), "other": job()}, lambda: next(probes), alike=0.25)
    both.round(0)
    assert all(one.counts for one in both.figures)


def test_an_engine_that_cannot_start_is_left_out() -> None:
    both = contest({"inflight": job(load_error="there is no int8 yet"), "other": job()})
    both.round(0)
    both.round(1)
    assert both.absent == {
        "inflight": "inflight is left out of bf16: exit status 1: RuntimeError: there is no int8 yet."
    }
    assert {one.engine for one in both.figures} == {"other"}
    assert {one.round for one in both.figures} == {0, 1}, "the other goes on"


def test_an_engine_that_dies_at_work_is_left_out_from_then_on() -> None:
    both = contest({"inflight": job(), "other": job(dies_after=10)})
    both.round(0)
    assert "out of luck" in both.absent["other"]
    assert {one.measure for one in both.figures if one.engine == "inflight"} == TITLES


def test_without_any_engine_a_round_is_soon_over() -> None:
    alone = contest({"other": job(load_error="no")})
    alone.round(0)
    assert alone.figures == []


def test_arrivals_follow_the_best_peer_not_inflight() -> None:
    three = contest({"inflight": job(seconds=0.0002), "slow": job(seconds=0.0004), "fast": job(seconds=0.0001)})
    three.round(0)
    reached = {one.engine: one.value for one in three.figures if one.measure == MIXED_TOKENS.title}
    assert three.capacity(0) == max(reached["slow"], reached["fast"])
