"""A mixture of experts in PyTorch's own operations (Shazeer et al., arXiv 1701.06538).

Knows what the experts that tokens are routed to yield, and how it is added up; which they are is known to `routing`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from inflight.execution.backends.torch.eager.functions import gated
from inflight.execution.backends.torch.eager.products import one_of, product
from inflight.execution.backends.torch.eager.routing import route
from inflight.execution.backends.torch.weights import DeviceExperts, HeldMatrix


def experts(x: Tensor, logits: Tensor, weight: DeviceExperts, out: Tensor) -> None:
    """x act[T, E], logits float32[T, X] → out float32[T, E] plus, in order of rank, the sum of weight · expert(x).

    Reads on the host which experts are met: a graph cannot be captured of it."""
    picked, weights = route(logits, weight.routing)
    yielded = torch.empty(*picked.shape, x.shape[1], dtype=torch.float32, device=x.device)
    for expert in torch.unique(picked).tolist():
        tokens, ranks = torch.nonzero(picked == expert, as_tuple=True)
        both = _biased(x[tokens], weight.gate_up, weight.gate_up_bias, expert)
        inner = gated(both, weight.gating).to(x.dtype)
        yielded[tokens, ranks] = _biased(inner, weight.down, weight.down_bias, expert)
    total = torch.zeros_like(out)
    for rank in range(weight.routing.top_k):
        total += weights[:, rank, None] * yielded[:, rank]
    out += total


def _biased(x: Tensor, stack: HeldMatrix, biases: Tensor | None, expert: int) -> Tensor:
    """x act[S, K] by one expert's matrix [N, K] → float32[S, N]."""
    found = product(x, one_of(stack, expert))
    return found if biases is None else found + biases[expert]
