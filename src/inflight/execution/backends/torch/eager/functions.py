"""Functions of numbers, one by one, in PyTorch's own operations: float32 tensors → float32 tensors.

Knows formulas (`reference.functions` names their sources), and no weights, tokens or rounding to `act`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from inflight.execution.backends.protocol import Gating, Nonlinearity


def activated(x: Tensor, activation: Nonlinearity, parameters: Tensor | None = None) -> Tensor:
    """Apply the function of that name (`protocol.Nonlinearity`) to float32 numbers. parameters: float32[2], of
    xielu."""
    if activation == "silu":
        return times_sigmoid(x, x)
    if activation == "gelu_tanh":
        return times_sigmoid(x, 2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
    if activation == "gelu":
        return 0.5 * x * (1 + torch.erf(x * math.sqrt(0.5)))
    if activation == "relu":
        return x.clamp(min=0)
    if activation == "tanh":
        return x.tanh()
    if activation == "relu2":
        return x.clamp(min=0).square()
    assert parameters is not None
    above, below = parameters
    return torch.where(x > 0, above * x * x, below * (torch.expm1(x.clamp(max=-1e-6)) - x)) + 0.5 * x


def times_sigmoid(x: Tensor, y: Tensor) -> Tensor:
    """x · sigmoid(y), rounded once less than the product would be."""
    return x / (1 + torch.exp(-y))


def gated(both: Tensor, gating: Gating | Nonlinearity) -> Tensor:
    """float32[S, 2 · F], the gates first → float32[S, F] = activation(gate) · up; `Gating` has the formulas."""
    gate, up = both.chunk(2, dim=1)
    if gating != "clamped_swiglu":
        return activated(gate, gating) * up
    gate, up = gate.clamp(max=7), up.clamp(-7, 7)
    return times_sigmoid(gate, 1.702 * gate) * (up + 1)
