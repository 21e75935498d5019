"""Models that fit on no machine: the nearest layouts, and advice that takes less memory than the present formats."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from inflight.metrics.slo import parse_slos
from inflight.models.known import read_model
from inflight.planning.machine import Hardware
from inflight.planning.misfit import NEAREST, does_not_fit, unfit_comparison
from inflight.planning.mixture import Mixed
from inflight.planning.parallelisms import machines_for
from inflight.planning.plan import Plan, PlanError, as_text, plan
from inflight.planning.question import LayoutQuestion, Question
from inflight.simulate.hardware import find_gpu
from inflight.workload.arrivals import Poisson
from inflight.workload.classes import SharedPrefixes, TrafficClass
from inflight.workload.lengths import Fixed

from .builders import drawn, machine

LONGEST = 4000


def refusal(model: str, gpu: str, **formats: Any) -> str:
    hardware = Hardware(model=read_model(model), gpu=find_gpu(gpu), **formats)
    return does_not_fit(machines_for(hardware, 1000.0, LONGEST).fitting, LONGEST)


def test_the_nearest_of_many_layouts_are_named() -> None:
    said = refusal("glm-4.5", "rtx-4090")
    assert " layouts; the nearest are: " in said
    assert said.count("weights take") == NEAREST
    hardware = Hardware(model=read_model("glm-4.5"), gpu=find_gpu("rtx-4090"))
    least = min(
        one.memory.weight_bytes for one in machines_for(hardware, 1000.0, LONGEST).fitting if one.memory is not None
    )
    assert f"weights take {least / 1e9:.1f} of" in said


@pytest.mark.parametrize(
    ("formats", "advice"),
    [
        ({}, "Take GPUs with more memory, --weights fp8, int8 or int4, or --kv fp8."),
        ({"kv": "int8"}, "Take GPUs with more memory, or --weights fp8, int8 or int4."),
        ({"weights": "fp8"}, "Take GPUs with more memory, --weights int4, or --kv fp8."),
        ({"weights": "int8", "kv": "fp8"}, "Take GPUs with more memory, or --weights int4."),
        ({"weights": "int4"}, "Take GPUs with more memory, or --kv fp8."),
        ({"weights": "nvfp4", "kv": "fp8"}, "Take GPUs with more memory."),
    ],
)
def test_only_formats_of_fewer_bits_are_advised(formats: dict[str, Any], advice: str) -> None:
    assert refusal("llama-3.1-405b", "rtx-3090", **formats).endswith(advice)


def test_no_format_is_advised_whose_weights_would_not_fit_either() -> None:
    hardware = Hardware(model=read_model("llama-3.1-405b"), gpu=find_gpu("rtx-3090"))
    one, eight = (does_not_fit([hardware.machine(gpus, 1000.0)], LONGEST) for gpus in (1, 8))
    assert one.endswith("Take GPUs with more memory, or --kv fp8.")
    assert eight.endswith("Take GPUs with more memory, or --kv fp8.") and "weights take 101" in eight
    assert does_not_fit([hardware.machine(16, 1000.0)], LONGEST).endswith("--weights int4, or --kv fp8.")


def test_comparisons_that_have_no_meaning_for_a_model_are_refused_before_anything_is_simulated() -> None:
    hardware = Hardware(model=replace(read_model("qwen3-embedding-0.6b"), head=None), gpu=find_gpu("l4"))
    vectors, states = hardware.machine(1, 1000.0), machine(state_snapshots=4)
    encoder = Hardware(model=read_model("bge-m3"), gpu=find_gpu("l4")).machine(1, 1000.0)
    unfit = partial(unfit_comparison, drafts=False, layouts=False, strategies=False)
    assert not unfit([machine()], drafts=True, layouts=True, strategies=True)
    assert "answers with vectors, which have none" in unfit([vectors], drafts=True)
    assert "cannot be taken back" in unfit([states], drafts=True)
    assert not unfit([vectors, states], strategies=True)
    assert "each text is computed in one step" in unfit([encoder], strategies=True)
    with pytest.raises(PlanError, match="--compare-layouts is about prompts beside answers in progress"):
        plan(Question(machines=[vectors], demand=drawn(), layouts=LayoutQuestion(lambda machine: None)))


def test_an_encoder_finds_no_prefix_cached() -> None:
    """Its tokens see those behind them, so that no prefix is the same in two texts."""
    encoder = Hardware(model=read_model("bge-m3"), gpu=find_gpu("l4")).machine(1, 600.0)
    prefix = SharedPrefixes(system_tokens=512)
    texts = TrafficClass(name="", share=1.0, input=Fixed(60), output=Fixed(1), prefix=prefix)
    asked = Question(machines=[encoder], demand=Mixed.of([texts], Poisson(20.0)), requests=(60, 120, 240))
    found = plan(asked, fast=True)
    assert isinstance(found, Plan)
    assert found.traffic.shared == found.trial.cached == 0.0
    assert found.traffic.fresh.mean == found.traffic.input_mean == 572


def test_a_plan_of_vectors_speaks_of_no_answers_in_progress() -> None:
    """A decoder whose vectors are asked for decodes nothing, and no stream waits for a chunk."""
    hardware = Hardware(model=replace(read_model("qwen3-embedding-0.6b"), head=None), gpu=find_gpu("l4"))
    demand = drawn(2000.0, "lognormal:180:700", "1")
    asked = Question(machines=[hardware.machine(1, 1000.0)], demand=demand, slos=parse_slos(["ttft=200(p90)"]))
    found = plan(asked)
    assert isinstance(found, Plan)
    said = as_text(found)
    for unfit in ("running streams", "decode attention", "decodes", "prompts", "disaggregated"):
        assert unfit not in said, unfit
    assert "a text that is longer than what a step has left" in said
