"""The optimum in hindsight: beside a search through all schedules, and below all policies."""

from __future__ import annotations

from functools import cache

import hypothesis.strategies as st
import pytest
from drawn import examples
from hypothesis import given, settings

from benchmarks.hindsight import (
    RULES,
    Instance,
    Job,
    drawn,
    latency_under,
    with_free_preemption,
    without_preemption,
)

pytest.importorskip("highspy")

JOBS = st.lists(st.builds(Job, st.integers(0, 3), st.integers(1, 4), st.integers(1, 4)), min_size=1, max_size=4)


def instance_of(jobs: list[Job], spare: int, rows: int, block: int) -> Instance:
    """spare: blocks beyond what the largest job needs."""
    largest = max(-(-(job.prompt + job.output - 1) // block) for job in jobs)
    return Instance(tuple(jobs), largest + spare, rows, block)


def search(instance: Instance, preempts: bool) -> int:
    """Return the least sum of latencies, by trying which jobs have a token in each step."""

    @cache
    def best(step: int, done: tuple[int, ...]) -> int:
        alive = [index for index, job in enumerate(instance.jobs) if done[index] < job.output]
        if not alive:
            return 0
        here = [index for index in alive if instance.jobs[index].arrival <= step]
        least = 10**9
        for chosen in range(1 << len(here)):
            picked = [index for bit, index in enumerate(here) if chosen >> bit & 1]
            if not preempts and any(done[index] and index not in picked for index in here):
                continue
            if here and not picked and len(here) == len(alive):
                continue  # waiting for nothing
            if len(picked) > instance.rows:
                continue
            if sum(instance.held(instance.jobs[index], done[index]) for index in picked) > instance.blocks:
                continue
            after = tuple(count + (index in picked) for index, count in enumerate(done))
            ended = sum(
                step + 1 - instance.jobs[index].arrival
                for index in picked
                if after[index] == instance.jobs[index].output
            )
            least = min(least, ended + best(step + 1, after))
        return least

    return best(0, (0,) * len(instance.jobs))


@settings(examples(15), deadline=None)
@given(jobs=JOBS, spare=st.integers(0, 5), rows=st.integers(1, 4), block=st.integers(1, 2))
def test_the_programs_find_what_a_search_finds(jobs: list[Job], spare: int, rows: int, block: int) -> None:
    instance = instance_of(jobs, spare, rows, block)
    exact = with_free_preemption(instance, whole=True)
    assert without_preemption(instance) == pytest.approx(search(instance, preempts=False))
    assert exact == pytest.approx(search(instance, preempts=True))
    assert with_free_preemption(instance, whole=False) <= exact + 1e-6


@settings(examples(10), deadline=None)
@given(jobs=JOBS, spare=st.integers(0, 5), rows=st.integers(1, 4), rule=st.sampled_from(sorted(RULES)))
def test_no_policy_beats_the_bound(jobs: list[Job], spare: int, rows: int, rule: str) -> None:
    instance = instance_of(jobs, spare + 1, rows, 1)
    assert latency_under(instance, rule)[0] >= with_free_preemption(instance, whole=True) - 1e-6


def test_larger_instances_are_bounded_too() -> None:
    instance = drawn(0, 10, 8, 3.0)
    total, end = latency_under(instance, "fcfs, expected-peak, oracle")
    bound = with_free_preemption(instance, whole=False, horizon=end)
    assert bound <= total <= 1.5 * bound
