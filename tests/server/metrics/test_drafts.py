"""Totals of speculation, by drafter and place, under our names and vLLM's; nothing of them where there is none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inflight.core.speculation.speculation import SpeculationStats

from .driven import Driven, Page

STATS = SpeculationStats(
    drafter="suffix",
    asked=9,
    steps=4,
    chunks=7,
    drafted=[7, 5, 2],
    accepted=[6, 2, 0],
    won_seconds=1.5,
    lost_seconds=0.25,
)
LABELS = {"model_name": "tiny", "engine": "0"}


def page(stats: SpeculationStats | None) -> Page:
    driven = Driven(names="vllm")
    return Page(driven.metrics.render(replace(driven.loop.stats(), speculation=stats)))


def test_drafts_are_counted_by_drafter_and_position() -> None:
    shown, suffix = page(STATS), {"drafter": "suffix"}
    for place, (drafted, accepted) in enumerate(zip(STATS.drafted, STATS.accepted, strict=True)):
        assert shown.get("inflight_draft_tokens_total", **suffix, position=str(place)) == drafted
        assert shown.get("inflight_accepted_draft_tokens_total", **suffix, position=str(place)) == accepted
    assert shown.get("inflight_drafts_total", **suffix) == 7
    assert shown.get("inflight_draft_requests_total", **suffix) == 9
    assert shown.get("inflight_steps_with_drafts_total", **suffix) == 4
    assert shown.get("inflight_speculation_seconds_total", **suffix, outcome="won") == 1.5
    assert shown.get("inflight_speculation_seconds_total", **suffix, outcome="lost") == 0.25


def test_vllms_names_say_the_same() -> None:
    shown = page(STATS)
    assert shown.get("vllm:spec_decode_num_drafts_total", **LABELS) == 7
    assert shown.get("vllm:spec_decode_num_draft_tokens_total", **LABELS) == 14
    assert shown.get("vllm:spec_decode_num_accepted_tokens_total", **LABELS) == 8
    by_place = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    assert [shown.get(by_place, **LABELS, position=place) for place in "012"] == [6, 2, 0]


def test_the_first_draft_is_an_increase() -> None:
    shown = page(SpeculationStats("suffix"))
    assert shown.get("inflight_draft_tokens_total", drafter="suffix", position="0") == 0
    assert shown.get("vllm:spec_decode_num_accepted_tokens_per_pos_total", **LABELS, position="0") == 0


@pytest.mark.parametrize("word", ["draft", "specul", "spec_decode"])
def test_without_speculation_nothing_is_said_of_it(word: str) -> None:
    assert not [name for name in page(None).names() if word in name]
