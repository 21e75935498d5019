"""Every operation of `torch.operations` as Triton kernels: static grids and shapes, so that graphs can replay them. Two
that only passes without graphs have are PyTorch's own: encoder-only passes have no graphs."""

from inflight.execution.backends.torch.eager.rows import add_rows, mean
from inflight.execution.backends.torch.kernels.adapters import add_low_rank
from inflight.execution.backends.torch.kernels.attention import attention
from inflight.execution.backends.torch.kernels.begin import begin
from inflight.execution.backends.torch.kernels.embedding import embed
from inflight.execution.backends.torch.kernels.experts import experts
from inflight.execution.backends.torch.kernels.logprobs import score
from inflight.execution.backends.torch.kernels.products import (
    by_head,
    gate_both,
    gate_up,
    linear,
    linear_act,
    linear_residual,
)
from inflight.execution.backends.torch.kernels.recurrence import convolve, convolve_gated, delta_rule
from inflight.execution.backends.torch.kernels.rotation import rope_and_write_kv, rope_and_write_latent
from inflight.execution.backends.torch.kernels.rows import (
    activate,
    add,
    add_gated,
    gate,
    layer_norm,
    layer_norm_sum,
    rms_norm,
)
from inflight.execution.backends.torch.kernels.sampling import sample

__all__ = [
    "activate",
    "add",
    "add_gated",
    "add_low_rank",
    "add_rows",
    "attention",
    "begin",
    "by_head",
    "convolve",
    "convolve_gated",
    "delta_rule",
    "embed",
    "experts",
    "gate",
    "gate_both",
    "gate_up",
    "layer_norm",
    "layer_norm_sum",
    "linear",
    "linear_act",
    "linear_residual",
    "mean",
    "rms_norm",
    "rope_and_write_kv",
    "rope_and_write_latent",
    "sample",
    "score",
]
