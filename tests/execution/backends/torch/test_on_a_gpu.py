"""Engines on a GPU as users start them: kernels, graphs, two steps in flight, blocks that come and go beside the steps.

They say the tokens of the definition in float32. Without a GPU there is nothing to run; with one,
TRITON_INTERPRET=0 lets the kernels be compiled for it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from adapters import write_adapter
from models import write_model

from inflight.build import Engine, build_engine, drafting
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.core.types.events import TokensEvent
from inflight.core.types.request import Request
from inflight.core.types.sampling import SamplingParams
from inflight.execution.backends.reference import ReferenceBackend
from inflight.testing.eager_speculation import EagerSpeculation

from ...adapters.test_adapted_engine import NAMES, answers, requests_of, settings
from ...test_depth import SHAPES, Said, requests, run
from .test_engine import SCARCE, opened

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") != "0", reason="there is no GPU to run on"
)


def started(folder: Path, scheduling: dict[str, Any] | None = None, **shape: Any) -> Engine:
    settings = EngineSettings(model=str(folder), device="cuda", dtype="float32", **{"num_blocks": 400, **shape})
    return build_engine(settings, SchedulingSettings.of(**(scheduling or {})))


@pytest.fixture(scope="module")
def wanted(tiny: Path) -> Said:
    return run(opened(tiny, ReferenceBackend("float32")), requests(1))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("enforce_eager", [True, False])
def test_the_tokens_of_the_definition(tiny: Path, wanted: Said, enforce_eager: bool, shape: dict[str, Any]) -> None:
    engine = started(tiny, enforce_eager=enforce_eager, **shape)
    assert engine.settings["depth"].value == 2
    assert run(engine, requests(1)) == wanted


def test_blocks_are_swapped_beside_the_steps(tiny: Path, wanted: Said) -> None:
    assert run(started(tiny, {"preemption": "swap", "swap_space": 0.001}, **SCARCE), requests(1)) == wanted


def test_the_same_bits_in_any_company(tiny: Path) -> None:
    engine = started(tiny, batch_invariant=True)
    assert engine.settings["batch_invariant"].value is True
    together, alone = run(engine, requests(1)), {}
    for one in requests(1):
        alone |= run(engine, [one])
    assert alone == together


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The last adapter changes more than those before it: what was captured with them is captured anew."""
    path = tmp_path_factory.mktemp("adapted")
    write_model(path / "model")
    for seed, name in enumerate(NAMES):
        write_adapter(path / name, path / "model", seed, rank=20 if name == NAMES[-1] else 2 + seed)
    return path


@pytest.mark.parametrize(
    "given", [{"enforce_eager": True}, {}, {"batch_invariant": True}], ids=["eager", "graphs", "bits"]
)
def test_adapters_say_the_tokens_of_a_cpu(adapted: Path, given: dict[str, Any]) -> None:
    """Greedy ones: draws may fall between two logits that are nearly alike."""
    found = []
    for device in ({"device": "cpu"}, {"device": "cuda", **given}):
        engine = build_engine(settings(adapted, 2, dtype="float32", num_blocks=100, max_num_seqs=6, **device))
        asked = [one for one in requests_of(engine) if one.params.temperature == 0]
        found.append(answers(engine.loop, asked))
        engine.loop.close()
    assert found[0] == found[1]


def said_to_the_bit(engine: Engine) -> tuple[dict[str, list[Any]], int]:
    """Run texts that repeat themselves; return how many events there were, too."""
    for number in range(5):
        params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, logprobs=2)
        prompt = (3, 5, 8, 13)[number % 2 :] * (3 + number)
        engine.loop.add(Request(request_id=str(number), prompt_token_ids=prompt, params=params, seed=number))
    said: dict[str, list[Any]] = {}
    events = 0
    while not engine.loop.idle:
        for event in engine.loop.advance():
            if isinstance(event, TokensEvent):
                said.setdefault(event.request_id, []).extend(zip(event.token_ids, event.logprobs or (), strict=True))
                events += 1
    engine.loop.close()
    return said, events


@pytest.mark.parametrize("enforce_eager", [True, False])
def test_drafts_change_no_bit(tiny: Path, enforce_eager: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps in flight; with graphs, those of drafts are those of decodes."""
    monkeypatch.setattr(drafting, "make_speculation", lambda drafter, *_: EagerSpeculation(drafter, 7, holds=True))
    plain, drafted = (
        said_to_the_bit(started(tiny, {"speculation": one}, batch_invariant=True, enforce_eager=enforce_eager))
        for one in ("off", "suffix")
    )
    assert plain[0] == drafted[0]
    assert drafted[1] < 0.7 * plain[1], "drafts were right"


@pytest.mark.parametrize("draft", [False, True], ids=["rows", "drafts"])
def test_prompts_and_drafts_in_graphs_say_the_tokens_of_the_definition(tiny: Path, wanted: Said, draft: bool) -> None:
    """Whichever form of attention a chunk takes; drafts are a model's, which is the model itself."""
    scheduling = {"speculation": f"draft:{tiny}"} if draft else {}
    assert run(started(tiny, scheduling), requests(1)) == wanted
