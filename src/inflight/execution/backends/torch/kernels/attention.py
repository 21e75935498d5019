"""Attention over the KV cache as kernels: which of the two forms attends to which chunks of a pass.

Knows shapes alone, so that a graph can hold the launches: short chunks go to the one that shares a chunk's positions
out among programs, long ones to the one that shares out its queries. Which it is follows from a chunk's own length, and
a pass with decodes beside prompts has both.

The bits of the form for long chunks depend on no other chunk of a pass; those of the other on whether chunks are few or
many, which decides the size of splits. Where a token's must depend on neither, nor on the length of its chunk (a
sequence that was preempted is computed again as a prompt), all of it is done in the form for long chunks.
"""

from __future__ import annotations

from torch import Tensor

from inflight.execution.backends.torch.kernels.attention_call import AttentionCall
from inflight.execution.backends.torch.kernels.attention_decode import attend_short, short_tokens
from inflight.execution.backends.torch.kernels.attention_prefill import attend_long
from inflight.execution.backends.torch.tensors import LayerKV, PassTensors


def attention(
    q: Tensor,
    cached: LayerKV,
    scale: float,
    window: int,
    soft_cap: float,
    sinks: Tensor | None,
    causal: bool,
    pass_: PassTensors,
    out: Tensor,
    position_bias: Tensor | None = None,
    *,
    invariant: bool = False,
) -> None:
    """invariant: a token's bits do not depend on its chunk. Long decodes take much longer."""
    call = AttentionCall(q, cached, scale, window, soft_cap, sinks, causal, pass_, out, position_bias)
    # Encoder-only input takes one form: one token may see as many positions as another.
    short, longest = 0 if invariant or not causal else short_tokens(call.group), pass_.longest_chunk
    if short and (longest <= short or call.chunks > 1):
        attend_short(call)
    if longest > short:
        attend_long(call, short)
