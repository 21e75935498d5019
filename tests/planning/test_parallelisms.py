"""The ways to divide a model that a plan compares: within a domain, and beyond it where nothing else fits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import to_builtins

from inflight.core.types.features import Features
from inflight.models.known import known_model
from inflight.planning.demand import Drawn, traffic_of
from inflight.planning.engine_config import EngineConfig
from inflight.planning.machine import Hardware, Machine
from inflight.planning.parallelisms import machines_for
from inflight.planning.plan import Plan, as_text, plan
from inflight.planning.proposal import Overrides, budgets_of, propose
from inflight.planning.question import Question
from inflight.planning.result import plan_result
from inflight.planning.simulation import try_out
from inflight.planning.steady import prompt_seconds
from inflight.simulate.hardware import Precision, find_gpu
from inflight.simulate.parallelism import Parallelism
from inflight.workload.lengths import Fixed

from .builders import workload


def found(model: str, gpu: str, weights: Precision = "fp8", served: bool = False) -> list[str]:
    hardware = Hardware(model=known_model(model), gpu=find_gpu(gpu), weights=weights)
    return [str(machine.parallelism) for machine in machines_for(hardware, 1000, 2000, served=served).fitting]


def test_a_mixture_is_tried_with_whole_experts_and_data_parallel_attention() -> None:
    assert found("deepseek-v3", "h200") == ["TP8", "TP8 EP8", "DP8 EP8"]
    assert found("deepseek-v3", "h200", served=True) == ["TP8"]
    assert "DP16 EP16" in found("deepseek-v3", "gb200", "nvfp4"), "within a rack"


def test_a_dense_model_is_staged_over_nodes_where_none_holds_it() -> None:
    assert found("llama-3.1-405b", "h100", "bf16") == ["TP8 PP2", "TP8 PP4", "TP8 PP8"]
    assert found("llama-3.1-405b", "h200", "bf16") == ["TP8"]
    assert found("llama-3-70b", "rtx-4090", "int4") == ["TP4"]
    assert found("deepseek-v3", "h100")[-2:] == ["DP16 EP16", "DP32 EP32"]


def test_no_model_is_divided_among_laptops() -> None:
    assert found("qwen3-4b", "rtx-4060-laptop", "int4") == ["TP1"]
    laptop = Hardware(model=known_model("qwen3-8b"), gpu=find_gpu("rtx-4060-laptop"))
    machines = machines_for(laptop, 1000, 2000)
    assert [str(one.parallelism) for one in machines.fitting] == ["TP1"] and machines.fitting[0].tokens < 2000


def test_ways_that_are_not_tried_have_a_reason() -> None:
    qwen = Hardware(model=known_model("qwen2.5-7b"), gpu=find_gpu("l4"))
    machines = machines_for(qwen, 1000, 2000)
    assert [str(one.parallelism) for one in machines.fitting] == ["TP1", "TP2", "TP4"]
    assert machines.discarded == (
        "TP8: qwen2.5-7b has 28 query heads, which 8 GPUs cannot share evenly; give a tensor-parallel degree that "
        "divides them.",
    )
    deepseek = machines_for(Hardware(model=known_model("deepseek-v3"), gpu=find_gpu("h200"), weights="fp8"), 1000, 2000)
    assert "TP1, TP2, TP4, TP2 EP2" in deepseek.discarded[-1] and "of 150 GB per GPU" in deepseek.discarded[-1]
    nowhere = machines_for(Hardware(model=known_model("deepseek-v3"), gpu=find_gpu("l4")), 1000, 2000)
    assert nowhere.fitting and not nowhere.small, "the error of a plan names them"


def test_steps_and_rows_are_those_of_all_groups() -> None:
    traffic = traffic_of(Drawn(100.0, Fixed(1000), Fixed(200)))
    machine = Hardware(model=known_model("deepseek-v3"), gpu=find_gpu("h200"), weights="fp8").machine(
        Parallelism(expert=8, data_attention=8), traffic.mean_context
    )
    assert budgets_of(machine)[-1] == 8 * 4096
    config = propose(machine, traffic, (), Overrides()).config
    assert config.max_num_seqs > 256 and (config.max_num_batched_tokens or 0) > 4096


def test_copies_of_states_are_those_of_all_groups() -> None:
    hardware = Hardware(model=known_model("qwen3.5-397b-a17b"), gpu=find_gpu("h200"), weights="fp8")
    machine = hardware.machine(Parallelism(expert=8, data_attention=8), 1000)
    assert machine.memory is not None and machine.memory.state_snapshots > 0
    assert machine.state_snapshots == 8 * machine.memory.state_snapshots


def slow(machine: Machine) -> Machine:
    """The machine with steps of a tenth of a second, which are quickly simulated."""

    class Steps:
        name, gpu, spec = "steps", machine.model.gpu, machine.model.spec  # type: ignore[attr-defined]

        def seconds(self, features: Features) -> float:
            return 0.1

        def extrapolates(self, features: Features) -> None:
            return None

    return replace(machine, model=Steps(), cases=())


@pytest.mark.parametrize(
    ("model", "gpu", "one", "texts"),
    [
        (
            "deepseek-v3",
            "h200",
            Parallelism(expert=8, data_attention=8),
            ("8 GPUs, on one node of 8", "--data-parallel-size 8 --enable-expert-parallel --max-model-len"),
        ),
        (
            "llama-3.1-405b",
            "h100",
            Parallelism(8, pipeline=2),
            ("2 nodes of 8 GPUs, 1 replica on every 2", "--tensor-parallel-size 8 --pipeline-parallel-size 2"),
        ),
    ],
)
def test_a_plan_says_which_layouts_inflight_serves_and_which_it_only_costs(
    model: str, gpu: str, one: Parallelism, texts: tuple[str, ...]
) -> None:
    hardware = Hardware(model=known_model(model), gpu=find_gpu(gpu), weights="fp8", price_per_hour=2.0)
    machine = slow(hardware.machine(one, 1000))
    demand = Drawn(1.0, Fixed(100), Fixed(20))
    answer = plan(
        Question(machines=[machine], demand=demand, requests=(20, 20, 20), discarded=("TP3: odd",)), fast=True
    )
    assert isinstance(answer, Plan)
    text = " ".join(as_text(answer).split())
    assert "costed, not served: inflight itself divides a model by tensor parallelism alone" in text
    assert all(part in text for part in texts) and "not considered: TP3: odd" in text
    result = to_builtins(plan_result(answer))
    assert result["parallelism"] == {
        "tensor": one.tensor,
        "expert": one.expert,
        "data_attention": one.data_attention,
        "pipeline": one.pipeline,
        "vllm_options": answer.vllm_options.line,
        "served": False,
    }
    assert answer.vllm_options.line.startswith(one.vllm_options)
    assert "vLLM has no strategy" not in text
    adaptive = answer.config.scheduling.but(strategy="adaptive", itl_target=0.1)
    other = replace(answer, config=replace(answer.config, scheduling=adaptive))
    assert "vLLM has no strategy like adaptive." in as_text(other)
    assert result["discarded"] == ["TP3: odd"] and result["gpus"] == one.gpus


def test_a_lone_prompt_of_a_trial_takes_as_long_through_a_pipeline_as_by_the_closed_form() -> None:
    """It passes the stages in one batch, which a trial's meter must not hide."""
    hardware = Hardware(model=known_model("llama-3-70b"), gpu=find_gpu("h100"))
    one = hardware.machine(Parallelism(2, pipeline=4), 1000.0)
    config = replace(EngineConfig(max_num_seqs=8, max_num_batched_tokens=8192), enable_prefix_caching=False)
    trial = try_out(one, config, workload(*((10.0 * number, 2048, 2) for number in range(4))))
    alone = prompt_seconds(one.model, 2048, 8192)
    divided = one.model.seconds(Features(2048, 1, 1, 0, 2048 * 1024, prompt_chunks=1))
    assert alone > 2 * divided, "a model that knows no steps takes each to be full"
    assert trial.summary.ttft.mean == pytest.approx(alone, rel=0.35)
