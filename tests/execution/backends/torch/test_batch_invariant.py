"""Engines over kernels whose bits do not depend on the batch: an answer alone, beside others, in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from breadth import first_of

pytest.importorskip("triton")
from adapters import write_adapter
from models import write_model

from inflight.build import build_engine
from inflight.config.engine import EngineSettings
from inflight.core.types.events import TokensEvent
from inflight.core.types.request import Request
from inflight.core.types.sampling import SamplingParams
from inflight.execution.backends.torch.backend import TorchBackend
from inflight.execution.backends.torch.launcher import KernelLauncher

from .opened import on_device
from .test_engine import opened

OWN = tuple(range(3, 15))
BESIDE = [(5, 9, 30), tuple(range(20, 40)), (7,), tuple(range(60, 69))]


def answer(
    folder: Path, device: torch.device, beside: int, names: Sequence[str | None] = (None,), **shape: Any
) -> list[tuple[int, float]]:
    """The first request's tokens, and the log-probability of each, where so many others run beside it. names: of
    adapters, which requests have in turns."""
    backend = TorchBackend("float32", device, KernelLauncher(), depth=2, batch_invariant=True)
    engine = opened(folder, backend, **shape)
    assert engine.settings["batch_invariant"].value is True
    params, said = SamplingParams(max_tokens=3, temperature=0.7, logprobs=1), []
    for place, prompt in enumerate([OWN, *BESIDE[:beside]]):
        adapter = engine.adapters.named(names[place % len(names)])
        engine.loop.add(
            Request(request_id=str(place), prompt_token_ids=prompt, params=params, seed=place, adapter=adapter)
        )
    while not engine.loop.idle:
        events = engine.loop.advance()
        assert isinstance(events, list)
        for event in events:
            if isinstance(event, TokensEvent) and event.request_id == "0":
                said += [(one.token_id, one.logprob) for one in event.logprobs or ()]
    return said


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Use one layer: Triton's interpreter takes seconds for a step."""
    return write_model(tmp_path_factory.mktemp("one layer"), num_hidden_layers=1)


@pytest.fixture(scope="module")
def alone(tiny: Path, device: torch.device) -> list[tuple[int, float]]:
    return answer(tiny, device, 0)


@pytest.mark.parametrize(
    ("beside", "shape"),
    first_of([(2, {"max_num_seqs": 3, "max_num_batched_tokens": 7}), (4, {})]),
    ids=["in pieces", "beside"],
)
def test_an_answer_has_the_same_bits(
    tiny: Path, device: torch.device, alone: list[tuple[int, float]], beside: int, shape: dict[str, Any]
) -> None:
    assert len(alone) == 3
    assert answer(tiny, device, beside, **shape) == alone


@pytest.mark.wide
def test_an_answer_has_the_same_bits_beside_any_adapters(
    tiny: Path, device: torch.device, alone: list[tuple[int, float]], tmp_path: Path
) -> None:
    """With an adapter of its own and with none."""
    for seed, (name, rank) in enumerate((("a", 4), ("b", 20))):
        write_adapter(tmp_path / name, tiny, seed, rank)
    lora = tuple(f"{name}={tmp_path / name}" for name in "ab")
    adapted = answer(tiny, device, 0, ("a",), lora=lora)
    assert adapted != alone
    assert answer(tiny, device, 2, (None, "b", "a"), lora=lora) == alone
    assert answer(tiny, device, 3, ("a", "b", None), lora=lora) == adapted


@pytest.mark.parametrize("isa", ["reference", "torch"])
@pytest.mark.parametrize("asked", [True, False])
def test_a_cpu_always_is_so(tiny: Path, asked: bool, isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFLIGHT_ISA", isa)
    engine = build_engine(EngineSettings(model=str(tiny), batch_invariant=asked))
    setting = engine.settings["batch_invariant"]
    assert setting.value is True and "a CPU's kernels" in setting.reason


def test_an_engine_that_is_not_so_says_why(tiny: Path) -> None:
    setting = opened(tiny, on_device()).settings["batch_invariant"]
    assert setting.value is False and ("PyTorch's products" in setting.reason or "cuBLAS's" in setting.reason)
