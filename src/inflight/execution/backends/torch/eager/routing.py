"""Routing in PyTorch's own operations: tokens' logits → their experts and weights (`protocol.Routing` has the rules).

Knows rows of logits, and nothing of what an expert is. No value is read on the host.
"""

from __future__ import annotations

import torch
from torch import Tensor

from inflight.execution.backends.torch.weights import RoutingTensors

_MIN_SUM = 1e-20  # of sigmoids, which may all vanish
_NEVER = float("-inf")


def route(logits: Tensor, routing: RoutingTensors) -> tuple[Tensor, Tensor]:
    """float32[T, X] → numbers of experts int64[T, top_k] in order of rank, and their weights float32[T, top_k]."""
    if routing.scores == "sparsemixer":
        return _sparsely_mixed(logits, routing)
    scores = torch.softmax(logits, dim=1) if routing.scores == "softmax" else 1 / (1 + torch.exp(-logits))
    values = scores if routing.correction is None else scores + routing.correction
    values = torch.where(values.isnan(), _NEVER, values)
    if routing.groups > 1:
        values = torch.where(_in_best_groups(values, routing), values, _NEVER)
    picked = _largest(values, routing.top_k)
    weights = scores.gather(1, picked)
    if routing.renormalize:
        sums = weights.sum(dim=1, keepdim=True) + routing.sum_offset
        weights = weights / torch.clamp(sums, min=_MIN_SUM)
    if routing.expert_scale is not None:
        return picked, weights * (routing.scale * routing.expert_scale[picked])
    return picked, weights * routing.scale


def _sparsely_mixed(logits: Tensor, routing: RoutingTensors) -> tuple[Tensor, Tensor]:
    """One expert after the other, weighed among those left whose logits are near its own."""
    picked = _largest(torch.where(logits.isnan(), _NEVER, logits), routing.top_k)
    left, weights = logits.clone(), []
    for rank in range(routing.top_k):
        expert = picked[:, rank : rank + 1]
        most = left.gather(1, expert)
        is_far = (most - logits) / torch.maximum(logits.abs(), most) > 2 * routing.jitter
        weights.append(routing.scale / torch.exp(torch.where(is_far, _NEVER, left) - most).sum(dim=1))
        left.scatter_(1, expert, _NEVER)
    return picked, torch.stack(weights, dim=1)


def _largest(values: Tensor, count: int) -> Tensor:
    """Numbers of each row's largest values, on a tie the lower number first."""
    return torch.sort(values, dim=1, descending=True, stable=True).indices[:, :count]


def _in_best_groups(values: Tensor, routing: RoutingTensors) -> Tensor:
    """Whether each expert is of one of its token's best groups, bool[T, X]."""
    groups = values.view(len(values), routing.groups, -1)
    most = min(routing.group_best, groups.shape[2])
    best = torch.sort(groups, dim=2, descending=True).values[..., :most].sum(dim=2)
    taken = torch.zeros_like(best, dtype=torch.bool).scatter_(1, _largest(best, routing.top_groups), True)
    return taken.repeat_interleave(groups.shape[2], dim=1)
