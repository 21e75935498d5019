"""Settings that trials begin with: what bounds them, and that the reason says so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inflight.config.engine import default_depth
from inflight.core.strategies.chunked import EARLY_END
from inflight.metrics.slo import parse_slos
from inflight.models.known import known_model
from inflight.planning.demand import traffic_of
from inflight.planning.machine import WIDEST_STEP, Hardware, Machine, calibrated_machine
from inflight.planning.proposal import Overrides, early_end, propose, rows_in_memory, step_limit
from inflight.planning.steady import full_step, mixed_step, prompt_seconds, rows_at, steady_state
from inflight.planning.traffic import Traffic
from inflight.simulate.fitted import EngineSize, FittedModel, Provenance
from inflight.simulate.hardware import find_gpu

from .builders import Linear, drawn, machine


@pytest.fixture(scope="module")
def traffic() -> Traffic:
    return traffic_of(drawn())


def test_memory_bounds_the_rows(traffic: Traffic) -> None:
    small = machine(blocks=60)
    found = propose(small, traffic, (), Overrides())
    assert found.config.max_num_seqs == rows_in_memory(small, traffic) <= 960 * 0.9 / traffic.mean_context
    assert "KV memory holds" in found.config.reasons["max-num-seqs"]


def test_no_more_run_than_have_recurrent_states_set_aside(traffic: Traffic) -> None:
    found = propose(machine(state_rows=6), traffic, (), Overrides())
    kv_rows = rows_in_memory(machine(), traffic)
    assert found.config.max_num_seqs == 6 < kv_rows
    assert f"states; keys and values would fit for {kv_rows:,}" in found.config.reasons["max-num-seqs"]


def test_an_slo_between_tokens_bounds_the_step(traffic: Traffic) -> None:
    loose = propose(machine(), traffic, (), Overrides()).config
    tight = propose(machine(), traffic, parse_slos(["itl=200(p99)"]), Overrides()).config
    assert tight.max_num_batched_tokens is not None and loose.max_num_batched_tokens is not None
    assert tight.max_num_batched_tokens < loose.max_num_batched_tokens
    assert full_step(Linear(), traffic, tight.max_num_seqs, tight.max_num_batched_tokens) <= 0.2
    assert "within the 200 ms that the SLO leaves" in tight.reasons["max-num-batched-tokens"]


def test_an_slo_on_the_pace_bounds_the_rows(traffic: Traffic) -> None:
    slow = Linear(step=0.010, token=1e-3)
    found = propose(Machine("box", slow, 100_000, 8192), traffic, parse_slos(["tpot=50"]), Overrides())
    assert found.config.max_num_seqs <= 40


def test_steps_of_few_rows_are_wide_enough_for_a_prompt() -> None:
    """Memory for a handful of sequences leaves decodes alone to bound the rate; narrow steps serve as much, and make
    every first token late."""
    traffic = traffic_of(drawn(prompt="1000", answer="100"))
    small = replace(find_gpu("a100-80"), memory_gb=80)
    two = Hardware(model=known_model("llama-3-70b"), gpu=small).machine(2, traffic.mean_context)
    for slos in (parse_slos(["ttft=50"]), parse_slos(["itl=1"]), ()):
        config = propose(two, traffic, slos, Overrides()).config
        alone, fastest = (prompt_seconds(two.model, 1000, one) for one in (config.max_num_batched_tokens, WIDEST_STEP))
        assert config.max_num_seqs < 10 and alone <= 2 * fastest


def test_a_prompt_takes_half_of_its_slo_at_most_where_wider_steps_allow() -> None:
    traffic = traffic_of(drawn(prompt="1000", answer="100"))
    one = Hardware(model=known_model("llama-3-70b"), gpu=find_gpu("a100-80")).machine(4, traffic.mean_context)
    config = propose(one, traffic, parse_slos(["ttft=600"]), Overrides()).config
    assert prompt_seconds(one.model, 1000, config.max_num_batched_tokens) <= 0.3


def test_what_is_fixed_stays(traffic: Traffic) -> None:
    overrides = Overrides(max_num_seqs=77, max_num_batched_tokens=333)
    config = propose(machine(), traffic, (), overrides).config
    assert (config.max_num_seqs, config.max_num_batched_tokens) == (77, 333)
    assert config.reasons["max-num-seqs"] == config.reasons["max-num-batched-tokens"] == "as set"


def test_what_is_chosen_beside_something_fixed_is_not_as_set(traffic: Traffic) -> None:
    slow = Machine("box", Linear(step=0.010, token=1e-3), 100_000, 8192)
    config = propose(slow, traffic, parse_slos(["itl=50"]), Overrides(max_num_seqs=300)).config
    assert config.max_num_batched_tokens == 300 and config.reasons["max-num-seqs"] == "as set"
    assert "a token for each of the 300 sequences" in config.reasons["max-num-batched-tokens"]


@pytest.mark.parametrize("strategy", ["static", "dynamic", "continuous", "chunked", "adaptive", "slack"])
def test_every_strategy_gets_settings_that_go_together(traffic: Traffic, strategy: str) -> None:
    config = propose(machine(), traffic, parse_slos(["itl=900"]), Overrides(strategy=strategy)).config
    assert (config.max_num_batched_tokens is None) == (strategy in ("static", "dynamic"))
    assert ("itl_target" in config.scheduling.options.given) == (strategy == "adaptive")
    config.engine_settings(8192)


@pytest.mark.parametrize(("given", "said"), [(None, "tokens of one forward pass"), (64, "as set: tokens of one")])
def test_steps_of_whole_prompts_are_as_long_as_those(traffic: Traffic, given: int | None, said: str) -> None:
    """As the strategy of an engine has them: the budget is that of a forward pass, and not of a step."""
    asked = Overrides(strategy="continuous", max_num_batched_tokens=given)
    config, steady = propose(machine(), traffic, (), asked)
    reason = config.reasons["max-num-batched-tokens"]
    assert reason.startswith(said) and reason.endswith("whole prompts take, up to 8,192")
    assert config.step_tokens(8192) == 8192 and config.step_tokens(32) == config.max_num_batched_tokens
    chunked = propose(machine(), traffic, (), Overrides(max_num_batched_tokens=given or 32))
    assert steady.requests_per_s > chunked.steady.requests_per_s, "which has no more tokens in a step"
    assert chunked.config.step_tokens(8192) == (given or 32)


def test_steps_end_early_on_a_cpu_and_are_filled_on_a_gpu(traffic: Traffic) -> None:
    cpu, gpu = (propose(machine(device=here), traffic, (), Overrides()).config.options() for here in ("cpu", "cuda"))
    assert (cpu["early-end-tokens"].value, gpu["early-end-tokens"].value) == (EARLY_END, 0)
    assert "on a GPU" in gpu["early-end-tokens"].reason
    whole = propose(machine(), traffic, (), Overrides(strategy="continuous")).config
    assert "early-end-tokens" not in whole.options()


@pytest.mark.parametrize(("device", "tokens"), [("cuda:0", 0), ("cpu", EARLY_END)])
def test_a_calibrated_machine_has_the_defaults_of_the_device_that_was_measured(device: str, tokens: int) -> None:
    size = EngineSize(num_blocks=1000, block_size=16, max_rows=8, max_model_len=2048)
    provenance = Provenance("an engine", "a machine", "2026-11-23", 100, settings={"device": device}, capacity=size)
    measured = calibrated_machine(FittedModel(0.01, (0.001,), provenance=provenance))
    assert early_end(measured) == tokens
    assert (measured.device, measured.depth) == (device, default_depth(device))


def test_only_slos_on_nearly_all_gaps_bound_a_step() -> None:
    assert step_limit(parse_slos(["itl=50(p50)", "ttft=10"])) is None
    assert step_limit(parse_slos(["itl=50(p95)", "itl=80(p99)"])) == 0.05


def test_the_steady_state_obeys_its_bounds(traffic: Traffic) -> None:
    free = steady_state(Linear(), traffic, 1000, 10**6)
    assert free.rows == 1000
    by_budget = steady_state(Linear(), traffic, 1000, 100)
    assert by_budget.rows * (1 + traffic.input_mean / traffic.output_mean) == pytest.approx(100)
    assert by_budget.requests_per_s < free.requests_per_s


def test_a_mixed_step_has_as_many_prompts_as_have_its_tokens(traffic: Traffic) -> None:
    """Shared ones count by the part that is not cached: data-parallel groups compute them side by side."""
    shared = replace(traffic, shared=0.75)
    for one, fresh in ((traffic, traffic.input_mean), (shared, traffic.input_mean / 4)):
        for prompts in (0, 1, 8):
            step = mixed_step(one, 100, prompts * fresh)
            assert (step.prompt_chunks, step.rows, step.samples) == (prompts, 100 + (prompts > 0), 100)
    assert mixed_step(traffic, 100, 1).prompt_chunks == 1, "a part of one"
    assert mixed_step(shared, 0, 8 * traffic.input_mean).prompt_chunks == 1, "no more than rows"


def test_rows_follow_littles_law(traffic: Traffic) -> None:
    few, many, all_of_them = (rows_at(Linear(), traffic, rate, 64) for rate in (0.1, 5.0, 500.0))
    assert few == pytest.approx(0.1 * traffic.output_mean * 0.1, rel=0.2)
    assert 30 * few < many < all_of_them == 64
