"""Adds adapters to a product (LoRA, https://arxiv.org/abs/2106.09685), in PyTorch's own operations: one adapter
after the other, part by part.

Knows what is rounded where, and which rows meet which matrices; not what becomes of the sums.
"""

from __future__ import annotations

import torch
from torch import Tensor

from inflight.execution.backends.torch.adapted_matrix import TILE, AdaptedMatrix, AdapterRows
from inflight.execution.backends.torch.eager.products import multiply


def add_low_rank(x: Tensor, adapted: AdaptedMatrix, rows: AdapterRows, out: Tensor) -> None:
    """x act[T, K] → out float32[T, N] plus act(x · downᵀ) · upᵀ of each part of a row's adapter, to the part's outputs.

    Reads on the host which slots there are: a graph cannot be captured of it."""
    places = rows.rows.view(-1, TILE)
    for slot in torch.unique(rows.slots[rows.slots > 0]).tolist():
        numbers = places[rows.slots == slot]
        at = numbers[numbers > 0].long() - 1
        for part in adapted.parts(slot - 1):
            inner = _product(x[at], part.down).to(x.dtype)
            out[at, part.first : part.first + len(part.up)] += _product(inner, part.up)


def _product(x: Tensor, values: Tensor) -> Tensor:
    found = torch.empty(len(x), len(values), dtype=torch.float32, device=x.device)
    multiply(x, values, found, False)
    return found
