"""An engine on a GPU with nothing set: defaults follow the device, and options come before them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from inflight.build import Engine
from inflight.build import engine as building
from inflight.config.setting import Resolved
from inflight.core.strategies import StepView
from inflight.core.strategies.chunked import EARLY_END

from .opened import on_cpu
from .test_engine import opened


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Says where engines compute. The CPU does it for a GPU."""
    return lambda name: monkeypatch.setattr(building, "resolve_device", lambda settings: Resolved(name, "for a test"))


def early_end(engine: Engine) -> tuple[int, int]:
    """Return the reported value, and that of the steps."""
    scheduler: Any = engine.loop._scheduler
    view = StepView(0.0, scheduler._lanes, 0, lambda: (0, 0), 1, None)
    return engine.settings["early_end_tokens"].value, scheduler._strategy.shape(view).early_end


def test_steps_of_a_gpu_are_large_and_no_prompt_ends_them(tiny: Path, device: Any) -> None:
    found = []
    for name in ("cpu", "cuda:0"):
        device(name)
        engine = opened(tiny, on_cpu(depth=2), device="auto", enforce_eager=name != "cpu")
        names = ("max_num_seqs", "max_num_batched_tokens", "depth")
        found.append((*(engine.settings[one].value for one in names), *early_end(engine)))
    assert found == [(32, 160, 2, EARLY_END, EARLY_END), (256, 2304, 2, 0, 0)]
    assert "a step of few tokens takes about as long" in engine.settings["early_end_tokens"].reason


def test_what_is_set_holds_on_a_gpu_too(tiny: Path, device: Any) -> None:
    device("cuda:0")
    shape: dict[str, Any] = {"device": "auto", "max_num_seqs": 8, "max_num_batched_tokens": 64, "enforce_eager": True}
    engine = opened(tiny, on_cpu(depth=2), {"early_end_tokens": 7}, **shape)
    assert early_end(engine) == (7, 7)
    assert [engine.settings[one].value for one in ("max_num_seqs", "max_num_batched_tokens")] == [8, 64]
