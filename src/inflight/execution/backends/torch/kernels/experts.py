"""A mixture of experts as kernels (Shazeer et al., arXiv 1701.06538), without a look at the device's values.

Pairs of tokens and experts are sorted by expert (`routing`), multiplied tile by tile (`gemm`), gated where they are
summed, multiplied again, and what a token's experts yield is added up in order of rank.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from inflight.execution.backends.torch.device_pass import DevicePass
from inflight.execution.backends.torch.kernels.launching import Ending, Shape, launch, operands
from inflight.execution.backends.torch.kernels.routing import route
from inflight.execution.backends.torch.kernels.tiles import tiles_for
from inflight.execution.backends.torch.weights import DeviceExperts, outputs_of

_SUMMED = 1024  # numbers of a token that one program adds up


def experts(on: DevicePass, x: Tensor, logits: Tensor, weight: DeviceExperts, out: Tensor) -> None:
    """x act[T, E], logits float32[T, X] → out float32[T, E] plus, in order of rank, the sum of weight · expert(x)."""
    tokens, hidden = x.shape
    if not tokens:
        return
    ranks, width = weight.routing.top_k, outputs_of(weight.gate_up) // 2
    pairs = tokens * ranks
    average = triton.cdiv(pairs, weight.count)
    up, down = (tiles_for(one, x.dtype, average, on.invariant) for one in (weight.gate_up, weight.down))
    up, down = up._replace(rows=min(up.rows, down.rows)), down._replace(rows=min(up.rows, down.rows))
    weights, sorted_rows = route(logits, weight.routing, up.rows)
    places = len(sorted_rows.rows)
    inner = torch.empty(pairs, width, dtype=x.dtype, device=x.device)
    yielded = torch.empty(pairs, hidden, dtype=torch.float32, device=x.device)
    launch(
        operands(x, weight.gate_up, hidden),
        inner,
        Shape(places, 2 * width, hidden, hidden, width, x_share=ranks),
        up,
        Ending(weight.gate_up_bias, weight.gating),
        weight.gate_up,
        sorted_rows,
    )
    launch(
        operands(inner, weight.down, width),
        yielded,
        Shape(places, hidden, width, width, hidden),
        down,
        Ending(weight.down_bias),
        weight.down,
        sorted_rows,
    )
    grid = (tokens, triton.cdiv(hidden, _SUMMED))
    sum_kernel[grid](yielded, weights, out, hidden, ranks, BLOCK=_SUMMED, enable_fp_fusion=False)


@triton.jit
def sum_kernel(yielded, weights, out, hidden, ranks, BLOCK: tl.constexpr):
    """One chain of float32 sums, each product rounded before it is added."""
    token, at = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for rank in range(ranks):
        pair = token * ranks + rank
        total += tl.load(weights + pair) * tl.load(yielded + pair * hidden + at, mask=at < hidden, other=0.0)
    before = tl.load(out + token * hidden + at, mask=at < hidden, other=0.0)
    tl.store(out + token * hidden + at, before + total, mask=at < hidden)
