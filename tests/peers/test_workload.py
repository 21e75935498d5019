"""The requests that all engines get."""

from __future__ import annotations

import pytest

from benchmarks.peers.workload import alike, arriving, mixed


def test_the_mix_has_the_lengths_that_it_is_known_by() -> None:
    works = mixed()
    prompts = [len(one.prompt) for one in works]
    outputs = [one.output_tokens for one in works]
    assert (len(works), min(prompts), max(prompts), sum(prompts)) == (64, 24, 1020, 13656)
    assert (min(outputs), max(outputs), sum(outputs)) == (13, 455, 9013)
    assert mixed() == works


def test_prompts_share_nothing_that_a_prefix_cache_could_find() -> None:
    prompts = [one.prompt for one in alike(8, 128, 1)]
    assert len({tuple(prompt[:2]) for prompt in prompts}) == 8
    assert all(256 <= token < 32000 for prompt in prompts for token in prompt)


def test_arrivals_at_twice_the_rate_come_in_half_of_the_time() -> None:
    slow, fast = arriving(mixed(), 2.0), arriving(mixed(), 4.0)
    assert [one.arrival for one in slow] == pytest.approx([2 * one.arrival for one in fast])
    assert [one.prompt for one in slow] == [one.prompt for one in mixed()]
    assert slow[-1].arrival == pytest.approx(64 / 2.0, rel=0.4), "on average one every half second"
