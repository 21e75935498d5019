"""Which operations are asked for in the form whose bits do not depend on the batch."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from inflight.execution.backends.torch import kernels
from inflight.execution.backends.torch.invariant import InvariantOperations
from inflight.execution.backends.torch.weights import DeviceLinear, PlainMatrix


def test_those_that_have_such_a_form_are_called_in_it() -> None:
    module = ModuleType("operations")

    def product(x: int, *, invariant: bool = False) -> tuple[int, bool]:
        return x, invariant

    module.__dict__.update(__all__=["product", "norm"], product=product, norm=abs, hidden=abs)
    operations = InvariantOperations(module)
    assert operations.product(3) == (3, True) and operations.norm(-3) == 3
    assert not hasattr(operations, "hidden")


@pytest.mark.parametrize("rows", [2, 40])
def test_a_kernels_bits_do_not_depend_on_the_rows_beside(rows: int, device: torch.device) -> None:
    random = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 96, generator=random).to(device)
    weight = DeviceLinear((PlainMatrix(torch.randn(32, 96, generator=random).to(device)),), 32, 96, 0)
    together, alone = (torch.empty(count, 32, device=device) for count in (rows, 1))
    operations = InvariantOperations(kernels)
    operations.linear(x, weight, together)
    operations.linear(x[rows - 1 :], weight, alone)
    assert torch.equal(together[rows - 1 :], alone)
