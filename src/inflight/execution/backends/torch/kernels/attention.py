"""Attention over the KV cache as kernels: which of the two forms attends to which chunks of a pass.

Launches follow from shapes alone, so that a graph can replay them: short chunks go to the one that shares a chunk's
positions out among programs, long ones to the one that shares out its queries. Which it is follows from a chunk's own
length, and a pass with decodes beside prompts has both.

The bits of the form for long chunks depend on no other chunk of a pass; those of the other on whether chunks are few or
many, which decides the size of splits. Where a token's must depend on neither, nor on the length of its chunk (a
sequence that was preempted is computed again as a prompt), all of it is done in the form for long chunks.
"""

from __future__ import annotations

from torch import Tensor

from inflight.execution.backends.torch.device_pass import DevicePass
from inflight.execution.backends.torch.kernels.attention_call import AttentionCall
from inflight.execution.backends.torch.kernels.attention_decode import attend_short, short_tokens
from inflight.execution.backends.torch.kernels.attention_prefill import attend_long


def attention(
    on: DevicePass,
    q: Tensor,
    layer: int,
    scale: float,
    window: int,
    out: Tensor,
    soft_cap: float = 0.0,
    sinks: Tensor | None = None,
    causal: bool = True,
    position_bias: Tensor | None = None,
) -> None:
    """Where a token's bits may not depend on its chunk, long decodes take much longer."""
    call = AttentionCall(q, on.cached(layer), scale, window, soft_cap, sinks, causal, on.tensors, out, position_bias)
    # Encoder-only input takes one form: one token may see as many positions as another.
    short, longest = 0 if on.invariant or not causal else short_tokens(call.group), on.tensors.longest_chunk
    if short and (longest <= short or call.chunks > 1):
        attend_short(call)
    if longest > short:
        attend_long(call, short)
