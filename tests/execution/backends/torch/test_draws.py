"""The program that counts how many draws of a device are the CPU's, and what it takes for a tie."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks import draws
from inflight.execution.backends.torch.definitions import Definitions
from inflight.execution.backends.torch.sampling_tensors import Drawn, Draws

CPU = torch.device("cpu")
sample = Definitions().sample


@pytest.mark.parametrize("kind", draws.KINDS, ids=lambda kind: kind.name)
def test_draws_are_the_kernels_of_the_cpus(kind: draws.Kind) -> None:
    """A few of the million that the program counts."""
    found = draws.agreement(sample, CPU, kind, 1280, 300)
    assert found.draws == 1280 and found.is_kept


def test_what_counts_as_a_tie() -> None:
    """A draw of exactly a quarter falls between tokens 0 and 1 of four alike; so does where top-p of a half ends."""
    alike, kind = np.zeros(4, np.float32), draws.Kind("")
    assert [draws.is_tie(alike, kind, 0.25, token) for token in range(4)] == [True, True, False, False]
    half = kind._replace(top_p=0.5)
    assert [draws.is_tie(alike, half, 0.9, token) for token in range(4)] == [False, True, True, False]
    assert not draws.is_tie(alike, kind._replace(temperature=0.0), 0.25, 1)


def test_other_draws_are_noticed() -> None:
    def likeliest(logits: torch.Tensor, of: Draws) -> Drawn:
        settings = of.settings._replace(temperature=torch.zeros_like(of.settings.temperature))
        return sample(logits, of._replace(settings=settings))

    assert not draws.agreement(likeliest, CPU, draws.KINDS[1], 256, 300).is_kept
