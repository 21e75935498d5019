"""Attention of `--backend transformers` by a GPU's kernels: the logits of the library's modules."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from breadth import first_of

from inflight.execution.backends.torch.backend import TorchBackend
from inflight.execution.backends.torch.launcher import KernelLauncher
from inflight.execution.transformers import load

from ...test_transformers import RUN, saved


@pytest.mark.parametrize("name", first_of(["gpt_oss", "gemma2", "deepseek_v3"]))  # sinks, windows; caps; two widths
def test_a_trial(tmp_path: Path, device: torch.device, name: str) -> None:
    saved(tmp_path, *RUN[name])
    model = load(tmp_path, "float32", False, 0, str(device))
    backend = TorchBackend("float32", device, KernelLauncher())
    assert model.difference(backend) < 1e-4
