"""Common mistakes are pointed out when they are made, and only then."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from inflight.metrics.slo import parse_slos
from inflight.models.known import known_model
from inflight.planning.demand import Traced, traffic_of
from inflight.planning.machine import Hardware
from inflight.planning.mixture import Mixed
from inflight.planning.proposal import Overrides
from inflight.planning.question import Question
from inflight.planning.simulation import try_out
from inflight.planning.sizing import candidate_for
from inflight.planning.warnings import warnings
from inflight.simulate.hardware import find_gpu
from inflight.simulate.parallelism import Parallelism
from inflight.workload.arrivals import Constant
from inflight.workload.classes import TrafficClass
from inflight.workload.lengths import Fixed, parse_lengths

from .builders import drawn, machine, workload


def warned(
    slos: str = "ttft=9000(p99),itl=900(p99)", on: Any = None, demand: Any = None, replicas: int = 5, **overrides: Any
) -> str:
    demand = demand or drawn(1.0)
    question = Question(
        machines=(on or machine(),), demand=demand, slos=parse_slos([slos]), overrides=Overrides(**overrides)
    )
    traffic = traffic_of(demand)
    candidate = replace(candidate_for(question, traffic, question.machines[0], question.overrides), rate=2.0)
    trial = try_out(candidate.machine, candidate.config, demand.workload(1.0, 60, 0), question.slos)
    return "\n".join(warnings(question, traffic, candidate, trial, replicas))


def test_no_warning_where_nothing_is_wrong() -> None:
    assert warned() == ""


@pytest.mark.parametrize(
    ("part", "question"),
    [
        ("--max-num-seqs 5,000 is beyond the KV memory", {"max_num_seqs": 5000, "on": machine(blocks=1000)}),
        ("less than one sequence of the 8,192 that the model allows", {"on": machine(blocks=300)}),
        ("every answer waits for the longest of its batch", {"strategy": "static"}),
        ("every answer waits for the longest of its batch", {"strategy": "dynamic"}),
        ("Chunking is off", {"strategy": "continuous", "demand": drawn(5.0, prompt="lognormal:1000:4000")}),
        (
            "full steps of at least",
            {"max_num_batched_tokens": 8192, "demand": drawn(5.0, prompt="lognormal:4000:8000")},
        ),
        ("about the same length", {"demand": drawn(5.0, answer="100")}),
        ("more regular than chance", {"demand": drawn(5.0, gap_variation=0.25)}),
        ("All SLOs are medians", {"slos": "ttft=9000(p50)"}),
        ("There is no SLO (--slo)", {"slos": ""}),
        ("One replica has no spare", {"replicas": 1}),
    ],
)
def test_each_has_its_number(part: str, question: dict[str, Any]) -> None:
    assert part in warned(**question)


def test_gaps_that_are_regular_are_named_of_every_demand() -> None:
    """Recorded gaps are as they are, and conversations that are open all the time begin as others end."""
    classes = [TrafficClass(name="", share=1.0, input=Fixed(100), output=parse_lengths("lognormal:20:60"))]
    mixed = Mixed.of(classes, Constant(5.0))
    trace = workload(*((0.1 * k, 100, 10 + k % 20) for k in range(400)))
    assert "more regular than chance" in warned(demand=mixed)
    assert "more regular than chance" in warned(demand=Traced(trace, 1.0, retimed=0.01))
    assert "more regular" not in warned(demand=Traced(trace, 1.0)) + warned(demand=replace(mixed, sessions=5.0))


def test_steps_wider_than_memory_was_reckoned_with() -> None:
    small = Hardware(model=known_model("llama-3-8b"), gpu=find_gpu("l4")).machine(1, 200)
    sentence = warned(on=small, max_num_batched_tokens=16384)
    assert "--max-num-batched-tokens 16,384 takes 1.6 GB more per GPU than the 4,096" in sentence
    assert "was computed with" not in warned(on=small, max_num_batched_tokens=4096)


def test_wider_steps_leave_less_memory_beside_adapters_too() -> None:
    hardware = Hardware(model=known_model("llama-3.1-8b"), gpu=find_gpu("l40s"), max_loras=16, max_lora_rank=64)
    on = hardware.machine(1, traffic_of(drawn(1.0)).mean_context)
    (found,) = re.findall(r"([\d,]+) typical sequences fit, not ([\d,]+)", warned(on=on, max_num_batched_tokens=8192))
    fit, usual = (int(one.replace(",", "")) for one in found)
    assert 0 < fit < usual


def test_weights_of_fewer_bits_have_to_leave_room_for_adapters() -> None:
    sentence = "fits into 8 GPUs"
    large = Hardware(model=known_model("llama-3.1-405b"), gpu=find_gpu("h100"))
    assert sentence in warned(on=large.machine(Parallelism(tensor=8, pipeline=2), 100))
    slots = replace(large, max_loras=64, max_lora_rank=256)
    assert sentence not in warned(on=slots.machine(Parallelism(tensor=8, pipeline=2), 100))


def test_adapters_are_said_to_take_memory_and_no_time() -> None:
    served = Hardware(model=known_model("qwen2.5-0.5b"), gpu=find_gpu("l4"), max_loras=8)
    assert "no time: what their products add to each step is not modelled" in warned(on=served.machine(1, 100))


def test_small_steps_and_copied_heads_on_a_gpu() -> None:
    qwen = Hardware(model=known_model("qwen2.5-0.5b"), gpu=find_gpu("h100"))
    assert "below the 295 tokens" in warned(on=qwen.machine(1, 100), max_num_batched_tokens=128)
    few_heads = Hardware(model=known_model("qwen3-8b"), gpu=find_gpu("h100"))
    assert "KV heads" not in warned(on=few_heads.machine(8, 100))
    four_heads = Hardware(model=known_model("qwen3-30b-a3b"), gpu=find_gpu("h100"))
    assert "8 GPUs share 4 KV heads: each head is stored 2 times, so that" in warned(on=four_heads.machine(8, 100))
    latent = Hardware(model=known_model("deepseek-v3"), gpu=find_gpu("h200"), weights="fp8")
    assert "Each of 8 GPUs stores the latent vectors of all sequences, so that" in warned(on=latent.machine(8, 100))
    groups = Parallelism(2, expert=8, data_attention=4)
    sentence = "Each of 2 GPUs of a group stores the latent vectors of the group's sequences, so that"
    assert sentence in warned(on=latent.machine(groups, 100))


def test_one_replica_that_misses_its_slos_is_said_to() -> None:
    sentence = warned("ttft=1(p99)", replicas=1)
    assert "With another seed TTFT p99 is" in sentence and "One replica has no spare" in sentence
    assert "With another seed" not in warned(replicas=1)


def test_fewer_bits_that_would_halve_the_gpus_are_named() -> None:
    large = Hardware(model=known_model("llama-3.1-405b"), gpu=find_gpu("h100"))
    sentence = warned(on=large.machine(Parallelism(tensor=8, pipeline=2), 100))
    assert "In bf16 a replica takes 16 GPUs; --weights fp8 fits into 8 GPUs." in sentence
    small = Hardware(model=known_model("llama-3-8b"), gpu=find_gpu("h100"))
    assert "In bf16" not in warned(on=small.machine(2, 100))


def test_a_small_trace_is_a_warning() -> None:
    from inflight.planning.demand import Traced

    rows = [(float(k), 50 + k % 90, 10 + k % 40) for k in range(120)]
    assert "its p99 rests on 1 of them" in warned(demand=Traced(workload(*rows), 1.0))
