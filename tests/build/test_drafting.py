"""An engine with a model that drafts: built of settings, with the tokens of one without; and what is refused."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from models import write_model

from inflight.build import Engine, build_engine, drafting
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.config.setting import SettingsError
from inflight.core.types.events import TokensEvent
from inflight.core.types.plan import BatchPlan, StepResult
from inflight.core.types.request import Request
from inflight.core.types.sampling import SamplingParams
from inflight.engine.observers import EngineObserver
from inflight.models.errors import ModelError
from inflight.testing.eager_speculation import EagerSpeculation
from inflight.text import TokenizerError


class Steps(EngineObserver):
    """drafted: of all chunks that were to have drafts; accepted: of these."""

    def __init__(self) -> None:
        self.count = self.drafted = self.accepted = 0

    def step(self, plan: BatchPlan, result: StepResult, planned: float, committed: float) -> None:
        self.count += 1
        tokens = {one.sequence_id: len(one.token_ids) for one in result.sampled}
        for chunk in plan.chunks:
            if chunk.num_drafts:
                self.drafted += chunk.num_drafts
                self.accepted += tokens[chunk.sequence_id] - 1


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether drafts pay is not the question here."""
    monkeypatch.setattr(
        drafting, "make_speculation", lambda drafter, scheduling, *_: EagerSpeculation(drafter, scheduling.max_drafts)
    )


@dataclass(frozen=True)
class Run:
    engine: Engine
    steps: Steps
    said: dict[str, list[int]]


def engine(model: Path, speculation: str = "off", swap_space: float | None = None, **settings: Any) -> Engine:
    scheduling = SchedulingSettings(
        speculation=speculation, swap_space=swap_space, preemption="recompute" if swap_space is None else "swap"
    )
    given = EngineSettings(model=str(model), dtype="float32", max_num_seqs=4, **settings)
    return build_engine(given, scheduling)


def run(built: Engine) -> Run:
    steps, said = Steps(), dict[str, list[int]]()
    built.loop.add_observer(steps)
    for number in range(6):
        params = SamplingParams(max_tokens=60, temperature=0.8 * (number % 2), ignore_eos=True)
        prompt = tuple(range(30 + number, 60 + 2 * number))
        built.loop.add(Request(request_id=str(number), prompt_token_ids=prompt, params=params, seed=number))
    for event in built.loop.run():
        if isinstance(event, TokensEvent):
            said.setdefault(event.request_id, []).extend(event.token_ids)
    return Run(built, steps, said)


@pytest.mark.parametrize("swap_space", [None, 0.01])
def test_tokens_are_those_of_an_engine_without(tiny: Path, swap_space: float | None) -> None:
    plain = run(engine(tiny, swap_space=swap_space, num_blocks=14))
    drafted = run(engine(tiny, f"draft:{tiny}", swap_space=swap_space, num_blocks=14))
    assert drafted.said == plain.said and drafted.engine.loop.stats().preemptions > 0
    assert drafted.steps.drafted == drafted.steps.accepted > 50 and drafted.steps.count < plain.steps.count


def test_memory_and_source_are_shown(tiny: Path) -> None:
    plain, drafted = engine(tiny, num_blocks=14), engine(tiny, f"draft:{tiny}", num_blocks=14)
    assert "(112.0 KiB of it for drafts)" in drafted.settings["num_blocks"].reason
    assert "drafts" not in plain.settings["num_blocks"].reason
    resolved = drafted.settings["speculation"]
    assert resolved.value == f"draft:{tiny}" and "0.1 M parameters" in resolved.reason


def test_a_gguf_file_drafts(tiny: Path, tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    from gguf_files import convert

    path = convert(tiny, tmp_path / "draft.gguf", "llama")
    drafted = run(engine(tiny, f"draft:{path}"))
    assert drafted.said == run(engine(tiny)).said
    assert drafted.steps.accepted > 0.95 * drafted.steps.drafted > 50


def test_other_tokens_are_refused(tiny: Path, tmp_path: Path) -> None:
    path = write_model(tmp_path / "other", "llama") / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"] = dict(zip(vocabulary, reversed(vocabulary.values()), strict=True))
    path.write_text(json.dumps(tokenizer))
    asked = f"draft:{path.parent}"
    with pytest.raises(ModelError, match=r"of the 36\d tokens of .* have the same ids in the draft model other"):
        engine(tiny, asked)
    path.write_text("{}")
    with pytest.raises(TokenizerError, match="other"):
        engine(tiny, asked)
    path.unlink()  # ids are all there is
    assert engine(tiny, asked).settings["speculation"].value == asked


def test_what_does_not_fit_is_refused(tiny: Path, tmp_path: Path) -> None:
    larger = write_model(tmp_path / "larger", "qwen2", vocab_size=400)
    with pytest.raises(ModelError, match="draft model larger has a vocabulary of 400 tokens"):
        engine(tiny, f"draft:{larger}")
    with pytest.raises(ModelError, match="nowhere does not exist"):
        engine(tiny, f"draft:{tmp_path / 'nowhere'}")
    with pytest.raises(ModelError, match=r"of it for drafts\), but only .* are free; lower --kv-memory"):
        engine(tiny, f"draft:{tiny}", num_blocks=10**9)
    with pytest.raises(SettingsError, match="recurrent state"):
        engine(write_model(tmp_path / "state", "qwen3_5"), f"draft:{tiny}")
