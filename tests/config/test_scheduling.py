"""Scheduling settings: what means something together, what users may name, and presets."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from core.builders import request

from inflight.config.assembly import make_admission, make_predictor
from inflight.config.plugin_guards import Plugin
from inflight.config.plugins import make_lanes, make_policy, make_strategy
from inflight.config.presets import PRESETS, preset
from inflight.config.scheduling import MAX_QUEUED, SCHEDULING_NAMES, SchedulingSettings
from inflight.config.setting import SettingsError
from inflight.core.estimation.latency import LatencyModel
from inflight.core.estimation.output_length import Oracle, Quantiles
from inflight.core.estimation.prompt_tokens import PromptTokens
from inflight.core.policies.fcfs import Fcfs
from inflight.core.policies.registry import POLICIES
from inflight.core.queueing.admission import WorkAhead
from inflight.core.queueing.waiting_queue import WaitingQueue
from inflight.core.request_timings import StepTime
from inflight.core.strategies import StepView, StrategyContext
from inflight.core.strategies.chunked import EARLY_END
from inflight.core.strategies.registry import STRATEGIES
from inflight.core.tenants import Backlog
from inflight.core.types.length_distribution import point
from inflight.core.types.request import RequestRefused


def strategy(settings: SchedulingSettings) -> Any:
    return make_strategy(settings, StrategyContext(64, 256, 8, LatencyModel()))


@pytest.mark.parametrize("name", [item.name for item in fields(SchedulingSettings) if item.name != "options"])
def test_every_setting_is_checked_for_its_kind(name: str) -> None:
    with pytest.raises(SettingsError, match=rf"^--{name.replace('_', '-')} is \[\]; give "):
        SchedulingSettings(**{name: []})


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_is_made_by_name(name: str) -> None:
    settings = SchedulingSettings.of(strategy=name)
    assert strategy(settings).name == name
    assert settings.resolved()["strategy"].reason != "as set"


@pytest.mark.parametrize("name", STRATEGIES)
def test_steps_end_early_unless_they_are_whole_or_run_on_a_gpu(name: str) -> None:
    empty = WaitingQueue(Fcfs(), lambda sequence: 0, StepTime())
    view = StepView(now=0.0, waiting=empty, running=0, decodes=lambda: (0, 0), max_rows=4)
    has_pieces = name in ("chunked", "adaptive", "slack")
    for settings, tokens in (
        (SchedulingSettings.of(strategy=name), EARLY_END if has_pieces else 0),
        (SchedulingSettings.of(strategy=name).ending_early(0), 0),
    ):
        assert strategy(settings).shape(view).early_end == tokens
        shown = settings.resolved().get("early_end_tokens")
        assert (None if shown is None else shown.value) == (tokens if has_pieces else None)
    if has_pieces:
        set_to_7 = SchedulingSettings.of(strategy=name, early_end_tokens=7)
        assert set_to_7.ending_early(0) == set_to_7


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_is_made_by_name(name: str) -> None:
    settings = SchedulingSettings.of(policy=name)
    interactive, batch = make_lanes(settings, LatencyModel())
    assert (interactive.policy.name, batch.policy.name, batch.background) == (name, "fcfs", True)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"strategy": "chunky"}, "chunked, adaptive, slack, and package.module:Class. Did"),
        ({"strategy": "no.such.place:Thing"}, "--strategy no.such.place:Thing cannot be loaded"),
        ({"strategy": "static", "batch_size": 9}, "--batch-size is 9, but 8 sequences may run at once"),
        ({"strategy": "dynamic", "buckets": "a"}, "--buckets is 'a'; give how many"),
        ({"strategy": "dynamic", "buckets": "9,3"}, "rising borders"),
        ({"batch_size": 4}, "--batch-size has no effect with --strategy chunked; it goes with static or dynamic."),
        ({"max_wait": 1.0, "strategy": "dynamic"}, "--max-wait has no effect with --strategy dynamic"),
        ({"window": 1.0}, "--window has no effect"),
        ({"itl_target": 0.1}, "--itl-target has no effect with --strategy chunked"),
        ({"early_end_tokens": 8, "strategy": "continuous"}, "--early-end-tokens has no effect with --strategy contin"),
        ({"lane_floor": 1.0}, "--lane-floor is 1; give a share of the steps' tokens from 0 (none) to below 1"),
        ({"lane_floor": float("nan")}, "--lane-floor is nan"),
        ({"max_wait": 1e10, "strategy": "static"}, "--max-wait is 10000000000.0; give a number above 0, at most 86,4"),
        ({"swap_space": 1e300, "preemption": "swap"}, "give a number above 0, at most 1,048,576"),
        ({"policy": "fair", "tenant_weights": {"a": 0.0}}, "The tenant 'a' has the weight 0.0; give a number above 0"),
        ({"early_end_tokens": -1}, "--early-end-tokens is -1; give a whole number from 0 (never)"),
        ({"tenant_weights": {"a": 2}}, "--tenant-weights has no effect with --policy fcfs"),
        ({"predictor": "oracle"}, "--predictor has no effect with --policy fcfs"),
        ({"swap_space": 1.0}, "--swap-space has no effect with --preemption recompute"),
        ({"max_queued_requests": 4}, "--max-queued-requests has no effect with --admission off"),
        ({"ttft_target": 1.0}, "--ttft-target has no effect"),
        ({"preemption": "swap"}, "needs room: give --swap-space"),
        ({"admission": "queue"}, "needs a bound"),
        (
            {"kv_allocation": "pages"},
            "known are paged, expected-peak, reserve-request, reserve-max. Did you mean paged?",
        ),
        ({"preemption": "none"}, "--preemption is 'none'; known are recompute, swap, auto"),
        ({"admission": "on"}, "--admission is 'on'; known are off, queue, slo"),
        ({"strategy": "static", "max_wait": -1.0}, "--max-wait is -1.0; give a number above 0"),
        ({"strategy": "adaptive", "itl_target": float("nan")}, "--itl-target is nan"),
        ({"strategy": "dynamic", "buckets": "1000000000"}, "--buckets asks for 1000000000 buckets, but their borders"),
        ({"strategy": "dynamic", "buckets": 4}, "--buckets is 4; give a word."),
        ({"strategy": "static", "batch_size": 2.5}, "--batch-size is 2.5; give a whole number."),
        ({"strategy": "static", "max_wait": "1"}, "--max-wait is '1'; give a number."),
        ({"strategy": None}, "--strategy is None; give a word."),
        ({"policy": "fair", "tenant_weights": {"a": "x"}}, "The weight of the tenant 'a' is 'x'; give a number."),
        ({"lanes": {"batch": 3}}, "Lane 'batch' is 3; give a table of names and values."),
        ({"lanes": {"batch": {"policy": 3}}}, "The policy of lane 'batch' is 3; give a word."),
    ],
)
def test_what_has_no_meaning_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError) as wrong:
        strategy(SchedulingSettings.of(**given))
    assert words in str(wrong.value) and "\n" not in str(wrong.value)


@pytest.mark.parametrize("strategy", ["static", "dynamic"])
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"preemption": "swap", "swap_space": 1.0}, "--preemption swap has no effect with --strategy {}: a batch has"),
        ({"preemption": "auto", "swap_space": 1.0}, "--preemption auto has no effect with --strategy {}"),
        ({"kv_allocation": "reserve-request"}, "--kv-allocation reserve-request has no effect with --strategy {}"),
    ],
)
def test_a_batch_that_has_all_its_memory_needs_no_preemption(strategy: str, given: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError) as wrong:
        SchedulingSettings.of(strategy=strategy, **given)
    assert words.format(strategy) in str(wrong.value)
    assert SchedulingSettings.of(strategy=strategy, kv_allocation="reserve-max").kv_allocation == "reserve-max"


LANE_WITHOUT_EFFECT: list[tuple[str, dict[str, Any], str]] = [
    *(
        (strategy, {"batch": {key: 1}}, f"Lane 'batch' has {key}, which has no effect with --strategy {strategy}")
        for strategy in ("static", "dynamic")
        for key in ("min_rows", "max_rows", "min_tokens", "max_tokens", "chunk", "step_target")
    ),
    ("continuous", {"interactive": {"chunk": 8}}, "has no effect with --strategy continuous: prompts are computed"),
    ("chunked", {"batch": {"weight": 2}}, "Lane 'batch' has a weight, but no other background lane"),
    ("chunked", {"interactive": {"weight": 2}}, "Lane 'interactive' has a weight, but no other foreground lane"),
]


@pytest.mark.parametrize(("strategy", "lanes", "words"), LANE_WITHOUT_EFFECT)
def test_settings_of_lanes_without_effect_are_refused(strategy: str, lanes: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError) as wrong:
        make_lanes(SchedulingSettings.of(strategy=strategy, lanes=lanes), LatencyModel())
    assert words in str(wrong.value)


@pytest.mark.parametrize(
    ("strategy", "lanes"),
    [
        ("static", {"batch": {"queue_limit": 3, "policy": "sjf"}, "rerank": {"weight": 2}}),
        ("continuous", {"batch": {"min_tokens": 3, "max_tokens": 9, "max_rows": 2, "step_target": 0.1}}),
        ("chunked", {"batch": {"weight": 2}, "nightly": {"weight": 1, "background": True}}),
    ],
)
def test_settings_of_lanes_that_have_an_effect_are_taken(strategy: str, lanes: dict[str, Any]) -> None:
    settings = SchedulingSettings.of(strategy=strategy, lanes=lanes)
    made = {lane.name: lane for lane in make_lanes(settings, LatencyModel())}
    for name, given in lanes.items():
        assert all(getattr(made[name], key) == value for key, value in given.items() if key != "policy")


def test_unknown_policies_and_presets_list_the_known_ones() -> None:
    with pytest.raises(SettingsError, match=r"known are fcfs, sjf, .* Did you mean priority?"):
        make_lanes(SchedulingSettings.of(policy="priorty"), LatencyModel())
    with pytest.raises(SettingsError, match="known are latency, throughput, mixed, offline"):
        preset("fast")


def test_lanes_from_a_table() -> None:
    table = {"batch": {"policy": "sjf", "max_rows": 2}, "rerank": {"weight": 3, "chunk": 16}}
    interactive, batch, rerank = make_lanes(SchedulingSettings.of(policy="fair", lanes=table), LatencyModel())
    assert (batch.policy.name, batch.background, batch.max_rows) == ("sjf", True, 2)
    assert (rerank.name, rerank.policy.name, rerank.weight, rerank.chunk) == ("rerank", "fair", 3, 16)
    assert rerank.policy is not interactive.policy
    with pytest.raises(SettingsError, match="Lane 'batch' has the setting 'rows'; known are policy, weight"):
        make_lanes(SchedulingSettings.of(lanes={"batch": {"rows": 2}}), LatencyModel())


PLUGINS = """
from inflight.core.policies import Ordered
from inflight.core.strategies.chunked import Chunked

class Newest(Ordered):
    name = "newest"
    def rank(self, view, now):
        return (-view.arrival,)

class Broken(Ordered):
    def __init__(self):
        raise OSError("no file")

class Mine(Chunked):
    name = "mine"

class Long:
    def predict(self, request, max_output_tokens, so_far):
        return 40
"""


def test_a_plugins_policy_strategy_and_predictor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plugins.py").write_text(PLUGINS)
    (tmp_path / "stumbling.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    settings = SchedulingSettings()
    policy = make_policy("plugins:Newest", settings, LatencyModel())
    assert isinstance(policy, Plugin) and policy.name == "newest"
    assert strategy(SchedulingSettings.of(strategy="plugins:Mine")).name == "mine"
    for place in ("plugins:Missing", "plugins:", ":Newest", "plugins:Broken", "stumbling:Newest"):
        with pytest.raises(SettingsError, match=r"package\.module:Class"):
            make_policy(place, settings, LatencyModel())
    made = make_predictor(SchedulingSettings(policy="sjf", predictor="plugins:Long"))
    assert isinstance(made, Plugin)
    assert made.lengths(request(), 50, 3) == point(40)


def test_predictor_and_admission() -> None:
    assert isinstance(make_predictor(SchedulingSettings()), Quantiles)
    assert isinstance(make_predictor(SchedulingSettings.of(policy="sjf", predictor="oracle")), Oracle)
    probing = SchedulingSettings.of(policy="sjf", predictor="probe", probe_file="a")
    assert isinstance(make_predictor(probing), PromptTokens) and probing.probes_lengths
    with pytest.raises(SettingsError, match="--probe-file has no effect without --predictor probe"):
        SchedulingSettings.of(policy="sjf", probe_file="a")
    assert not make_admission(SchedulingSettings(), LatencyModel()).is_on
    assert make_admission(SchedulingSettings.of(admission="slo"), LatencyModel()).is_on


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        ({}, None),
        ({"admission": "slo"}, None),
        ({"admission": "auto"}, MAX_QUEUED),
        ({"admission": "auto", "max_queued_tokens": 9}, None),
        ({"admission": "auto", "max_queued_requests": 7}, 7),
        ({"admission": "queue", "max_queued_requests": 7}, 7),
    ],
)
def test_the_limit_of_the_queue_is_the_one_in_force(settings: dict[str, Any], most: int | None) -> None:
    chosen = SchedulingSettings.of(**settings)
    assert chosen.max_queued == most
    if most is not None:
        full, load = Backlog(), WorkAhead(most, 0, [], [], 0, 1, 1, 0.0)
        full.add("a tenant", most, 0)
        with pytest.raises(RequestRefused, match=f"at most {most} may"):
            make_admission(chosen, LatencyModel()).check(request(), [full], lambda: load)


@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.parametrize("name", PRESETS)
def test_presets_set_what_means_something_together_and_say_why(name: str, gpu: bool) -> None:
    values = preset(name).on(gpu)
    assert values.keys() == preset(name).values.keys(), "options of a GPU's stand in the place of others"
    rows, budget = (values.get(one, (0,))[0] for one in ("max-num-seqs", "max-num-batched-tokens"))
    assert isinstance(rows, int) and isinstance(budget, int) and (not budget or budget > rows)
    assert all(reason for _, reason in values.values())
    names = {key.replace("-", "_"): value for key, (value, _) in values.items()}
    scheduling = {key: value for key, value in names.items() if key in SCHEDULING_NAMES}
    assert strategy(SchedulingSettings.of(**scheduling)).name == names["strategy"]


def test_the_predictor_in_force_is_shown_where_it_is_used() -> None:
    lanes = {"batch": {"policy": "sjf"}}
    asking = [{"policy": "sjf"}, {"admission": "slo"}, {"policy": "some.module:Policy"}, {"lanes": lanes}]
    for given in asking:
        assert SchedulingSettings.of(**given).resolved()["predictor"].value == "quantiles"
    assert "predictor" not in SchedulingSettings.of(policy="deadline").resolved()
    assert SchedulingSettings.of(policy="sjf", predictor="oracle").resolved()["predictor"].value == "oracle"


def test_an_itl_target_is_the_step_target_of_background_lanes_that_set_none() -> None:
    def targets(lanes: dict[str, Any], **settings: Any) -> dict[str, Any]:
        made = make_lanes(SchedulingSettings.of(lanes=lanes, **settings), LatencyModel())
        return {one.name: one.step_target for one in made}

    for target in ("auto", "off", 0.05):
        assert targets({"batch": {"step_target": target}})["batch"] == target
    bulk = {"bulk": {"background": True, "step_target": "off"}}
    assert targets(bulk, strategy="adaptive", itl_target=0.05) == {"interactive": "auto", "batch": 0.05, "bulk": "off"}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"prefill_suspension": -0.5}, "--prefill-suspension is -0.5; give a share"),
        ({"prefill_suspension": float("nan")}, "--prefill-suspension is nan; give a share"),
        ({"prefill_suspension": 9}, "--prefill-suspension is 9; give a share"),
        ({"prefill_suspension": "half"}, "--prefill-suspension is 'half'; give a"),
        (
            {"prefill_suspension": 1.0, "strategy": "static"},
            "--prefill-suspension has no effect with --strategy static",
        ),
    ],
)
def test_a_share_of_suspension_is_checked(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        SchedulingSettings.of(**given)
