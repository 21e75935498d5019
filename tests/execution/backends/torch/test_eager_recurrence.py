"""Operations on states in PyTorch's own, against numpy: numbers, states left behind, snapshots."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from inflight.execution.backends.protocol import LayerState
from inflight.execution.backends.reference import ReferenceBackend
from inflight.execution.backends.torch.eager import recurrence

from ..material import OnArrays
from ..recurrent import HEADS, WIDE, Layer, numbers
from .recurrent_tensors import TensorLayer

CASES = [("convolve", WIDE), ("convolve_gated", WIDE), *(("delta", one) for one in HEADS)]


@pytest.mark.parametrize(("operation", "state"), CASES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_as_numpy_has_it(operation: str, state: LayerState, dtype: str) -> None:
    """Chunks side by side, one that goes on, snapshots inside it, and two that begin from those."""
    ours = TensorLayer(recurrence, state, getattr(torch, dtype))
    theirs = Layer(OnArrays(ReferenceBackend(dtype)), state)  # type: ignore[arg-type]
    steps = [
        ([(3, 0, 9), (0, 0, 1), (5, 0, 2), (2, 0, 20)], None),
        ([(2, 20, 12), (0, 1, 1), (5, 2, 19)], [[(21, 2), (28, 0), (32, 2)], [], [(4, 1)]]),
        ([(1, 28, 4), (4, 4, 5), (3, 32, 7)], None),
    ]
    for at, (runs, snapshots) in enumerate(steps):
        x = numbers(state, operation, 10 + at, sum(count for _, _, count in runs))
        more = {} if snapshots is None else {"snapshots": snapshots}
        found, expected = (getattr(one, operation)(runs, x, **more) for one in (ours, theirs))
        assert np.abs(found - expected).max() <= np.abs(expected).max() * (1e-5 if dtype == "float32" else 1e-2)
        if at == 1:
            for row, slot in ((1, 0), (4, 1), (3, 2)):
                ours.begin(row, slot)
                theirs.cache.begin(row, slot)


def test_a_bias_may_be_missing() -> None:
    x = numbers(WIDE, "convolve_gated", 1, 6)
    ours, theirs = TensorLayer(recurrence, WIDE, torch.float32), Layer(OnArrays(ReferenceBackend("float32")), WIDE)
    found, expected = (one.convolve_gated([(0, 0, 6)], x, bias=False) for one in (ours, theirs))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
