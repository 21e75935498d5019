"""Quantizes plain numbers on a device: to int8, fp8 and int4, by the rules of `backends.int8`, `fp8` and `int4`.

The rules are computed in float32, one operation at a time, so that a device finds the codes that the host would.
"""

from __future__ import annotations

import torch
from torch import Tensor

_SMALLEST = 2.0**-100  # a smaller number counts as 0
_LARGEST_FP8 = 448.0  # of float8_e4m3fn
_STEPS = torch.arange(14, 16.01, 0.25).tolist()


def quantize_int8(x: Tensor) -> tuple[Tensor, Tensor]:
    """float32[S, K] → int8[S, K] and float32[S], each row by the rule of `int8.quantize`."""
    largest, used, scaled = _scaled(x, 127.0)
    return torch.where(used, torch.round(scaled), 0.0).to(torch.int8), _scales(largest, 127.0)


def quantize_fp8(x: Tensor) -> tuple[Tensor, Tensor]:
    """float32[S, K] → float8_e4m3fn[S, K] and float32[S], each row by the rule of `fp8.quantize`."""
    largest, used, scaled = _scaled(x, _LARGEST_FP8)
    codes = torch.where(used, scaled.clamp(-_LARGEST_FP8, _LARGEST_FP8), 0.0)
    return codes.to(torch.float8_e4m3fn), _scales(largest, _LARGEST_FP8)


def _scaled(x: Tensor, largest_code: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the largest magnitude of each row, whether it can be scaled, and its numbers times largest_code / that,
    rounded once: PyTorch multiplies a number of Python's with 1 / the magnitude."""
    rows = x.float()
    largest = rows.abs().amax(dim=1)
    used = torch.isfinite(largest) & (largest >= _SMALLEST)
    safe = torch.where(used, largest, 1.0)
    return largest, used[:, None], rows * (torch.full_like(safe, largest_code) / safe)[:, None]


def _scales(largest: Tensor, largest_code: float) -> Tensor:
    """Return scales of rows with these largest magnitudes: 0 where all is (nearly) 0, NaN where one is not finite."""
    scales = torch.where(largest >= _SMALLEST, largest / largest_code, 0.0)
    return torch.where(torch.isfinite(largest), scales, torch.nan)


def quantize_int4(rows: Tensor, group: int) -> tuple[Tensor, Tensor, Tensor]:
    """float32[N, K] → codes uint8[N, K filled up to whole groups], each 8 more than it means, scales and offsets
    float32[N, groups]. As `int4.quantize`, whose steps these are."""
    whole = rows.shape[1] // group * group
    parts = [rows[:, :whole].view(len(rows), -1, group), rows[:, None, whole:]]
    codes, scales, offsets = zip(*(_quantized(part) for part in parts if part.numel()), strict=True)
    filled = torch.nn.functional.pad(torch.cat(codes, dim=1), (0, -rows.shape[1] % group))
    return filled, torch.cat(scales, dim=1), torch.cat(offsets, dim=1)


def _quantized(values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """float32[N, groups, inputs] → codes uint8[N, groups · inputs], scales and offsets float32[N, groups]."""
    count = values.shape[2]
    least = values.amin(dim=2) + 0.0  # never -0
    width = values.amax(dim=2) - least
    finite = values.isfinite().all(dim=2) & width.isfinite()
    used = finite & (width >= _SMALLEST)
    inverse = torch.ones_like(width) / torch.where(used, width, 1.0)
    units = torch.where(used[..., None], (values - least[..., None]) * inverse[..., None], 0.0)
    total = _sum(units)
    best, slope, centre = torch.full_like(least, -1), torch.zeros_like(least), torch.zeros_like(least)
    codes = torch.zeros_like(units)
    for steps in _STEPS:
        tried = (units * steps).round().clamp(max=15) - 8
        together, squares, products = _sum(tried), _sum(tried * tried), _sum(units * tried)
        common = count * products - total * together
        fitted = common / (count * squares - together * together).clamp(min=1)
        gain = fitted * common  # by which the squared error is below that of the mean, times the inputs
        better = gain > best
        best, slope = torch.where(better, gain, best), torch.where(better, fitted, slope)
        centre = torch.where(better, (total - fitted * together) / count, centre)
        codes = torch.where(better[..., None], tried, codes)
    scales = torch.where(used, slope * width, torch.where(finite, 0.0, torch.nan))
    offsets = torch.where(finite, least + torch.where(used, centre * width, 0.0), 0.0)
    return (codes + 8).to(torch.uint8).flatten(1), scales, offsets


def _sum(values: Tensor) -> Tensor:
    """Sum along the last dimension in rising order."""
    found = torch.zeros_like(values[..., 0])
    for k in range(values.shape[-1]):
        found = found + values[..., k]
    return found


def two_to_a_byte(codes: Tensor, group: int) -> Tensor:
    """uint8[N, K], of whole groups → uint8[N, K / 2]: the first half of a group in the low halves of its bytes."""
    halves = codes.view(len(codes), -1, 2, group // 2)
    return (halves[:, :, 0] | halves[:, :, 1] << 4).flatten(1)
