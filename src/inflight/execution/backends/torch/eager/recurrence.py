"""Operations on the states of recurrent layers, in PyTorch's own: short convolutions and the gated delta rule.

Knows formulas, and how tokens, chunks and states lie; `protocol.RecurrentOperations` has the meanings. Chunks go on
side by side: token t of all of them is one operation. What is due for a snapshot is read by the host.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from inflight.execution.backends.torch.tensors import LayerStates, PassTensors, StateTensors


def convolve(
    x: Tensor, states: LayerStates, weight: Tensor, pass_: PassTensors, moves: StateTensors, out: Tensor
) -> None:
    inputs = x[:, : states.inputs.shape[2]].to(states.inputs.dtype)
    out.copy_(silu(_convolved(inputs, states.inputs, weight, pass_, moves)))


def convolve_gated(
    x: Tensor,
    states: LayerStates,
    weight: Tensor,
    bias: Tensor | None,
    pass_: PassTensors,
    moves: StateTensors,
    out: Tensor,
) -> None:
    before, after, through = x.chunk(3, dim=1)
    sums = _convolved((before * through).to(states.inputs.dtype), states.inputs, weight, pass_, moves)
    out.copy_(after * (sums if bias is None else sums + bias))


def delta_rule(
    qkv: Tensor,
    projected: Tensor,
    gates: Tensor,
    states: LayerStates,
    key_heads: int,
    decay: Tensor,
    step_bias: Tensor,
    norm: Tensor,
    eps: float,
    pass_: PassTensors,
    moves: StateTensors,
    out: Tensor,
) -> None:
    tokens, (_, heads, key_dim, value_dim) = len(qkv), states.matrices.shape
    keys = key_heads * key_dim
    q, k, v = torch.split(qkv, [keys, keys, heads * value_dim], dim=1)
    q, k = (_unit(one.view(tokens, key_heads, key_dim)).repeat_interleave(heads // key_heads, dim=1) for one in (q, k))
    q, v = q * key_dim**-0.5, v.view(tokens, heads, value_dim)
    b, a = gates.chunk(2, dim=1)
    beta, faded = b.sigmoid(), (decay * softplus(a + step_bias)).exp()

    chunks, found = _Chunks(pass_, moves), torch.empty_like(v)
    state = states.matrices[chunks.rows]
    state[chunks.are_first] = 0
    for step in range(pass_.longest_chunk):
        alive = (chunks.lengths > step).nonzero().squeeze(1)
        at = chunks.starts[alive] + step
        kept = state[alive] * faded[at][..., None, None]
        delta = (v[at] - (kept * k[at][..., None]).sum(dim=2)) * beta[at][..., None]
        kept += k[at][..., None] * delta[:, :, None]
        found[at] = (kept * q[at][..., None]).sum(dim=2)
        state[alive] = kept
        for chunk, place in chunks.due_after(step + 1):
            states.matrices[place] = state[chunk]
    states.matrices[chunks.rows] = state

    z = projected[:, qkv.shape[1] :].view(found.shape)
    normed = found * (found.square().mean(dim=-1, keepdim=True) + eps).rsqrt() * norm
    out.copy_((normed * silu(z)).view(out.shape))


class _Chunks:
    """The chunks of a pass, as their states see them: int64[C] each. due: (tokens done, chunk, place), in order."""

    def __init__(self, pass_: PassTensors, moves: StateTensors) -> None:
        self.rows = pass_.rows.long()
        self.starts = pass_.query_start[:-1].long()
        self.lengths = pass_.query_start.long().diff()
        self.are_first = pass_.context_len == 0
        contexts, starts = pass_.context_len.tolist(), moves.snapshot_start.tolist()
        entries = list(zip(moves.positions.tolist(), moves.places.tolist(), strict=True))
        self.due = [
            (position - context, chunk, place)
            for chunk, context in enumerate(contexts)
            for position, place in entries[starts[chunk] : starts[chunk + 1]]
        ]

    def due_after(self, tokens: int) -> list[tuple[int, int]]:
        """Chunks whose states are due after so many of their tokens, and the places of the copies."""
        return [(chunk, place) for done, chunk, place in self.due if done == tokens]


def _convolved(inputs: Tensor, states: Tensor, weight: Tensor, pass_: PassTensors, moves: StateTensors) -> Tensor:
    """Convolve inputs act[T, C] → float32[T, C]: y[t] = Σ taps[i] · inputs[t - (K - 1) + i], the oldest input first.
    The last K - 1 inputs of each chunk are left in its state."""
    chunks, kept = _Chunks(pass_, moves), states.shape[1]
    before = states[chunks.rows]
    before[chunks.are_first] = 0

    def seen(chunk: Tensor, index: Tensor) -> Tensor:
        """act[…, C], inputs of chunks by their index in the chunk; from -(K - 1) to -1 they came before it."""
        of_chunk = inputs[chunks.starts[chunk] + index.clamp(min=0)]
        return of_chunk.where((index >= 0)[..., None], before[chunk, (kept + index).clamp(max=kept - 1)])

    chunk = pass_.chunk_of.long()
    index, taps = torch.arange(len(inputs), device=inputs.device) - chunks.starts[chunk], weight.view(kept + 1, -1)
    sums = torch.zeros(inputs.shape, dtype=torch.float32, device=inputs.device)
    for back, tap in enumerate(taps):
        sums += tap * seen(chunk, index - kept + back)

    last, all_chunks = torch.arange(-kept, 0, device=inputs.device), torch.arange(len(before), device=inputs.device)
    for done, one, place in chunks.due:
        states[place] = seen(all_chunks[one], last + done)
    states[chunks.rows] = seen(all_chunks[:, None], chunks.lengths[:, None] + last)
    return sums


def _unit(x: Tensor) -> Tensor:
    return x * (x.square().sum(dim=-1, keepdim=True) + 1e-6).rsqrt()
