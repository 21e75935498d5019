"""Every operation of `torch.operations` in PyTorch's own: readable, runs anywhere, and what kernels are held to."""

from inflight.execution.backends.torch.eager.adapters import add_low_rank
from inflight.execution.backends.torch.eager.attention import attention
from inflight.execution.backends.torch.eager.begin import begin
from inflight.execution.backends.torch.eager.experts import experts
from inflight.execution.backends.torch.eager.logprobs import score
from inflight.execution.backends.torch.eager.products import (
    by_head,
    gate_both,
    gate_up,
    linear,
    linear_act,
    linear_residual,
)
from inflight.execution.backends.torch.eager.recurrence import convolve, convolve_gated, delta_rule
from inflight.execution.backends.torch.eager.rotation import rope_and_write_kv, rope_and_write_latent
from inflight.execution.backends.torch.eager.rows import (
    activate,
    add,
    add_gated,
    add_rows,
    embed,
    gate,
    layer_norm,
    layer_norm_sum,
    mean,
    rms_norm,
)
from inflight.execution.backends.torch.eager.sampling import sample

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
