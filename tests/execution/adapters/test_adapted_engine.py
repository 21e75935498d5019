"""Engines whose requests have adapters: their tokens are those that each has alone, whatever is served beside it, and
files that cannot be loaded end their own requests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from adapters import write_adapter
from breadth import first_of
from models import write_model
from msgspec import structs

from inflight import LLM, SamplingParams
from inflight.build import build_engine
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.config.setting import SettingsError
from inflight.core.types.events import FinishedEvent, TokensEvent
from inflight.core.types.request import Request
from inflight.frontend.adapter_names import AdapterNameError
from inflight.models.errors import ModelError
from inflight.records.schema import of_kind, read_records
from inflight.simulate.replay import replay

NAMES = ("a", "b", "c", "d", "e")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("adapted")
    write_model(path / "model")
    for seed, name in enumerate(NAMES):
        write_adapter(path / name, path / "model", seed, rank=2 + seed)
    return path


def settings(folder: Path, slots: int, **given: Any) -> EngineSettings:
    lora = tuple(f"{name}={folder / name}" for name in NAMES)
    return EngineSettings(model=str(folder / "model"), lora=lora, max_loras=slots, **given)


def requests_of(engine: Any, count: int = 14) -> list[Request]:
    """Prompts with common beginnings, with every adapter and with none."""
    found = []
    for number in range(count):
        adapter = engine.adapters.named((None, *NAMES)[number % 6])
        prompt = tuple(range(40, 75 + number % 3))
        params = SamplingParams(temperature=number % 2, max_tokens=6 + number % 5, ignore_eos=True, n=1 + number % 2)
        found.append(
            Request(request_id=str(number), prompt_token_ids=prompt, params=params, seed=number, adapter=adapter)
        )
    return found


def answers(loop: Any, asked: list[Request]) -> dict[tuple[str, int], list[int]]:
    for request in asked:
        loop.add(structs.replace(request, arrival=loop.clock.now()))
    tokens: dict[tuple[str, int], list[int]] = {}
    for event in loop.run():
        if isinstance(event, TokensEvent):
            tokens.setdefault((event.request_id, event.sample_index), []).extend(event.token_ids)
        elif isinstance(event, FinishedEvent):
            assert all(finish.reason == "length" for finish in event.finishes), event
    return tokens


@pytest.mark.parametrize("strategy", ["static", "dynamic", "continuous", "chunked", "adaptive"])
@pytest.mark.parametrize("slots", first_of([2, 1, 5]))
def test_tokens_do_not_depend_on_who_is_served_beside(folder: Path, strategy: str, slots: int) -> None:
    """With fewer slots than adapters, preemption and a prefix cache that all share."""
    budget = {} if strategy in ("static", "dynamic") else {"max_num_batched_tokens": 40}
    given = settings(folder, slots, num_blocks=24, max_num_seqs=6, **budget)
    engine = build_engine(given, SchedulingSettings(strategy=strategy))
    asked = requests_of(engine)
    alone: dict[tuple[str, int], list[int]] = {}
    for request in asked:
        alone |= answers(engine.loop, [request])
    fresh = build_engine(given, SchedulingSettings(strategy=strategy))
    assert answers(fresh.loop, asked) == alone
    greedy = {tuple(tokens[:6]) for (name, _), tokens in alone.items() if int(name) % 2 == 0}
    assert len(greedy) == 3, "the model and two of its adapters answer alike"
    counts = fresh.loop.stats().adapters
    assert counts is not None and counts.slots == slots and counts.loads >= len(NAMES) and not counts.wanted
    assert sum(held for _, held in counts.held) == 0
    for one in (engine, fresh):
        one.loop.close()


def test_an_engine_over_pytorch_says_what_another_says(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Greedy ones: draws may fall between two logits that are nearly alike."""
    pytest.importorskip("torch")
    found = []
    for isa in ("reference", "torch"):
        monkeypatch.setenv("INFLIGHT_ISA", isa)
        engine = build_engine(settings(folder, 2, dtype="float32", num_blocks=100, max_num_seqs=6))
        found.append(answers(engine.loop, [one for one in requests_of(engine) if one.params.temperature == 0]))
        engine.loop.close()
    assert found[0] == found[1]


def test_an_adapter_does_not_find_what_another_has_computed(folder: Path) -> None:
    with LLM(str(folder / "model"), lora=(f"a={folder / 'a'}", f"b={folder / 'b'}")) as llm:
        prompt, params = {"prompt_token_ids": list(range(40, 90))}, SamplingParams(temperature=0, max_tokens=4)
        fresh = {}
        for adapter in (None, "a", "b"):
            (first,), (again,) = (llm.generate([prompt], params, adapter=adapter) for _ in range(2))
            assert first.timings.cached_tokens == 0 and again.timings.cached_tokens == 48
            assert first.outputs[0].token_ids == again.outputs[0].token_ids
            fresh[adapter] = tuple(first.outputs[0].token_ids)
        assert len(set(fresh.values())) == 3
        with pytest.raises(AdapterNameError, match=r"no adapter 'c'; there are a, b"):
            llm.generate([prompt], params, adapter="c")


def test_files_that_are_gone_end_their_requests_alone(folder: Path, tmp_path: Path) -> None:
    """Between the start, which looks at them, and the first request that needs them."""
    write_adapter(tmp_path / "gone", folder / "model", 7)
    given = replace(settings(folder, 2), lora=(f"gone={tmp_path / 'gone'}", f"a={folder / 'a'}"))
    engine = build_engine(given, record=tmp_path / "record.jsonl")
    (tmp_path / "gone" / "adapter_model.safetensors").unlink()
    plain = requests_of(engine, 3)
    asked = [
        structs.replace(plain[0], adapter=engine.adapters.named("gone")),
        structs.replace(plain[1], adapter=None),
        plain[2],
    ]
    for request in asked:
        engine.loop.add(request)
    ended = {event.request_id: event for event in engine.loop.run() if isinstance(event, FinishedEvent)}
    (finish,) = ended["0"].finishes
    assert finish.reason == "error" and "'gone' could not be loaded" in str(finish.detail)
    assert all(finish.reason == "length" for name in "12" for finish in ended[name].finishes)
    engine.loop.close()
    _, outcome = replay(list(read_records(tmp_path / "record.jsonl")))
    assert outcome.difference is None, outcome


def test_a_recorded_run_replays_to_the_same_plans(folder: Path, tmp_path: Path) -> None:
    engine = build_engine(settings(folder, 2, num_blocks=24, max_num_seqs=4), record=tmp_path / "record.jsonl")
    answers(engine.loop, requests_of(engine))
    engine.loop.close()
    records = list(read_records(tmp_path / "record.jsonl"))
    assert any(one.plan.adapter_loads for one in of_kind(records, "step"))
    _, outcome = replay(records)
    assert outcome.difference is None, outcome


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"lora": ("a",)}, "give NAME=PATH"),
        ({"lora": ("=x",)}, "give NAME=PATH"),
        ({"lora": ("a=x", "a=y")}, "names 'a' twice"),
        ({"max_loras": 0}, "--max-loras is 0"),
        ({"max_lora_rank": 8}, "no effect without"),
        ({"lora": ("a=x",), "max_lora_rank": 300}, "from 1 to 256"),
    ],
)
def test_settings_that_cannot_be_are_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SettingsError) as refusal:
        EngineSettings(**given)
    assert sentence in str(refusal.value)


def test_adapters_that_do_not_fit_are_refused_at_the_start(folder: Path, tmp_path: Path) -> None:
    wide = write_model(tmp_path / "wide", hidden_size=96)
    write_adapter(tmp_path / "of-wide", wide)
    with pytest.raises(ModelError, match=r"--lora x: .*this model's has 64: the adapter is of another model"):
        build_engine(EngineSettings(model=str(folder / "model"), lora=(f"x={tmp_path / 'of-wide'}",)))
    with pytest.raises(SettingsError, match=r"--lora a has rank 2, above --max-lora-rank 1"):
        build_engine(replace(settings(folder, 2), lora=(f"a={folder / 'a'}",), max_lora_rank=1))
    with pytest.raises(SettingsError, match="need one device"):
        build_engine(settings(folder, 2, tensor_parallel_size=2))
