"""The files of a decode step on a GPU are those that the page lists; Triton interprets kernels here, as Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from models import write_model

from inflight import LLM
from inflight.execution import computing
from inflight.execution.backends.torch.backend import TorchBackend

from ...test_decode_path import PACKAGE, lines, listed, passed

triton = pytest.importorskip("triton")
from inflight.execution.backends.torch.launcher import KernelLauncher  # noqa: E402

MAX_FILES, MAX_LINES = 38, 5760


@pytest.mark.wide
@pytest.mark.skipif(not triton.knobs.runtime.interpret, reason="kernels are compiled")
def test_a_decode_step_on_a_gpu_passes_the_files_that_the_page_lists(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    backend = TorchBackend("float32", torch.device("cpu"), KernelLauncher())
    monkeypatch.setattr(computing, "open_backend", lambda *given, **named: backend)
    model = str(write_model(tmp_path / "model", "llama"))
    sizes: dict[str, Any] = {"num_blocks": 16, "max_model_len": 64, "speculation": "off", "device": "cpu"}
    called = passed(lambda: LLM(model, **sizes), {"prompt_token_ids": [1, 2, 3]}, monkeypatch)
    path = listed("A decode step on a GPU passes", "hold the three tables")
    assert called == set(path)
    assert len(path) <= MAX_FILES
    assert lines([PACKAGE / one for one in path]) <= MAX_LINES
