"""A record replays to the same plans under every strategy and policy; and a changed one is found out."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from inflight.config.scheduling import SchedulingSettings
from inflight.core.kv import sessions
from inflight.core.scheduling.paused_calls import PausedCalls
from inflight.core.types.plan import Capacity
from inflight.records.schema import Header, Line, RecordError, header_of, of_kind, read_records
from inflight.simulate.compare import compare
from inflight.simulate.recorded_run import recorded_settings
from inflight.simulate.replay import replay
from inflight.simulate.simulation import SimulationSetup, simulate
from inflight.workload.workload import Workload

from .setups import MODEL, chat, pool

STRATEGIES = ("static", "dynamic", "continuous", "chunked", "adaptive", "slack")
POLICIES = ("fcfs", "sjf", "priority", "fair", "deadline", "prefix", "program")
USUAL = ("chunked", "static")


def recorded(path: Path, settings: SchedulingSettings, **more: Any) -> list[Line]:
    """A run with little memory, shared prefixes, tenants, priorities and batch work."""
    plain = chat(50, 60.0, shared=48).entries
    entries = []
    for k, one in enumerate(plain):
        priority = k % 3 if settings.policy == "priority" and k % 5 else None
        lane = "batch" if k % 5 == 0 else "interactive"
        entries.append(replace(one, tenant="ab"[k % 2], lane=lane, priority=priority))
    run = simulate(Workload(tuple(entries), "mixed"), SimulationSetup(pool(settings, num_blocks=40, **more)), path)
    assert all(one.outcome in ("completed", "rejected") for one in run.observations)
    return list(read_records(path))


# Each strategy with one policy, each policy with the usual strategy and with one that reserves.
PAIRS = [
    pytest.param(strategy, policy, marks=() if policy == "fcfs" or strategy in USUAL else pytest.mark.wide)
    for strategy in STRATEGIES
    for policy in POLICIES
]


@pytest.mark.parametrize(("strategy", "policy"), PAIRS)
def test_every_strategy_and_policy_replays(tmp_path: Path, strategy: str, policy: str) -> None:
    records = recorded(tmp_path / "r.jsonl", SchedulingSettings.of(strategy=strategy, policy=policy))
    _, outcome = replay(records)
    assert outcome.difference is None
    assert outcome.steps == outcome.recorded_steps > 50 and outcome.requests == 50
    assert outcome.prefix_hits > 0
    if strategy not in ("static", "dynamic"):  # these reserve, so that none is preempted
        assert outcome.preemptions > 0


@pytest.mark.parametrize("preemption", ["swap", "auto"])
def test_swapped_blocks_replay(tmp_path: Path, preemption: str) -> None:
    settings = SchedulingSettings.of(preemption=preemption, swap_space=0.1)
    _, outcome = replay(recorded(tmp_path / "r.jsonl", settings, host_blocks=30))
    assert outcome.difference is None and outcome.preemptions > 0
    assert preemption == "auto" or outcome.moved_blocks > 0


@pytest.mark.parametrize("depth", [1, 2])
def test_blocks_that_are_swapped_beside_the_steps_replay_and_are_modelled(tmp_path: Path, depth: int) -> None:
    """In a simulation they end with the step that they began with; of a record, where it says."""
    of = pool(SchedulingSettings.of(preemption="swap", swap_space=0.1), num_blocks=40, host_blocks=30, depth=depth)
    of = replace(of, capacity=structs.replace(of.capacity, asynchronous_transfers=True))
    simulate(chat(50, 60.0), SimulationSetup(of), tmp_path / "r.jsonl")
    records = list(read_records(tmp_path / "r.jsonl"))
    again, outcome = replay(records)
    assert outcome.difference is None and outcome.moved_blocks > 0
    assert sum(len(step.transferred) for step in of_kind(records, "step")) > 10
    compared = compare(records, again, MODEL)
    assert compared.modelled == compared.recorded and compared.preemptions[0] == compared.preemptions[1] > 0


def test_paused_programs_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values of sessions follow from the times of a record."""
    monkeypatch.setattr(sessions, "KEEP_RATE", 1e-6)
    paused: list[bool] = []
    pause = PausedCalls.pause

    def counted(calls: PausedCalls, *call: Any) -> bool:
        paused.append(pause(calls, *call))
        return paused[-1]

    monkeypatch.setattr(PausedCalls, "pause", counted)
    entries = [replace(one, program=f"p{k % 7}") for k, one in enumerate(chat(60, 20.0, shared=48).entries)]
    of = pool(SchedulingSettings.of(policy="program"), num_blocks=40)
    of = replace(of, settings=replace(of.settings, kv_eviction="sessions"))
    run = simulate(Workload(tuple(entries), "programs"), SimulationSetup(of), tmp_path / "r.jsonl")
    assert {one.program for one in run.observations} == {f"p{number}" for number in range(7)}
    in_simulation, pauses = len(paused), sum(paused)
    _, outcome = replay(list(read_records(tmp_path / "r.jsonl")))
    assert outcome.difference is None and pauses > 5
    assert (len(paused), sum(paused)) == (2 * in_simulation, 2 * pauses)


def test_lanes_tenants_admission_and_allocation_come_back(tmp_path: Path) -> None:
    settings = SchedulingSettings.of(
        policy="fair",
        tenant_weights={"a": 2.0},
        kv_allocation="reserve-request",
        admission="queue",
        max_queued_requests=20,
        lanes={"batch": {"max_rows": 2, "policy": "sjf"}},
        early_end_tokens=20,
        predictor="oracle",
    )
    records = recorded(tmp_path / "r.jsonl", settings)
    assert recorded_settings(header_of(records)).scheduling == settings
    assert replay(records)[1].difference is None


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda step: {"chunks": (structs.replace(step.chunks[0], length=3), *step.chunks[1:])}, "chunks, entry 0"),
        (lambda step: {"freed_rows": (*step.freed_rows, 7)}, "freed rows"),
        (None, "ends as|requests ended"),
    ],
)
def test_a_changed_record_is_found_out(tmp_path: Path, change: Any, sentence: str) -> None:
    records = recorded(tmp_path / "r.jsonl", SchedulingSettings())
    steps = of_kind(records, "step")
    if change is None:
        changed = [one for one in records if one is not steps[-1]]
    else:
        other = structs.replace(steps[20], plan=structs.replace(steps[20].plan, **change(steps[20].plan)))
        changed = [other if one is steps[20] else one for one in records]
        sentence = f"Step 20 differs in its {sentence}"
    _, outcome = replay(changed)
    assert outcome.difference is not None and re.search(sentence, outcome.difference)


def test_a_header_without_settings_is_refused_but_for_those_that_came_later(tmp_path: Path) -> None:
    records = recorded(tmp_path / "r.jsonl", SchedulingSettings.of(early_end_tokens=0))
    assert header_of(records).settings.pop("early_end_tokens")["value"] == 0
    assert replay(records)[1].difference is None, "steps were filled once"
    del header_of(records).settings["watermark"]
    with pytest.raises(RecordError, match="lacks 'watermark'"):
        replay(records)


def test_a_record_without_a_minimum_share_of_background_lanes_replays(tmp_path: Path) -> None:
    """The interactive requests come so fast that the batch lane would have its floor."""
    records = recorded(tmp_path / "r.jsonl", SchedulingSettings.of(lane_floor=0.0))
    assert header_of(records).settings.pop("lane_floor")["value"] == 0.0
    assert replay(records)[1].difference is None
    with_floor = recorded(tmp_path / "w.jsonl", SchedulingSettings.of(lane_floor=0.3))
    assert replay(with_floor)[1].difference is None
    assert of_kind(with_floor, "step") != of_kind(records, "step")
    del header_of(with_floor).settings["lane_floor"]
    assert replay(with_floor)[1].difference is not None


def test_the_model_that_made_a_record_has_no_error_on_it(tmp_path: Path) -> None:
    records = recorded(tmp_path / "r.jsonl", SchedulingSettings())
    again, _ = replay(records)
    same = compare(records, again, MODEL)
    assert same.step_errors["all"][0] < 1e-9
    assert same.modelled == same.recorded and same.preemptions[0] == same.preemptions[1] > 0
    slower = compare(records, again, replace(MODEL, step=2 * MODEL.step))
    assert slower.step_errors["all"][0] > 0.1
    assert slower.modelled.output_tokens_per_s < same.recorded.output_tokens_per_s


def test_records_are_the_same_bytes_for_the_same_seed(tmp_path: Path) -> None:
    for name in ("a", "b"):
        recorded(tmp_path / name, SchedulingSettings.of(policy="sjf"))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert json.loads((tmp_path / "a").read_text().splitlines()[0])["created"].startswith("1970")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"kv_cache_dir": "/kept"}, "/kept, whose blocks are not in the record"),
        ({"role": "decode"}, "--role decode, whose peers' blocks are not in the record"),
    ],
)
def test_a_record_with_blocks_from_elsewhere_is_refused(settings: dict[str, str], sentence: str) -> None:
    named = {name: {"value": value, "reason": ""} for name, value in settings.items()}
    with pytest.raises(RecordError, match=sentence):
        recorded_settings(Header(2, Capacity(8, 16, 2, 64, 10), named))
