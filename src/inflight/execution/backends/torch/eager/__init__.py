"""Every operation of `torch.operations` in PyTorch's own: readable, runs anywhere, and what kernels are held to."""

from inflight.execution.backends.torch.eager.rotation import rope_and_write_kv, rope_and_write_latent
from inflight.execution.backends.torch.eager.rows import (
    activate,
    add,
    add_gated,
    embed,
    gate,
    layer_norm,
    rms_norm,
)

__all__ = [
    "activate",
    "add",
    "add_gated",
    "embed",
    "gate",
    "layer_norm",
    "rms_norm",
    "rope_and_write_kv",
    "rope_and_write_latent",
]
