"""Every operation of `torch.operations` as Triton kernels: static grids and shapes, so that graphs can replay them."""

from inflight.execution.backends.torch.kernels.recurrence import convolve, convolve_gated, delta_rule

__all__ = [
    "convolve",
    "convolve_gated",
    "delta_rule",
]
