"""How many threads an engine has, and where: defaults, `--pin-threads`, `--cpu-list`."""

from __future__ import annotations

from typing import Any

import pytest

from inflight.config.engine import EngineSettings
from inflight.config.setting import SettingsError
from inflight.config.threads import resolve_threads, thread_cpus
from inflight.cpus import ANYWHERE, Cpus

ONE_NODE = Cpus(tuple(range(4)), ((0, 2), (1, 3)), ((0, 1, 2, 3),), None)
TWO_NODES = Cpus(tuple(range(4)), ((0,), (1,), (2,), (3,)), ((0, 2), (1, 3)), None)


@pytest.mark.parametrize(
    ("cpus", "settings", "threads", "why"),
    [
        (ONE_NODE, {}, 2, "the cores this process may use; they have 4 CPUs (hyperthreads)"),
        (TWO_NODES, {}, 4, "the cores this process may use"),
        (
            Cpus((0, 1), ((0,), (1,)), ((0, 1),), 1.5),
            {},
            1,
            "the CPU quota of this process, of 2 CPUs",
        ),
        (ONE_NODE, {"threads": 4}, 4, "as set"),
        (ONE_NODE, {"cpu_list": "0-2"}, 3, "one for each CPU of the list"),
        (ONE_NODE, {"cpu_list": "0-2", "threads": 2}, 2, "as set"),
    ],
)
def test_the_number_of_threads_has_a_reason(cpus: Cpus, settings: dict[str, Any], threads: int, why: str) -> None:
    found = resolve_threads(EngineSettings(**settings), cpus)
    assert (found.value, found.reason) == (threads, why)


def test_threads_go_where_they_are_asked_to() -> None:
    assert thread_cpus(EngineSettings(), ONE_NODE) == ANYWHERE
    pinned = thread_cpus(EngineSettings(pin_threads=True, threads=3), ONE_NODE)
    assert pinned.cpus[1:] == ((1,), (2,)), "a core's second CPU comes after all cores' first"
    assert not pinned.hold_caller
    assert thread_cpus(EngineSettings(pin_threads=True), TWO_NODES).cpus[1:] == ((2,), (1,), (3,)), "node by node"
    listed = thread_cpus(EngineSettings(cpu_list="3,1"), ONE_NODE)
    assert (listed.cpus, listed.hold_caller, listed.first_touch) == (((3, 1), (1,)), True, False)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"cpu_list": "0-2", "threads": 4}, "--cpu-list names 3 CPUs, one for each thread, but --threads is 4"),
        ({"cpu_list": "2-5"}, "--cpu-list names CPU 4, but this process may use 0-3; name some of these"),
        ({"threads": 17}, "--threads is 17, but this process may use 4 cores; give at most 16"),
        ({"threads": 5, "pin_threads": True}, "may use 4 cores; give at most 4 threads"),
    ],
)
def test_what_does_not_fit_the_machine_is_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        thread_cpus(EngineSettings(**settings), ONE_NODE)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"cpu_list": "0-"}, "--cpu-list is '0-': '0-' is neither a number nor a range such as 0-7; give CPUs such as"),
        ({"cpu_list": ""}, "--cpu-list is ''"),
        ({"cpu_list": [0, 1]}, r"--cpu-list is \[0, 1\]: it is no text; give CPUs such as 0-7,16-23"),
        ({"cpu_list": "0", "device": "cuda"}, "--cpu-list is about threads of the CPU's kernels, and --device is cuda"),
        ({"cpu_list": "0", "tensor_parallel_size": 2}, "--tensor-parallel-size is 2, which is for GPUs"),
        ({"cpu_list": "0", "backend": "transformers", "model": "m"}, "--cpu-list is for models that are computed by"),
    ],
)
def test_a_bad_list_is_refused_in_a_sentence(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        EngineSettings(**settings)
