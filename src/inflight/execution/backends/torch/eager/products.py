"""Products with packed weights in PyTorch's own operations: x · Wᵀ.

Knows how numbers meet a matrix in each way to hold one (`weights.HeldMatrix`), the rules by which x is quantized for
it, and what becomes of a product: written, added, gated. Sums are float32, or whole numbers where both sides are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from inflight.execution.backends.protocol import Nonlinearity
from inflight.execution.backends.torch.eager.functions import activated, gated
from inflight.execution.backends.torch.weights import (
    DeviceGateUp,
    DeviceHeads,
    DeviceLinear,
    Fp8Matrix,
    GroupedMatrix,
    HeldMatrix,
    Int8Matrix,
    PlainMatrix,
)

_SMALLEST = 2.0**-100  # as in `int8.py`: what is smaller counts as 0
_LARGEST_FP8 = 448.0  # of float8_e4m3fn


def linear(x: Tensor, weight: DeviceLinear, out: Tensor) -> None:
    """x act[S, K] → out float32[S, N] = x · Wᵀ + bias."""
    (first, *others) = weight.parts
    if others or not isinstance(first, PlainMatrix):
        out.copy_(_of_parts(x, weight))
        return
    multiply(x, first.values, out, False)  # logits, gates and ups are large: no copy of them
    if weight.bias is not None:
        out += weight.bias


def linear_residual(x: Tensor, weight: DeviceLinear, out: Tensor) -> None:
    """x act[S, K] → out float32[S, N] plus x · Wᵀ + bias."""
    out += _of_parts(x, weight)


def linear_act(x: Tensor, weight: DeviceLinear, activation: Nonlinearity, out: Tensor) -> None:
    """x act[S, K] → out act[S, N] = activation(x · Wᵀ + bias)."""
    out.copy_(activated(_of_parts(x, weight), activation))


def gate_up(x: Tensor, weight: DeviceGateUp, activation: Nonlinearity, out: Tensor) -> None:
    """x act[S, E] → out act[S, F] = activation(x · gateᵀ) · (x · upᵀ)."""
    assert activation in ("silu", "gelu", "gelu_tanh"), activation
    out.copy_(gated(_of_parts(x, weight.both), activation))


def gate_both(both: Tensor, weight: DeviceGateUp, activation: Nonlinearity, out: Tensor) -> None:
    """both float32[S, 2 · F], the sums of `weight` → out act[S, F]."""
    out.copy_(gated(both, activation))


def by_head(x: Tensor, weight: DeviceHeads, out: Tensor) -> None:
    """x act[T, H·K] → out act[T, H·M], M ≥ N: the first N numbers of each head are x of the head · Wᵀ of the head."""
    heads = x.view(len(x), weight.count, weight.columns)
    into = out.view(len(x), weight.count, -1)
    for head in range(weight.count):
        into[:, head, : weight.rows] = product(heads[:, head], one_of(weight.matrix, head))


def product(x: Tensor, matrix: HeldMatrix) -> Tensor:
    """x act[S, K] by one matrix [N, K] → float32[S, N]."""
    if isinstance(matrix, Int8Matrix):
        codes, scales = quantize_int8(x)
        return _whole_sums(codes, matrix.codes).float() * scales[:, None] * matrix.scales
    if isinstance(matrix, Fp8Matrix):
        codes, scales = quantize_fp8(x)
        return codes.float() @ matrix.codes.float().T * scales[:, None] * matrix.scales
    values = matrix.values if isinstance(matrix, PlainMatrix) else widened(matrix, x.shape[1], x.dtype)
    found = torch.empty(len(x), len(values), dtype=torch.float32, device=x.device)
    multiply(x, values, found, False)
    return found


def multiply(x: Tensor, values: Tensor, out: Tensor, add: bool) -> None:
    """x act[S, K] by values act[N, K] → out float32[S, N], to what is there or in its place."""
    if not _is_cublas(x):
        found = x.float() @ values.float().T
        out.copy_(out + found if add else found)
    elif add:
        torch.addmm(out, x, values.T, out_dtype=torch.float32, out=out)
    else:
        torch.mm(x, values.T, out_dtype=torch.float32, out=out)


def quantize_int8(x: Tensor) -> tuple[Tensor, Tensor]:
    """act[S, K] → int8[S, K] and float32[S], each row by the rule of `int8.quantize`."""
    rows = x.float()
    largest = rows.abs().amax(dim=1)
    used = torch.isfinite(largest) & (largest >= _SMALLEST)
    safe = torch.where(used, largest, 1.0)
    codes = torch.round(rows * _inverse(safe, 127.0)[:, None])
    return torch.where(used[:, None], codes, 0.0).to(torch.int8), _scales(largest, 127.0)


def quantize_fp8(x: Tensor) -> tuple[Tensor, Tensor]:
    """act[S, K] → float8_e4m3fn[S, K] and float32[S]: as in int8, with 448, the format's largest, for 127."""
    rows = x.float()
    largest = rows.abs().amax(dim=1)
    used = torch.isfinite(largest) & (largest >= _SMALLEST)
    safe = torch.where(used, largest, 1.0)
    codes = (rows * _inverse(safe, _LARGEST_FP8)[:, None]).clamp(-_LARGEST_FP8, _LARGEST_FP8)
    return torch.where(used[:, None], codes, 0.0).to(torch.float8_e4m3fn), _scales(largest, _LARGEST_FP8)


def widened(matrix: GroupedMatrix, columns: int, dtype: torch.dtype) -> Tensor:
    """Codes of groups → act[N, columns], in the order of x's columns."""
    codes = matrix.codes.view(*matrix.scales.shape, matrix.group * matrix.bits // 8)
    if matrix.bits == 4:
        codes = torch.cat([codes & 15, codes >> 4], dim=2)
    if matrix.meanings is not None:
        meant = matrix.meanings.float()[codes.int()]
    else:
        meant = codes.float() - (8 if matrix.bits == 4 and matrix.offsets is None else 0)
    values = meant * matrix.scales[..., None]
    if matrix.offsets is not None:
        values = values + matrix.offsets[..., None]
    found = values.flatten(1)[:, :columns].to(dtype)
    if matrix.permutation is None:
        return found
    in_order = torch.empty_like(found)
    in_order[:, matrix.permutation.long()] = found
    return in_order


def one_of(stack: HeldMatrix, place: int) -> HeldMatrix:
    """One matrix of a stack of them, whose tensors have their place before other dimensions."""
    if isinstance(stack, PlainMatrix):
        return PlainMatrix(stack.values[place])
    if isinstance(stack, Int8Matrix):
        return Int8Matrix(stack.codes[place], stack.scales[place])
    if isinstance(stack, Fp8Matrix):
        return Fp8Matrix(stack.codes[place], stack.scales[place])
    return GroupedMatrix(
        stack.codes[place],
        stack.scales[place],
        None if stack.offsets is None else stack.offsets[place],
        stack.group,
        None if stack.permutation is None else stack.permutation[place],
        stack.meanings,
        stack.is_e2m1,
    )


def outputs_of(matrix: HeldMatrix) -> int:
    """N of one matrix, or of each of a stack."""
    return (matrix.values if isinstance(matrix, PlainMatrix) else matrix.codes).shape[-2]


def _of_parts(x: Tensor, weight: DeviceLinear) -> Tensor:
    """float32[S, N]."""
    products = [product(x, part) for part in weight.parts]
    found = products[0] if len(products) == 1 else torch.cat(products, dim=1)  # which copies one, too
    return found if weight.bias is None else found + weight.bias


def _is_cublas(x: Tensor) -> bool:
    """Whether products of this x are cuBLAS's with float32 sums, which PyTorch has on GPUs alone."""
    return x.is_cuda and x.dtype != torch.float32


def _inverse(largest: Tensor, most: float) -> Tensor:
    """most / largest, rounded once: PyTorch multiplies a number of Python's with 1 / largest."""
    return torch.full_like(largest, most) / largest


def _scales(largest: Tensor, most: float) -> Tensor:
    """Return scales of rows with these largest magnitudes: 0 where all is (nearly) 0, NaN where one is not finite."""
    scales = torch.where(largest >= _SMALLEST, largest / most, 0.0)
    return torch.where(torch.isfinite(largest), scales, torch.nan)


def _whole_sums(x: Tensor, codes: Tensor) -> Tensor:
    """int8[S, K] · int8[N, K]ᵀ → int32[S, N]. cuBLAS wants more than 16 rows, and eights of columns."""
    if not x.is_cuda:
        return torch._int_mm(x, codes.T)
    if codes.shape[0] % 8 or codes.shape[1] % 8:
        return (x.double() @ codes.double().T).int()  # which hold such sums exactly
    rows = max(len(x), 17)
    filled = torch.zeros(rows, x.shape[1], dtype=torch.int8, device=x.device)
    filled[: len(x)] = x
    return torch._int_mm(filled, codes.T)[: len(x)]
