"""Which CPUs a process may use: cores, NUMA nodes and quota as the system's files say, lists, and where threads go."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from inflight.cpus import ANYWHERE, BadCpuList, Cpus, in_short, parse_cpu_list, place_threads, usable_cpus

TWO_SOCKETS = {  # eight CPUs: cores 0/4, 1/5 of node 0, cores 2/6, 3/7 of node 1
    **{f"devices/system/cpu/cpu{i}/topology/thread_siblings_list": f"{i % 4},{i % 4 + 4}\n" for i in range(8)},
    "devices/system/node/node0/cpulist": "0-1,4-5\n",
    "devices/system/node/node1/cpulist": "2-3,6-7\n",
    "devices/system/node/node2/cpulist": "\n",
}


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where /sys of another machine is, on whose CPUs 0 to 7 this process may run."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    return tmp_path


def lay(system: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (system / name).parent.mkdir(parents=True, exist_ok=True)
        (system / name).write_text(text)


def test_cores_and_nodes_are_as_the_system_says(system: Path) -> None:
    lay(system, TWO_SOCKETS)
    cpus = usable_cpus(system)
    assert cpus.cores == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert cpus.nodes == ((0, 1, 4, 5), (2, 3, 6, 7))
    assert (cpus.num_threads, cpus.paid_for) == (4, 8), "siblings share a core's arithmetic"
    assert cpus.by_core == (0, 1, 2, 3, 4, 5, 6, 7)


def test_only_cpus_that_the_process_may_use_count(system: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay(system, TWO_SOCKETS)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 4, 5})
    cpus = usable_cpus(system)
    assert (cpus.cores, cpus.nodes, cpus.num_threads) == (((1, 5), (4,)), ((1, 4, 5),), 2)


@pytest.mark.parametrize(
    ("quota", "threads", "paid_for"),
    [
        ("max 100000", 4, 8),
        ("250000 100000", 2, 2),
        ("50000 100000", 1, 1),
        ("600000 100000", 4, 6),
        ("nonsense", 4, 8),
    ],
)
def test_a_quota_bounds_threads(system: Path, quota: str, threads: int, paid_for: int) -> None:
    lay(system, {**TWO_SOCKETS, "fs/cgroup/cpu.max": quota})
    cpus = usable_cpus(system)
    assert (cpus.num_threads, cpus.paid_for) == (threads, paid_for)


def test_a_system_that_says_nothing_has_a_core_for_each_cpu_and_one_node(system: Path) -> None:
    cpus = usable_cpus(system)
    assert cpus == Cpus(tuple(range(8)), tuple((i,) for i in range(8)), (tuple(range(8)),), None)


def test_a_cpu_of_no_node_stands_at_the_first(system: Path) -> None:
    lay(system, {"devices/system/node/node0/cpulist": "0-2", "devices/system/node/node1/cpulist": "4-7"})
    assert usable_cpus(system).nodes == ((0, 1, 2, 3), (4, 5, 6, 7))


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("0", (0,)), ("0-3", (0, 1, 2, 3)), ("4,0-1", (4, 0, 1)), (" 0-1 , 16-17 ", (0, 1, 16, 17)), ("1023", (1023,))],
)
def test_a_list_of_cpus_is_numbers_and_ranges_in_its_order(text: str, numbers: tuple[int, ...]) -> None:
    assert parse_cpu_list(text) == numbers
    assert parse_cpu_list(in_short(numbers)) == tuple(sorted(numbers))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "'' is neither a number nor a range"),
        ("0,,1", "'' is neither"),
        ("a-b", "'a-b' is neither a number nor a range such as 0-7"),
        ("-1", "'-1' is neither"),
        ("0:3", "'0:3' is neither"),
        ("3-1", "range 3-1 ends before it begins"),
        ("0-2,2", "CPU 2 is named twice"),
        ("0-999999999", "CPU 999999999 is beyond 1023"),
        ("٣", "'٣' is neither"),
    ],
)
def test_a_bad_list_says_why(text: str, why: str) -> None:
    with pytest.raises(BadCpuList, match=why):
        parse_cpu_list(text)


class TestPlacement:
    @pytest.fixture
    def cpus(self, system: Path) -> Cpus:
        lay(system, TWO_SOCKETS)
        return usable_cpus(system)

    def test_on_one_node_the_system_moves_threads_that_are_not_pinned(self, system: Path) -> None:
        assert place_threads(usable_cpus(system), 8) == ANYWHERE

    def test_on_several_nodes_threads_stay_on_theirs_and_touch_their_weights_first(self, cpus: Cpus) -> None:
        placed = place_threads(cpus, 4)
        first, second = cpus.nodes
        assert (placed.cpus, placed.first_touch, placed.hold_caller) == ((first, first, second, second), True, False)
        assert not place_threads(cpus, 1).first_touch, "one thread reads them all"
        assert len(place_threads(cpus, 20).cpus) == 20, "more threads than CPUs"

    def test_pinned_threads_have_a_cpu_each_and_the_caller_stays_near_the_first(self, cpus: Cpus) -> None:
        placed = place_threads(cpus, 3, (1, 2, 3), hold_caller=True)
        assert placed.cpus == ((1,), (2,), (3,))
        assert (placed.hold_caller, placed.first_touch) == (True, True)

    def test_on_one_node_the_caller_may_use_all_of_the_list(self, system: Path) -> None:
        assert place_threads(usable_cpus(system), 2, (5, 6, 7), hold_caller=True).cpus == ((5, 6, 7), (6,))
