"""Every operation of `torch.operations` as Triton kernels: static grids and shapes, so that graphs can replay them."""

from inflight.execution.backends.torch.kernels.experts import experts
from inflight.execution.backends.torch.kernels.products import by_head, gate_up, linear, linear_residual
from inflight.execution.backends.torch.kernels.recurrence import convolve, convolve_gated, delta_rule

__all__ = [
    "by_head",
    "convolve",
    "convolve_gated",
    "delta_rule",
    "experts",
    "gate_up",
    "linear",
    "linear_residual",
]
