"""`inflight doctor --trace`: steps of any model that is served, divided among threads and operations."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from models import write_model

from inflight.execution.backends import native

from .terminal import Caller

SECONDS = ("busy_ms", "put_aside_ms", "waking_ms", "last_task_ms", "alone_ms", "between_ms")


def traced(inflight: Caller, *arguments: object) -> list[dict[str, Any]]:
    """Run the built-in model, unless they name another."""
    result = inflight("doctor", "--trace", "--json", "--device", "cpu", *arguments, model=False)
    assert result.code == 0, result.err
    found: list[dict[str, Any]] = json.loads(result.out)["trace"]
    return found


@pytest.mark.parametrize("threads", [1, 3])
def test_a_steps_time_is_divided_on_every_thread(inflight: Caller, tmp_path: Path, threads: int) -> None:
    file = tmp_path / "trace.json"
    steps = traced(inflight, "--threads", threads, "--context", 300, "--trace-file", file)
    assert [(one["rows"], one["context"], one["tokens"]) for one in steps] == [
        (1, 300, 1), (8, 300, 8), (32, 300, 32), (1, 512, 512),
    ]  # fmt: skip
    for step in steps:
        assert len(step["threads"]) == threads
        for thread in step["threads"]:
            assert sum(thread[name] for name in SECONDS) == pytest.approx(step["step_ms"])
            assert all(thread[name] > -0.01 for name in SECONDS)
        operations = step["operations"]
        assert all(one["ms"] >= after["ms"] for one, after in pairwise(operations))
        named = {one["name"].split()[0]: one for one in operations}
        assert {"embed", "attention", "gate_up", "rms_norm", "sample"} <= named.keys()
        assert named["gate_up"]["share_of_ceiling"] > 0 and named["gate_up"]["calls"] == 5
    events = json.loads(file.read_text())["traceEvents"]
    assert {one["pid"] for one in events if one["ph"] == "X"} == {one["pid"] for one in events if one["ph"] == "M"}
    assert {one["name"] for one in events} >= {one["name"] for one in steps[0]["operations"]}


@pytest.mark.parametrize("family", ["gemma4", "qwen3_5", "deepseek_v3"])
def test_models_with_windows_states_and_experts_are_traced(inflight: Caller, tmp_path: Path, family: str) -> None:
    model = write_model(tmp_path / family, family)
    steps = traced(inflight, "--model", model, "--load-format", "dummy", "--context", 200)
    assert [one["tokens"] for one in steps] == [1, 8, 32, 240], "no prompt of 512 fits 256 positions"
    kinds = {one["name"].split()[0] for one in steps[0]["operations"]}
    assert kinds >= {"gemma4": {"attention"}, "qwen3_5": {"delta_rule"}, "deepseek_v3": {"experts", "by_head"}}[family]


def test_the_table_names_what_each_figure_is(inflight: Caller) -> None:
    out = inflight("doctor", "--trace", "--device", "cpu", "--context", 64, model=False).out
    assert "trace of 8 rows at 64 tokens: " in out and "ms a step, the fastest of 10" in out
    assert "trace of a prompt of 512 tokens: " in out and "0, the caller" in out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--context", 1_000_000), "--context is 1,000,000; give 1 to "),
        (("--context", 0), "--context is 0; give 1 to "),
        (("--trace-file", "/no/such/folder/x"), "--trace-file /no/such/folder/x cannot be written"),
    ],
)
def test_what_cannot_be_traced_is_a_sentence(inflight: Caller, arguments: tuple[object, ...], sentence: str) -> None:
    assert sentence in inflight("doctor", "--trace", "--device", "cpu", *arguments).sentence()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--context", 1_000_000), "--context is 1,000,000; give 1 to "),
        (("--context", -5), "--context is -5; give 1 to "),
        (("--trace-file", "x"), "--trace-file is where --trace writes"),
    ],
)
def test_options_are_checked_without_a_trace_too(
    inflight: Caller, arguments: tuple[object, ...], sentence: str
) -> None:
    assert sentence in inflight("doctor", "--device", "cpu", *arguments).sentence()


def test_kernels_are_quiet_without_a_trace(monkeypatch: pytest.MonkeyPatch, inflight: Caller) -> None:
    def record(*arguments: object) -> None:
        raise AssertionError("nothing is recorded")

    monkeypatch.setattr(native.backend, "Recording", record)
    assert inflight("doctor", "--device", "cpu").code == 0
