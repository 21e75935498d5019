"""Another engine's host costs are a part of the machine: of its step times, its steps in flight and its front end."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inflight.cli import call
from inflight.config.scheduling import SchedulingSettings
from inflight.metrics.slo import parse_slos
from inflight.models.known import known_model
from inflight.planning.autoscaling import LoadProfile
from inflight.planning.bottleneck import bottleneck
from inflight.planning.costs import autoscaling_of
from inflight.planning.demand import traffic_of
from inflight.planning.engine_config import EngineConfig
from inflight.planning.engine_options import engine_options, vllm_options
from inflight.planning.machine import Hardware, Machine
from inflight.planning.proposal import Overrides
from inflight.planning.question import FleetQuestion, Question
from inflight.planning.search import Capacity
from inflight.planning.simulation import Topology, Trial, try_out
from inflight.planning.sizing import candidate_for
from inflight.planning.trial_cache import TrialCache
from inflight.planning.warnings import warnings
from inflight.simulate.engine_costs import all_engine_costs, engine_costs, front_end_costs
from inflight.simulate.hardware import Precision, find_gpu
from inflight.simulate.parallelism import Parallelism
from inflight.simulate.roofline import Roofline

from .builders import drawn


def on(engine: str | None = None, model: str = "qwen2.5-0.5b") -> Machine:
    more: dict[str, Any] = {} if engine is None else {"engine": engine_costs(engine)}
    return Hardware(model=known_model(model), gpu=find_gpu("h100"), **more).machine(1, 200)


def tried(machine: Machine, rate: float = 20.0, replicas: int = 1) -> Trial:
    """Short answers of a small model: many short steps."""
    demand = drawn(rate)
    question = Question(machines=(machine,), demand=demand)
    config = candidate_for(question, traffic_of(demand), machine, Overrides()).config
    slos = parse_slos(["ttft=500(p95)"])
    return try_out(machine, config, demand.workload(rate, 80, 0), slos, topology=Topology(replicas))


def test_this_engine_is_the_default_to_the_bit() -> None:
    own, unnamed = on("inflight"), on()
    assert isinstance(own.model, Roofline) and isinstance(unnamed.model, Roofline)
    plain = Roofline(known_model("qwen2.5-0.5b"), find_gpu("h100"))
    assert own.model.name == unnamed.model.name == plain.name and "host costs" not in plain.name
    assert (own.depth, own.engine) == (unnamed.depth, unnamed.engine) == (2, engine_costs())
    assert front_end_costs(own.engine) is front_end_costs(None) is None
    assert tried(own) == tried(unnamed)


def test_short_steps_take_longer_where_the_gpu_waits_for_the_host() -> None:
    own, sync, overlapped = (tried(on(name)) for name in ("inflight", "vllm-sync", "vllm"))
    tpot, ttft = ([one.percentiles[name][0] for one in (own, overlapped, sync)] for name in ("tpot", "ttft"))
    assert tpot[0] < tpot[1] < tpot[2] and tpot[2] > 1.5 * tpot[0]
    for name, trial in (("vllm", overlapped), ("vllm-sync", sync)):
        front_end = engine_costs(name)
        assert trial.percentiles["ttft"][0] > ttft[0] + front_end.request + front_end.request_latency
    assert (on("vllm-sync").depth, on("vllm").depth) == (1, 2)


def test_each_replica_has_a_front_end_of_its_own() -> None:
    rate = 1.5 / engine_costs("vllm-sync").request
    one, four = (tried(on("vllm-sync"), rate, replicas).percentiles["ttft"][1] for replicas in (1, 4))
    assert four < 0.5 * one


def test_trials_of_other_engines_are_other_trials(tmp_path: Path) -> None:
    keys = []
    for name in all_engine_costs():
        cache = TrialCache(tmp_path / name)
        trial = tried(on("inflight"))
        cache.get_or_run((on(name),), lambda trial=trial: trial)  # type: ignore[misc]
        keys += [one.name for one in (tmp_path / name).iterdir()]
    assert len(set(keys)) == len(keys) == len(all_engine_costs())


def test_a_front_end_that_is_full_is_the_bottleneck() -> None:
    rate = 0.95 / engine_costs("vllm-sync").request
    demand = drawn(rate)
    for name, bound in (("vllm-sync", True), ("inflight", False)):
        machine = on(name)
        question = Question(machines=(machine,), demand=demand)
        candidate = candidate_for(question, traffic_of(demand), machine, Overrides())
        trial = tried(machine, rate)
        candidate = replace(candidate, capacity=Capacity(None, trial, 1), rate=rate)
        found = bottleneck(candidate, trial, traffic_of(demand))
        assert (found.bound == "front end") == bound
        said = "\n".join(warnings(question, traffic_of(demand), candidate, trial, 1))
        assert ("10 ms of one processor" in said) == bound and "not simulated" not in said


def test_replicas_behind_full_front_ends_do_not_serve_what_waits() -> None:
    """A fleet follows a jump of the load to the rate that the planned ten replicas serve."""
    jump = LoadProfile((60.0,) * 30 + (600.0,) * 60)
    late = []
    for name in ("inflight", "vllm-sync"):
        question = Question(machines=(on(name),), demand=drawn(600.0), fleet=FleetQuestion(jump, 60.0))
        best = candidate_for(question, traffic_of(question.demand), question.machines[0], Overrides())
        found = autoscaling_of(question, best, 10)
        assert found is not None
        late.append(found.late_without_spare)
    assert late[0] == 0 < late[1]


CHUNKED = EngineConfig(
    max_num_seqs=64, max_num_batched_tokens=1024, scheduling=SchedulingSettings.of(strategy="chunked")
)
WHOLE = EngineConfig(
    max_num_seqs=64,
    max_num_batched_tokens=None,
    scheduling=SchedulingSettings.of(strategy="continuous", policy="priority"),
)
IN_CHUNKS = "Its --config file has to hold enable_chunked_prefill: true."
LONGEST = 1500  # tokens of the longest request
SETTINGS = {
    "vllm": ("--max-model-len 2048 --max-num-seqs 64 --max-num-batched-tokens 1024", ()),
    "vllm-sync": ("--max-model-len 2048 --max-num-seqs 64 --max-num-batched-tokens 1024 --no-async-scheduling", ()),
    "sglang": ("--context-length 2048 --max-running-requests 64 --chunked-prefill-size 1024 --enable-mixed-chunk", ()),
    "tensorrt-llm": ("--max_seq_len 2048 --max_batch_size 64 --max_num_tokens 1024", (IN_CHUNKS,)),
}


def options_of(machine: Machine, config: EngineConfig) -> tuple[str, tuple[str, ...]]:
    found = engine_options(machine, config, LONGEST)
    assert found is not None
    return found.line, found.notes


@pytest.mark.parametrize(("engine", "options"), SETTINGS.items())
def test_settings_are_said_in_the_engine_s_own_options(engine: str, options: tuple[str, tuple[str, ...]]) -> None:
    assert options_of(on(engine), CHUNKED) == options
    assert engine_options(on("inflight"), CHUNKED, LONGEST) is None


def test_whole_prompts_and_groups_have_options_of_their_own() -> None:
    assert options_of(on("vllm"), WHOLE) == (
        "--max-model-len 2048 --max-num-seqs 64 --no-enable-chunked-prefill --scheduling-policy priority",
        (),
    )
    costed = vllm_options(on("inflight"), WHOLE, LONGEST)
    assert costed == engine_options(on("vllm"), WHOLE, LONGEST), "where it is costed alone"
    groups = replace(on("sglang"), parallelism=Parallelism(2, expert=8, data_attention=4))
    assert options_of(groups, WHOLE)[0] == (
        "--tp-size 8 --dp-size 4 --ep-size 8 --enable-dp-attention --context-length 2048 --max-running-requests 64 "
        "--chunked-prefill-size -1 --enable-priority-scheduling"
    )
    other = replace(WHOLE, scheduling=SchedulingSettings.of(strategy="dynamic"))
    line, notes = options_of(on("vllm"), other)
    assert "dynamic" not in line and notes == ("vLLM has no strategy like dynamic.",)


@pytest.mark.parametrize("engine", ["vllm", "tensorrt-llm"])
def test_a_step_of_whole_prompts_holds_the_longest_request_and_memory_holds_one(engine: str) -> None:
    whole = replace(WHOLE, max_num_batched_tokens=1024)
    assert "tokens 2048" in options_of(on(engine), whole)[0]
    small = replace(on(engine), blocks=100)  # of 16 tokens
    assert re.findall(r"(?:len|tokens) (\d+)", options_of(small, whole)[0]) == ["1600", "1600"]


def test_each_stage_of_a_pipeline_has_its_part_of_a_step() -> None:
    stages = Parallelism(2, pipeline=4)
    said = {name: options_of(replace(on(name), parallelism=stages), CHUNKED)[0] for name in SETTINGS}
    assert all(re.search(r"(tokens|prefill-size) 256\b", one) for one in said.values())


def test_graphs_hold_all_rows_of_sglang() -> None:
    wide = replace(CHUNKED, max_num_seqs=600)
    assert "--cuda-graph-max-bs 600 " in options_of(on("sglang"), wide)[0]
    groups = replace(on("sglang"), parallelism=Parallelism(1, data_attention=4))
    assert "--cuda-graph-max-bs" not in options_of(groups, wide)[0]


def test_attention_in_groups_of_several_gpus_is_one_per_gpu_in_tensorrt_llm_which_says_so() -> None:
    machine = replace(on("tensorrt-llm"), parallelism=Parallelism(2, expert=8, data_attention=4))
    line, (entries, note) = options_of(machine, CHUNKED)
    assert "--tp_size 8 --ep_size 8" in line and "--max_batch_size 8 --max_num_tokens 128" in line
    assert "enable_attention_dp: true" in entries and "DP8 in place of DP4 TP2" in note


@pytest.mark.parametrize(
    ("engine", "weights", "option", "note"),
    [
        ("vllm", "bf16", "", ""),
        ("vllm", "fp8", "--quantization fp8", ""),
        ("sglang", "fp8", "--quantization fp8", ""),
        ("tensorrt-llm", "fp8", "", "a checkpoint in fp8"),
        ("vllm", "int4", "", "a checkpoint in int4"),
        ("sglang", "nvfp4", "", "a checkpoint in nvfp4"),
    ],
)
def test_weights_in_another_format_than_the_published_one_are_asked_for(
    engine: str, weights: Precision, option: str, note: str
) -> None:
    hardware = Hardware(
        model=known_model("qwen2.5-0.5b"), gpu=find_gpu("h100"), weights=weights, engine=engine_costs(engine)
    )
    machine = hardware.machine(1, 200)
    line, notes = options_of(machine, CHUNKED)
    assert ("--quantization" in line) == bool(option) and option in line
    assert ("checkpoint" in " ".join(notes)) == bool(note) and note in " ".join(notes)
    if engine == "vllm":
        costed = replace(machine, engine=engine_costs())
        assert vllm_options(costed, CHUNKED, LONGEST).notes == notes, "where it is costed alone"


def test_a_checkpoint_that_is_published_so_needs_no_option() -> None:
    hardware = Hardware(
        model=known_model("gpt-oss-20b"), gpu=find_gpu("h100"), weights="mxfp4", engine=engine_costs("vllm")
    )
    line, notes = options_of(hardware.machine(1, 200), CHUNKED)
    assert "--quantization" not in line and not notes


def test_a_plan_names_the_engine_s_options(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["plan", *BASE, *DRAWN, "--fast", "--engine", "tensorrt-llm"]
    assert call(asked) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "in the options of tensorrt-llm: --max_seq_len 1024 --max_batch_size" in said and IN_CHUNKS in said
    assert call([*asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["engine_options"].startswith("--max_seq_len 1024") and found["engine_notes"] == [IN_CHUNKS]


BASE = ("--hardware", "h100", "--model", "qwen2.5-0.5b", "--rate", "20")
DRAWN = ("--input-tokens", "100", "--output-tokens", "20")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("plan", *BASE, *DRAWN, "--engine", "vlm"), "known are inflight, vllm-sync, vllm, sglang, tensorrt-llm. Did"),
        (("simulate", *BASE, "--engine", "vlm"), "--engine is 'vlm', of which no costs are known; known are inflight"),
        (("simulate", "--step-model", __file__, "--rate", "2", "--engine", "vllm"), "--engine has no effect with"),
        (
            ("simulate", *BASE, "--hardware", "epyc-9654", "--engine", "vllm"),
            "epyc-9654 is a processor; leave --engine",
        ),
        (
            ("plan", *BASE, *DRAWN, "--engine", "vllm", "--write-config", "x.toml"),
            "inflight's own engine, and --engine",
        ),
        (("tune", *BASE, *DRAWN, "--slo", "ttft=500", "--engine", "sglang"), "inflight's own engine, and --engine is"),
    ],
)
def test_engines_without_effect_are_refused(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], sentence: str
) -> None:
    assert call(list(arguments)) != 0
    assert sentence in capsys.readouterr().err


def test_an_answer_names_the_engine_and_its_source(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["simulate", *BASE, *DRAWN, "--requests", "40", "--json"]
    for name in all_engine_costs():
        assert call([*asked, "--engine", name]) == 0
        out, err = capsys.readouterr()
        assert f'"engine": "{name}"' in out
        assert (f"host costs of {name}: {engine_costs(name).source}" in err) == (name != "inflight")


def test_help_names_every_engine(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["plan", "--help", "all"]) == 0
    said = "".join(capsys.readouterr().out.split())  # lines end at hyphens, too
    assert f"Enginewhosehostcostsstepshave:{','.join(sorted(all_engine_costs()))}." in said
