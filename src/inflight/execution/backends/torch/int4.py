"""int4 on a device: plain numbers become codes by the rule of `backends.int4`, and codes are laid out two to a byte.

Knows whole groups of inputs; not where matrices come from. The rule is computed in float32, one operation at a time, so
that a device finds the very codes that the host would.
"""

from __future__ import annotations

import torch
from torch import Tensor

_SMALLEST = 2.0**-100  # as in `int4.py`: what is smaller counts as 0
_STEPS = torch.arange(7, 9.01, 0.125).tolist()


def quantize(rows: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """float32[N, K] → codes uint8[N, K filled up to whole groups], each 8 more than it means, and scales float32[N,
    groups]. As `int4.quantize`, whose steps these are."""
    count, columns = rows.shape
    values = torch.nn.functional.pad(rows, (0, -columns % group)).view(count, -1, group)
    magnitudes = values.abs()
    most = magnitudes.amax(dim=2)
    finite = values.isfinite().all(dim=2)
    used = finite & (most >= _SMALLEST)
    first = (magnitudes == most[..., None]).int().argmax(dim=2)
    largest = torch.where(used, values.gather(2, first[..., None])[..., 0], 1.0)
    units = torch.where(used[..., None], values * (torch.ones_like(largest) / largest)[..., None], 0.0)
    best, fitted, codes = torch.full_like(most, -1), torch.zeros_like(most), torch.zeros_like(units)
    for steps in _STEPS:
        tried = (units * -steps).round().clamp(-8, 7)
        products, squares = torch.zeros_like(most), torch.zeros_like(most)
        for k in range(group):
            products = products + units[..., k] * tried[..., k]
            squares = squares + tried[..., k] * tried[..., k]
        scale = products / squares.clamp(min=1)
        gain = products * scale  # by which the squared error is below that of all zeros
        better = gain > best
        best, fitted = torch.where(better, gain, best), torch.where(better, scale, fitted)
        codes = torch.where(better[..., None], tried, codes)
    scales = torch.where(used, fitted * largest, torch.where(finite, 0.0, torch.nan))
    return (codes + 8).to(torch.uint8).flatten(1), scales


def two_to_a_byte(codes: Tensor, group: int) -> Tensor:
    """uint8[N, K], of whole groups → uint8[N, K / 2]: the first half of a group in the low halves of its bytes."""
    halves = codes.view(len(codes), -1, 2, group // 2)
    return (halves[:, :, 0] | halves[:, :, 1] << 4).flatten(1)
