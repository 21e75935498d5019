"""Functions of tiles, which kernels call, against numpy and PyTorch: over all that they are for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from inflight.execution.backends import int8
from inflight.execution.backends.torch.kernels import functions
from inflight.execution.backends.torch.kernels.functions import e4m3_bits, nearest, quantized

from ..material import normal


@triton.jit
def _apply(x, out, FUNCTION: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if FUNCTION == "nearest":
        found = nearest(tl.load(x + at))
    elif FUNCTION == "expm1":
        found = functions.expm1(tl.load(x + at))
    else:
        found = e4m3_bits(tl.load(x + at))
    tl.store(out + at, found)


@triton.jit
def _quantize(x, codes, scales, WIDTH: tl.constexpr):
    at = tl.arange(0, 4)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    found, of_rows = quantized(tl.load(x + at), 127.0)
    tl.store(codes + at, nearest(found).to(tl.int8))
    tl.store(scales + tl.arange(0, 4), of_rows)


def applied(device: torch.device, function: str, x: torch.Tensor, kind: torch.dtype = torch.float32) -> torch.Tensor:
    filled = torch.nn.functional.pad(x, (0, -len(x) % 4096)).to(device)
    out = torch.empty(len(filled), dtype=kind, device=device)
    _apply[(len(filled) // 4096,)](filled, out, function, 4096)
    return out[: len(x)].cpu()


def test_nearest_goes_to_even_on_a_tie(device: torch.device) -> None:
    x = torch.cat([torch.arange(-255, 256) / 2, torch.from_numpy(normal(1, 1000)) * 60, torch.tensor([2.0**22, 0.5])])
    assert torch.equal(applied(device, "nearest", x.float()), x.float().round())


def test_bits_of_e4m3(device: torch.device) -> None:
    """All numbers that the format has, all halves of the way between two, next to these, and any."""
    own = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    halves = (own[1:] + own[:-1]) / 2
    beside = [torch.nextafter(halves, torch.tensor(to)) for to in (0.0, 1000.0)]
    x = torch.cat([own, halves, *beside, torch.from_numpy(normal(1, 3000)) * 2, torch.tensor([1e-30])]).float()
    x = torch.cat([x, -x])
    assert torch.equal(applied(device, "e4m3", x, torch.uint8), x.to(torch.float8_e4m3fn).view(torch.uint8))


def test_expm1_keeps_its_digits(device: torch.device) -> None:
    x = -torch.logspace(-8, 2, 4000)
    want = torch.expm1(x.double()).float()
    torch.testing.assert_close(applied(device, "expm1", x), want, rtol=4e-7, atol=0)


@pytest.mark.parametrize("width", [16, 256])
def test_quantized_by_the_rule(device: torch.device, width: int) -> None:
    for seed in range(5):
        x = 3 * normal(seed, 4, width)
        x[1, 3], x[2] = (np.nan, -np.inf, np.inf, 1e38, 0)[seed], 2.0**-101
        codes, scales = (torch.empty(shape, dtype=kind, device=device)
                         for shape, kind in (((4, width), torch.int8), ((4,), torch.float32)))  # fmt: skip
        _quantize[(1,)](torch.from_numpy(x).to(device), codes, scales, width)
        want = int8.quantize(x)
        np.testing.assert_array_equal(codes.cpu().numpy(), want[0])
        np.testing.assert_array_equal(scales.cpu().numpy(), want[1])
