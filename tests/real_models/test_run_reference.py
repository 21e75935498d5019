"""Weights that are moved off the grid of their file: how far, and that four bits do not find the grid again."""

from __future__ import annotations

import numpy as np
import pytest

from inflight.execution.backends import int4

torch = pytest.importorskip("torch")

from benchmarks.real_models.run_reference import spread  # noqa: E402


def test_weights_are_moved_within_their_step() -> None:
    codes = np.random.default_rng(1).integers(0, 16, (8, 64)).astype(np.float32)
    scales = np.repeat(np.geomspace(0.01, 1, 16, dtype=np.float32), 32).reshape(8, 64)
    model = torch.nn.ModuleDict({"up_proj": torch.nn.Linear(64, 8, bias=False), "norm": torch.nn.LayerNorm(64)})
    grid, norm = codes * scales - 5 * scales, model["norm"].weight.detach().clone()
    model["up_proj"].weight.data = torch.from_numpy(grid.copy())
    spread(model)
    moved = model["up_proj"].weight.detach().numpy()
    steps = np.abs(moved - grid) / scales
    assert steps.max() < 0.55 and 0.2 < steps.mean() < 0.3  # rounded to bf16 in the end
    assert torch.equal(model["norm"].weight, norm)
    errors = [np.abs(int4.quantize(one, 32).dequantized() - one).mean() for one in (grid, moved)]
    assert errors[0] < 1e-6 < 1e-3 < errors[1]
