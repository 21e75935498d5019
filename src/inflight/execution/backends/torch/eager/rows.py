"""Numbers one by one and row by row: tokens looked up, norms, activation functions, sums, gates.

Knows the formulas of norms (`reference.norms` names their sources) and no tokens but those looked up.
Everything is float32 until it is written to `out`, which rounds to its own format.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from inflight.execution.backends.protocol import Nonlinearity
from inflight.execution.backends.torch.eager.functions import activated, times_sigmoid
from inflight.execution.backends.torch.eager.products import widened
from inflight.execution.backends.torch.weights import DeviceTable, GroupedMatrix, PlainMatrix


def embed(table: DeviceTable, token_ids: Tensor, out: Tensor) -> None:
    """token_ids int32[T] → out float32[T, E]."""
    matrix = table.matrix
    if isinstance(matrix, PlainMatrix):
        out.copy_(matrix.values[token_ids])
    elif isinstance(matrix, GroupedMatrix):
        offsets = None if matrix.offsets is None else matrix.offsets[token_ids]
        rows = replace(matrix, codes=matrix.codes[token_ids], scales=matrix.scales[token_ids], offsets=offsets)
        out.copy_(widened(rows, out.shape[1], torch.float32))
    else:
        scales = matrix.scales[:, None] if table.share_scales is None else table.share_scales
        shares = matrix.codes[token_ids].float().view(len(token_ids), scales.shape[1], out.shape[1] // scales.shape[1])
        out.copy_((shares * scales[token_ids, :, None]).flatten(1))


def add_rows(table: DeviceTable, rows: Tensor, out: Tensor) -> None:
    """rows int32[T] of a table of plain numbers are added to out float32[T, E]."""
    assert isinstance(table.matrix, PlainMatrix), "packed as rows"
    out += table.matrix.values[rows.long()]


def mean(x: Tensor, ranges: Sequence[range], out: Tensor) -> None:
    """Means of these rows of x float32[T, E] → out float32[S, E], each by itself."""
    for row, text in enumerate(ranges):
        out[row] = x[text.start : text.stop].mean(dim=0, dtype=torch.float64)


def rms_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
    """x float32[S, E], weight float32[E] → out act[S, E]."""
    out.copy_(parts_normed(x, weight, eps))


def parts_normed(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """x float32[…] → the RMS norm of every len(weight) neighbouring numbers by themselves; x where there is no weight.
    [T, heads, D] is so normed by head, or all heads of a token at once."""
    if weight is None:
        return x
    parts = x.reshape(x.numel() // len(weight), len(weight))
    mean = parts.square().mean(dim=1, keepdim=True)
    return (parts / torch.sqrt(mean + eps) * weight).reshape(x.shape)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, out: Tensor) -> None:
    """x float32[S, E], weight and bias float32[E] → out act[S, E]. Summed in float64, as the definition is."""
    centred = x - x.mean(dim=1, keepdim=True, dtype=torch.float64).float()
    variance = centred.double().square().mean(dim=1, keepdim=True).float()
    normed = centred / torch.sqrt(variance + eps) * weight
    out.copy_(normed if bias is None else normed + bias)


def layer_norm_sum(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, out: Tensor) -> None:
    """x float32[S, E] becomes its layer norm, of which out act[S, E] has the same numbers."""
    layer_norm(x, weight, bias, eps, x)
    out.copy_(x)


def add(x: Tensor, norm: Tensor | None, eps: float, factor: float, out: Tensor) -> None:
    """x float32[S, E], normed as a whole or in equal parts where there is a weight for that, times factor, is added to
    out float32[S, E]."""
    out += factor * parts_normed(x, norm, eps)


def activate(x: Tensor, activation: Nonlinearity, parameters: Tensor | None, by: Tensor | None, out: Tensor) -> None:
    """x float32[S, F] → out act[S, F], times `by` float32[S, F] where that is given."""
    found = activated(x, activation, parameters)
    out.copy_(found if by is None else found * by)


def add_gated(x: Tensor, gate: Tensor, out: Tensor) -> None:
    """x float32[T, E] times the sigmoid of gate float32[T, 1] is added to out float32[T, E]."""
    out += times_sigmoid(x, gate)


def gate(gate: Tensor, x: Tensor) -> None:
    """x act[S, N] is multiplied by the sigmoid of gate float32[S, N]."""
    x.copy_(x.float() * torch.sigmoid(gate))
