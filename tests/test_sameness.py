"""A request's tokens, log-probabilities and prompt scores are bit-identical alone, in any batch, with any chunk size,
after preemption, and with or without a prefix hit.

Random mixes of requests go through whole engines of many shapes; each must say what the request said alone.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from execution.driver import backends
from models import FAMILIES, write_model

from inflight.build import Engine, build_engine
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SCHEDULING_NAMES, SchedulingSettings
from inflight.core.types.plan import BatchPlan
from inflight.core.types.sampling import SamplingParams
from inflight.execution.kv.kv_groups import KVGroups, one_group
from inflight.execution.runner import ModelRunner
from inflight.frontend.offline import Offline
from inflight.frontend.outputs import RequestOutput
from inflight.models.spec import ModelSpec

NATIVE = [isa for isa in backends() if isa != "reference"]
# On the best set, on one of half the width and on the plainest; on those between, in ./check --all.
ISAS = [pytest.param(isa, marks=() if isa in (*NATIVE[:1], "avx2", "portable") else pytest.mark.wide) for isa in NATIVE]
SHAPES: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "one at a time": {"max_num_seqs": 1, "max_num_batched_tokens": 24},
    "crumbs": {"max_num_seqs": 5, "max_num_batched_tokens": 5},
    "whole prompts": {"max_num_batched_tokens": 2000, "block_size": 32},
    "odd chunks": {"max_num_seqs": 7, "max_num_batched_tokens": 29, "enable_prefix_caching": False},
    "little memory": {"max_num_seqs": 12, "num_blocks": 16, "watermark": 0.0},
    "little memory, no cache": {"max_num_seqs": 12, "num_blocks": 16, "enable_prefix_caching": False},
}

SCARCE: dict[str, Any] = {"max_num_seqs": 12, "num_blocks": 16, "watermark": 0.0}
SCHEDULES: dict[str, dict[str, Any]] = {
    "static": {"strategy": "static", "batch_size": 5, "max_wait": 0.01},
    "static in little memory": {"strategy": "static", "batch_size": 5, "max_wait": 0.01, **SCARCE},
    "dynamic": {"strategy": "dynamic", "batch_size": 4, "window": 0.01, "buckets": "3"},
    "continuous": {"strategy": "continuous", "max_num_seqs": 6},
    "continuous, swap": {"strategy": "continuous", "preemption": "swap", "swap_space": 0.001, **SCARCE},
    "adaptive": {"strategy": "adaptive", "itl_target": 0.002},
    "slack": {"strategy": "slack", "itl_target": 0.002},
    **{
        policy: {"policy": policy, "max_num_seqs": 5}
        for policy in ("sjf", "priority", "fair", "deadline", "prefix", "program")
    },
    "reserve-request": {"kv_allocation": "reserve-request", "num_blocks": 40},
    "reserve-max": {"kv_allocation": "reserve-max", "num_blocks": 40},
    "swap": {"preemption": "swap", "swap_space": 0.001, **SCARCE},
    "swap without the cache": {"preemption": "swap", "swap_space": 0.001, "enable_prefix_caching": False, **SCARCE},
    "auto, fair": {"preemption": "auto", "swap_space": 0.001, "policy": "fair", **SCARCE},
    "auto, sjf": {"preemption": "auto", "swap_space": 0.001, "policy": "sjf", "strategy": "adaptive", **SCARCE},
}


@dataclass(frozen=True)
class Case:
    prompt: tuple[int, ...]
    params: SamplingParams
    after_steps: int  # joins when the engine has made so many steps


Answer = list[tuple[Any, ...]]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {family: write_model(tmp_path_factory.mktemp(family), family) for family in FAMILIES}


def mix(seed: int, count: int, longest: int = 90) -> list[Case]:
    """Requests of many lengths and settings; some share the beginning of their prompt."""
    chance = random.Random(seed)
    beginnings = [[chance.randrange(384) for _ in range(length)] for length in (16, 37, 64)]
    cases = []
    for _ in range(count):
        prompt = list(chance.choice(beginnings)) if chance.random() < 0.6 else []
        prompt += [
            chance.randrange(384) for _ in range(chance.choice([1, 2, 15, 16, 17, chance.randrange(1, longest)]))
        ]
        cases.append(Case(tuple(prompt), settings(chance), chance.choice([0, 0, chance.randrange(30)])))
    assert any(case.params.prompt_logprobs is not None for case in cases)
    return cases


def settings(chance: random.Random) -> SamplingParams:
    given: dict[str, Any] = {
        "max_tokens": chance.choice([1, 7, 16, 33]),
        "temperature": chance.choice([0.0, 0.0, 0.7, 1.3]),
        "seed": chance.randrange(2**63),
        "n": chance.choice([1, 1, 1, 3]),
        "logprobs": chance.choice([None, 0, 5]),
    }
    optional = {
        "top_k": 20,
        "top_p": 0.9,
        "min_p": 0.05,
        "repetition_penalty": 1.3,
        "presence_penalty": 0.8,
        "frequency_penalty": -0.6,
        "logit_bias": {7: 5.0, 300: -100.0},
        "min_tokens": 1,
        "ignore_eos": True,
        "stop": ("e",),
        "prompt_logprobs": 4,
    }
    given |= {name: value for name, value in optional.items() if chance.random() < 0.25}
    if given.get("prompt_logprobs") and chance.random() < 0.5:
        given |= {"max_tokens": 0, "min_tokens": 0}
    return SamplingParams(**given)


@contextmanager
def opened(folder: Path, **shape: Any) -> Iterator[Engine]:
    """Without drafts, or the time would decide how soon rows end, and so who is preempted."""
    shape = {"speculation": "off"} | shape
    scheduling = SchedulingSettings.of(**{name: value for name, value in shape.items() if name in SCHEDULING_NAMES})
    rest = {name: value for name, value in shape.items() if name not in SCHEDULING_NAMES}
    engine = build_engine(EngineSettings(model=str(folder), threads=2, **rest), scheduling)
    try:
        yield engine
    finally:
        engine.loop.close()


def run(engine: Engine, cases: list[Case]) -> list[RequestOutput]:
    """Requests join while others run, as their `after_steps` says."""
    offline = Offline(engine.loop, engine.tokenizer)
    collectors = {}
    steps = 0
    waiting = sorted(range(len(cases)), key=lambda number: cases[number].after_steps)
    while waiting or offline.unfinished:
        while waiting and (cases[waiting[0]].after_steps <= steps or not offline.unfinished):
            number = waiting.pop(0)
            case = cases[number]
            request = engine.prompts.request(str(number), case.prompt, case.params, engine.loop.clock.now())
            collectors[number] = offline.add(request)
        offline.step()
        steps += 1
    return [collectors[number].output() for number in range(len(cases))]


def answer(output: RequestOutput) -> Answer:
    """All that must be the same, to the last bit."""
    scores = output.prompt_token_logprobs
    return [
        (scores, one.token_ids, one.token_logprobs, one.finish_reason, one.stop_reason, one.text)
        for one in output.outputs
    ]


def alone(folder: Path, cases: list[Case], **shape: Any) -> list[Answer]:
    with opened(folder, enable_prefix_caching=False, **shape) as engine:
        return [answer(run(engine, [case])[0]) for case in cases]


def check(folder: Path, cases: list[Case], expected: list[Answer], **shape: Any) -> tuple[int, int]:
    """Returns preemptions and cached tokens, so that the caller can see that there were any."""
    with opened(folder, **shape) as engine:
        outputs = run(engine, cases)
        stats = engine.loop.stats()
    for number, (output, same) in enumerate(zip(outputs, expected, strict=True)):
        assert answer(output) == same, f"request {number}: {cases[number]}"
    assert (stats.waiting, stats.running, stats.kv.held_blocks) == (0, 0, 0)
    # Samples of one request share its prompt with or without the cache, so that only single ones count.
    return stats.preemptions, sum(output.num_cached_tokens or 0 for output in outputs if len(output.outputs) == 1)


@pytest.mark.parametrize("isa", ISAS)
def test_any_batch_says_what_each_said_alone(
    isa: str, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFLIGHT_ISA", isa)
    cases = mix(seed=1, count=24)
    expected = alone(folders["llama"], cases)
    assert len({str(one) for one in expected}) > 20, "the answers differ from each other"
    for name, shape in SHAPES.items():
        preemptions, cached = check(folders["llama"], cases, expected, **shape)
        assert (preemptions > 0) == ("little memory" in name), name
        assert (cached > 0) == shape.get("enable_prefix_caching", True), name


def test_every_strategy_policy_allocation_and_preemption(folders: dict[str, Path]) -> None:
    cases = mix(seed=21, count=24)
    expected = alone(folders["llama"], cases)
    for name, shape in SCHEDULES.items():
        preemptions, _ = check(folders["llama"], cases, expected, **shape)
        together = shape.get("strategy") in ("static", "dynamic")
        assert (preemptions > 0) == ("num_blocks" in shape and not together and "kv_allocation" not in shape), name


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_every_family_and_type(family: str, dtype: str, folders: dict[str, Path]) -> None:
    cases = mix(seed=2, count=12)
    expected = alone(folders[family], cases, dtype=dtype)
    with opened(folders[family], dtype=dtype) as engine:
        groups = len(engine.capacity.windows)  # of which each has blocks of its own
    little = {**SHAPES["little memory"], "num_blocks": groups * SHAPES["little memory"]["num_blocks"]}
    for shape in (SHAPES["crumbs"], little):
        check(folders[family], cases, expected, dtype=dtype, **shape)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("quantization", ["int8", "int8-all", "int4", "int4-all"])
def test_quantized_weights_too(
    isa: str, quantization: str, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFLIGHT_ISA", isa)
    cases = mix(seed=3, count=12)
    family = "qwen3" if quantization.endswith("-all") else "qwen2"
    expected = alone(folders[family], cases, quantization=quantization)
    assert expected != alone(folders[family], cases), "the weights are other ones"
    for name in ("as it comes", "crumbs", "odd chunks", "little memory"):
        preemptions, _ = check(folders[family], cases, expected, quantization=quantization, **SHAPES[name])
        assert (preemptions > 0) == ("little memory" in name), name


@pytest.mark.parametrize("isa", ISAS)
def test_int8_keys_and_values_too(isa: str, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A read of a key takes its bytes and its scale: in the step that wrote it, later, from the prefix cache, or
    after they were swapped out and back."""
    monkeypatch.setenv("INFLIGHT_ISA", isa)
    cases = mix(seed=3, count=12)
    expected = alone(folders["qwen2"], cases, kv_cache_dtype="int8")
    assert expected != alone(folders["qwen2"], cases), "the keys and values are other ones"
    for name in ("as it comes", "crumbs", "odd chunks", "little memory"):
        preemptions, _ = check(folders["qwen2"], cases, expected, kv_cache_dtype="int8", **SHAPES[name])
        assert (preemptions > 0) == ("little memory" in name), name
    preemptions, _ = check(folders["qwen2"], cases, expected, kv_cache_dtype="int8", **SCHEDULES["swap"])
    assert preemptions > 0


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_int8_keys_and_values_behind_a_window(dtype: str, folders: dict[str, Path]) -> None:
    cases = mix(seed=2, count=12)
    expected = alone(folders["mistral"], cases, dtype=dtype, kv_cache_dtype="int8")
    for name in ("crumbs", "little memory"):
        check(folders["mistral"], cases, expected, dtype=dtype, kv_cache_dtype="int8", **SHAPES[name])


@pytest.mark.parametrize("seed", range(3, 9))
def test_random_mixes_in_random_engines(seed: int, folders: dict[str, Path]) -> None:
    chance = random.Random(seed)
    cases = mix(seed, count=16, longest=150)
    expected = alone(folders["llama"], cases)
    rows = chance.randrange(1, 20)
    check(
        folders["llama"],
        cases,
        expected,
        max_num_seqs=rows,
        max_num_batched_tokens=rows + chance.randrange(60),
        num_blocks=chance.choice([17, 20, 40]),
        enable_prefix_caching=chance.random() < 0.7,
        watermark=chance.choice([0.0, 0.01, 0.2]),
    )


def test_the_numpy_backend_has_the_same_bits_too(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFLIGHT_ISA", "reference")
    cases = mix(seed=10, count=8, longest=40)
    expected = alone(folders["llama"], cases)
    for name in ("as it comes", "crumbs"):
        check(folders["llama"], cases, expected, **SHAPES[name])
    preemptions, _ = check(folders["llama"], cases, expected, max_num_seqs=6, num_blocks=9, max_model_len=140)
    assert preemptions > 0


def test_a_second_round_comes_from_the_cache_and_is_the_same(folders: dict[str, Path]) -> None:
    cases = mix(seed=11, count=10)
    expected = alone(folders["llama"], cases)
    with opened(folders["llama"]) as engine:
        for round_number in range(3):
            outputs = run(engine, cases)
            assert [answer(output) for output in outputs] == expected
            for case, output in zip(cases, outputs, strict=True):
                if case.params.prompt_logprobs is not None:  # what is cached has no scores
                    assert output.num_cached_tokens == 0
                elif round_number:  # every full block but the one that the last prompt token is computed in
                    assert output.num_cached_tokens == (len(case.prompt) - 1) // 16 * 16


def test_samples_of_one_request_are_its_single_streams(folders: dict[str, Path]) -> None:
    """Sample i draws from stream (seed, i): how many brothers it has, and whether they ended, changes nothing."""
    prompt = tuple(range(30, 75))
    with opened(folders["llama"], max_num_seqs=3, num_blocks=16) as engine:
        few, many = (
            run(engine, [Case(prompt, SamplingParams(n=n, seed=5, temperature=1.0, logprobs=2, max_tokens=30), 0)])[0]
            for n in (2, 7)
        )
    assert answer(many)[:2] == answer(few)
    assert len({tuple(one.token_ids) for one in many.outputs}) == 7


# -- KV groups -----------------------------------------------------------------------------------------------------
# Budgets that make windows slide within prompts, and blocks for few sequences at once.
ODD_STEPS: dict[str, Any] = {"max_num_seqs": 12, "max_num_batched_tokens": 24}
WINDOWED_SHAPES: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "crumbs": SHAPES["crumbs"],
    "odd chunks": SHAPES["odd chunks"],
    "little memory": {"num_blocks": 60, "watermark": 0.0, **ODD_STEPS},
    "swap": {"preemption": "swap", "swap_space": 0.001, "num_blocks": 60, **ODD_STEPS},
    "continuous": {"strategy": "continuous", "max_num_seqs": 6, "num_blocks": 140},
    "static": {"strategy": "static", "batch_size": 4, "max_wait": 0.01},
}


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One layer that sees all, and five with a window."""
    layers = {"num_hidden_layers": 6, "use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}
    return write_model(tmp_path_factory.mktemp("windowed"), "qwen2", **layers)


def in_one_group(spec: ModelSpec, block_size: int, max_model_len: int) -> KVGroups:
    return one_group(spec)


@pytest.mark.parametrize("isa", ["reference", *NATIVE[:1]])
def test_layers_that_keep_only_their_window_say_the_same(
    isa: str, windowed: Path, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with one group of all layers, which keeps everything: chunked, preempted, swapped, from the cache."""
    monkeypatch.setenv("INFLIGHT_ISA", isa)
    cases = mix(seed=31, count=6 if isa == "reference" else 16)
    of_folders = {windowed: (0, 24, 24, 24, 24, 24), folders["mistral"]: (40,), folders["gemma4"]: (0, 40)}
    for folder, windows in of_folders.items():
        with monkeypatch.context() as patch:
            patch.setattr("inflight.build.engine.kv_groups", in_one_group)
            expected = alone(folder, cases)
        with opened(folder) as engine:
            assert engine.capacity.windows == windows
        for name in ("crumbs", "little memory") if isa == "reference" else WINDOWED_SHAPES:
            shape = WINDOWED_SHAPES[name]
            if "num_blocks" in shape and len(windows) < 6:
                shape = {**shape, "num_blocks": shape["num_blocks"] * len(windows) // 4}
            preemptions, cached = check(folder, cases, expected, **shape)
            assert (preemptions > 0) >= (name == "swap" and isa != "reference"), name
            assert (cached > 0) >= (name == "as it comes"), name


def test_no_kernel_reads_a_block_that_was_given_up(windowed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill free blocks with NaN."""
    monkeypatch.setenv("INFLIGHT_ISA", "reference")
    cases = mix(seed=32, count=5)
    expected = alone(windowed, cases, dtype="float32")
    submit, poisoned = ModelRunner.submit, 0

    def poison(runner: ModelRunner, plan: BatchPlan) -> Any:
        nonlocal poisoned
        pool = engine.loop._scheduler._memory._pool
        fresh = {
            block for chunk in plan.chunks for blocks in (chunk.new_blocks, *chunk.window_blocks) for block in blocks
        }
        free = sorted(set(pool._free) - fresh)
        runner._kv_cache.memory[free] = 0xFF  # type: ignore[attr-defined]
        poisoned += len(free)
        return submit(runner, plan)

    with opened(windowed, dtype="float32", enable_prefix_caching=False, **ODD_STEPS) as engine:
        monkeypatch.setattr(ModelRunner, "submit", poison)
        assert [answer(output) for output in run(engine, cases)] == expected
    assert poisoned


def test_a_prefix_is_found_where_every_window_behind_it_is_cached(windowed: Path) -> None:
    """The second of two equal prompts: blocks in the middle that were given up long ago do not matter."""
    prompt = tuple(range(100, 260))
    with opened(windowed, num_blocks=60, **ODD_STEPS) as engine:
        first, again = (
            run(engine, [Case(prompt, SamplingParams(max_tokens=4, temperature=0.0, logprobs=0), 0)])[0]
            for _ in range(2)
        )
    assert answer(first) == answer(again) and again.num_cached_tokens == 144
