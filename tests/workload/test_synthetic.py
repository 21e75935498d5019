"""Drawn workloads: mixtures, seeds, loops, shared prefixes and conversations."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from inflight.metrics.observation import Targets
from inflight.workload.arrivals import Arrivals, AtOnce, Constant, Poisson
from inflight.workload.classes import Sessions, SharedPrefixes, TrafficClass
from inflight.workload.lengths import Fixed, Lognormal, Uniform
from inflight.workload.synthetic import synthesize
from inflight.workload.workload import Entry, Workload, WorkloadError

CHAT = TrafficClass(name="chat", share=3.0, input=Lognormal(100, 900), output=Uniform(5, 50), lane="interactive")
JOBS = TrafficClass(name="jobs", share=1.0, input=Fixed(700), output=Lognormal(40, 200), lane="batch")


def of(workload: Workload, name: str) -> list[Entry]:
    return [entry for entry in workload.entries if entry.traffic == name]


def lengths(entries: list[Entry]) -> list[tuple[int, int]]:
    return [(entry.prompt_tokens, entry.output_tokens) for entry in entries]


def test_the_same_seed_gives_the_same_workload_and_another_one_another() -> None:
    one, two, other = (synthesize([CHAT, JOBS], arrivals=Poisson(9), requests=300, seed=s) for s in (7, 7, 8))
    assert one == two
    assert lengths(of(one, "chat"))[:50] != lengths(of(other, "chat"))[:50]
    assert [entry.arrival for entry in one.entries] != [entry.arrival for entry in other.entries]


def test_shares_divide_the_arrivals() -> None:
    workload = synthesize([CHAT, JOBS], arrivals=Poisson(9), requests=4000)
    assert len(of(workload, "chat")) == pytest.approx(3000, rel=0.05)
    times = [entry.arrival for entry in workload.entries]
    assert times == sorted(times) and times[-1] == pytest.approx(4000 / 9, rel=0.1)


def test_changing_a_class_leaves_the_draws_of_others() -> None:
    changed = replace(CHAT, input=Fixed(3), output=Lognormal(9, 99), sessions=Sessions(turns=Fixed(2)))
    one = synthesize([CHAT, JOBS], arrivals=Poisson(9), duration_s=100)
    two = synthesize([changed, JOBS], arrivals=Poisson(9), duration_s=100)
    assert of(one, "jobs") == of(two, "jobs")
    assert lengths(of(one, "chat")) != lengths(of(two, "chat"))
    shorter = synthesize([replace(CHAT, output=Fixed(1)), JOBS], arrivals=Poisson(9), duration_s=100)
    assert [e.prompt_tokens for e in shorter.entries] == [e.prompt_tokens for e in one.entries], "each draw is its own"


def test_arrivals_of_a_class_are_its_own() -> None:
    steady = replace(JOBS, share=None, arrivals=Constant(2.0))
    alone = synthesize([steady], duration_s=10.0)
    beside = synthesize([CHAT, steady], arrivals=Poisson(30), duration_s=10.0)
    assert (
        [e.arrival for e in of(alone, "jobs")] == [k / 2 for k in range(21)] == [e.arrival for e in of(beside, "jobs")]
    )
    assert lengths(of(alone, "jobs")) == lengths(of(beside, "jobs"))
    assert len(of(beside, "chat")) == pytest.approx(300, rel=0.25)
    assert [e.arrival for e in beside.entries] == sorted(e.arrival for e in beside.entries)


def test_requests_and_seconds_both_bound_it_and_may_cut_a_conversation() -> None:
    assert len(synthesize([CHAT], arrivals=Constant(10), requests=5, duration_s=100).entries) == 5
    assert len(synthesize([CHAT], arrivals=Constant(10), requests=500, duration_s=1).entries) == 11
    workload = synthesize([replace(CHAT, sessions=Sessions(turns=Fixed(3)))], requests=8)
    assert [entry.after for entry in workload.entries] == [None, 0, 1, None, 3, 4, None, 6]


@pytest.mark.parametrize(
    ("settings", "concurrency", "closed"),
    [
        ({"arrivals": Poisson(5)}, None, False),
        ({"arrivals": Poisson(5), "concurrency": 2}, 2, False),
        ({"concurrency": 2}, 2, True),
        ({}, None, False),
    ],
)
def test_loops(settings: dict[str, Any], concurrency: int | None, closed: bool) -> None:
    found = synthesize([CHAT], requests=5, **settings)
    assert (found.concurrency, found.closed) == (concurrency, closed)
    assert ({entry.arrival for entry in found.entries} == {0.0}) == ("arrivals" not in settings)


def test_the_targets_of_a_class_are_on_its_entries() -> None:
    promising = replace(CHAT, tenant="acme", priority=3, targets=Targets(ttft=0.5), max_tokens=20)
    for entry in synthesize([promising], requests=200).entries:
        assert (entry.lane, entry.tenant, entry.priority) == ("interactive", "acme", 3)
        assert entry.targets == Targets(ttft=0.5) and entry.max_tokens == 20 and 5 <= entry.output_tokens <= 20


def test_shared_prefixes_come_before_what_is_drawn_and_are_a_class_own() -> None:
    prefix = SharedPrefixes(system_tokens=96, groups=3, group_tokens=64)
    workload = synthesize([replace(CHAT, input=Fixed(10), prefix=prefix)], requests=300)
    ids = Counter(entry.prefix for entry in workload.entries)
    assert len(ids) == 3 and all(70 < times < 130 for times in ids.values())
    for entry in workload.entries:
        assert entry.prompt_tokens == 96 + 64 + 10
        assert entry.block_size * len(entry.prefix) == 96 + 64
    systems = {found[: 96 // workload.entries[0].block_size] for found in ids}
    assert len(systems) == 1 and len({found[-1] for found in ids}) == 3
    prefix = SharedPrefixes(groups=10, group_tokens=16, skew=1.0)
    workload = synthesize([replace(CHAT, prefix=prefix)], requests=3000)
    times = sorted(Counter(entry.prefix for entry in workload.entries).values())
    assert times[-1] == pytest.approx(3000 / 2.929, rel=0.1)  # harmonic number of 10
    assert times[-1] == pytest.approx(10 * times[0], rel=0.4)
    prefix = SharedPrefixes(system_tokens=64)
    workload = synthesize([replace(CHAT, prefix=prefix), replace(JOBS, prefix=prefix)], requests=50)
    assert len({entry.prefix for entry in workload.entries}) == 2


def test_a_turn_has_the_conversation_so_far_before_it() -> None:
    sessions = Sessions(turns=Uniform(2, 4), think_s=3.0, added=Fixed(7))
    prefix = SharedPrefixes(system_tokens=40)
    workload = synthesize(
        [replace(CHAT, input=Fixed(30), output=Fixed(11), prefix=prefix, sessions=sessions)],
        arrivals=Poisson(2),
        requests=400,
    )
    thought = []
    for index, entry in enumerate(workload.entries):
        assert entry.block_size * len(entry.prefix) >= entry.prompt_tokens
        if entry.after is None:
            assert entry.prompt_tokens == 70 and entry.think_s == 0
            continue
        before = workload.entries[entry.after]
        assert entry.after == index - 1 and before.session == entry.session
        assert entry.prompt_tokens == before.prompt_tokens + 11 + 7
        assert entry.prefix[: len(before.prefix)] == before.prefix and entry.block_size == 40
        thought.append(entry.think_s)
    assert sum(thought) / len(thought) == pytest.approx(3.0, rel=0.25)
    systems = Counter(entry.prefix[:1] for entry in workload.entries)
    streams = Counter(entry.prefix[1] for entry in workload.entries)
    assert len(systems) == 1
    assert len(streams) == len({entry.session for entry in workload.entries}) > 100


@pytest.mark.parametrize(
    ("classes", "settings", "words"),
    [
        ([], {"requests": 1}, "needs a class"),
        ([CHAT, CHAT], {"requests": 1}, "name 'chat'"),
        ([CHAT], {}, "how many requests"),
        ([CHAT], {"requests": 0}, "0 requests"),
        ([CHAT], {"duration_s": 0.0, "arrivals": Poisson(1)}, "last 0 s"),
        ([CHAT], {"requests": 1, "concurrency": 0}, "concurrency is 0"),
        ([CHAT], {"duration_s": 5.0}, "give their number"),
        ([CHAT], {"duration_s": 5.0, "arrivals": AtOnce()}, "give their number"),
        (
            [replace(JOBS, share=None, arrivals=Poisson(1))],
            {"requests": 5, "arrivals": Poisson(2)},
            "leave one of both",
        ),
        ([CHAT, replace(JOBS, share=None, arrivals=Poisson(1))], {"requests": 5}, "give arrivals for these too"),
    ],
)
def test_what_cannot_be_made_is_refused(classes: list[TrafficClass], settings: dict[str, Any], words: str) -> None:
    with pytest.raises(WorkloadError, match=words):
        synthesize(classes, **settings)


def test_the_name_says_how_it_was_made() -> None:
    arrivals: Arrivals = Poisson(9)
    name = synthesize([CHAT, JOBS], arrivals=arrivals, requests=3, seed=5).name
    assert name.startswith("poisson:9; chat (share 3, in lognormal:100:900, out uniform:5-50)") and "seed 5" in name
    assert synthesize([CHAT], requests=3, concurrency=2).name.startswith("closed loop of 2; chat")
    assert synthesize([CHAT], requests=3).name.startswith("at-once; chat")
    assert synthesize([replace(JOBS, share=None, arrivals=Poisson(1))], requests=3).name.startswith("jobs (poisson:1")
