"""Operations of a pass on the states of recurrent layers (`protocol.RecurrentOperations`).

Knows activations, and which states chunks go on from and leave behind; the formulas are in `recurrence`.
"""

from __future__ import annotations

import numpy as np

from inflight.execution.backends.protocol import Array, AttentionMetadata, StateMetadata
from inflight.execution.backends.reference.act import Act
from inflight.execution.backends.reference.activation import ReferenceActivation
from inflight.execution.backends.reference.functions import activated, sigmoid, softplus
from inflight.execution.backends.reference.norms import rms_normed, unit
from inflight.execution.backends.reference.recurrence import convolved, delta_rule
from inflight.execution.backends.reference.states import ReferenceStates, state_chunks


class RecurrentOperations:
    def __init__(self, act: Act, metadata: AttentionMetadata, states: ReferenceStates, moves: StateMetadata):
        self._act, self._states = act, states
        self._chunks = list(state_chunks(metadata, moves, states.first_snapshot))

    def convolve(self, x: ReferenceActivation, layer: int, weight: Array, out: ReferenceActivation) -> None:
        channels = self._states.inputs[layer].shape[2]
        out.write(activated(self._convolved(x.written[:, :channels], layer, weight), "silu"))

    def convolve_gated(
        self, x: ReferenceActivation, layer: int, weight: Array, bias: Array | None, out: ReferenceActivation
    ) -> None:
        before, after, inputs = np.split(x.written, 3, axis=1)
        sums = self._convolved(before * inputs, layer, weight)
        out.write(self._act.hold(after * (sums if bias is None else sums + bias)))

    def delta_rule(
        self,
        qkv: ReferenceActivation,
        projected: ReferenceActivation,
        gates: ReferenceActivation,
        layer: int,
        key_heads: int,
        decay: Array,
        step_bias: Array,
        norm: Array,
        eps: float,
        out: ReferenceActivation,
    ) -> None:
        matrices, tokens = self._states.matrices[layer], qkv.rows
        _, heads, key_dim, _ = matrices.shape
        parts = np.split(qkv.written, [key_heads * key_dim, 2 * key_heads * key_dim], axis=1)
        q, k = (unit(one.reshape(tokens, key_heads, -1)).repeat(heads // key_heads, axis=1) for one in parts[:2])
        q, v = q * np.float32(key_dim**-0.5), parts[2].reshape(tokens, heads, -1)
        b, a = np.split(gates.written, 2, axis=1)
        beta, faded = sigmoid(b), np.exp(decay * softplus(a + step_bias))
        found = np.empty_like(v)
        for chunk in self._chunks:
            of_chunk = (one[chunk.tokens] for one in (q, k, v, beta, faded))
            for done, (yielded, state) in enumerate(delta_rule(chunk.before(matrices), *of_chunk), 1):
                found[chunk.tokens.start + done - 1] = yielded
                if done in chunk.due:
                    matrices[chunk.due[done]] = state
            matrices[chunk.place] = state
        z = projected.written[:, qkv.width :].reshape(found.shape)
        out.write(self._act.hold(rms_normed(found, norm, eps) * activated(z, "silu")).reshape(tokens, -1))

    def _convolved(self, x: Array, layer: int, weight: Array) -> Array:
        """float32[T, C] → float32[T, C], chunk by chunk; the last inputs of each stay in its state."""
        states, taps = self._states.inputs[layer], weight.reshape(-1, x.shape[1])  # taps [K, C]
        inputs, sums = self._act.hold(x), np.empty_like(x)
        for chunk in self._chunks:
            seen = np.concatenate([chunk.before(states), inputs[chunk.tokens]])
            sums[chunk.tokens] = convolved(self._act.read(seen), taps)
            for done, place in (*chunk.due.items(), (chunk.length, chunk.place)):
                states[place] = seen[done : done + len(taps) - 1]
        return sums
