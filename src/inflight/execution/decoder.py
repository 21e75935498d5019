"""The decoder: one forward pass of every supported family, written once over the op set.

Knows the order of operations in a transformer layer and owns the activation memory of one step. Does not know what a
request or a plan is (it sees token ids and where they lie), how a token is chosen, or which device computes.

The residual stream and the logits are float32; activations between are in the op set's own format (`act`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from inflight.execution import arrays
from inflight.execution.ops.protocol import Array, KVArena, OpSet, StepLayout
from inflight.execution.sizes import parts
from inflight.execution.weights import ModelWeights
from inflight.models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Activations:
    """The arrays that one step writes, each a view of the first T tokens of memory that is allocated once."""

    hidden: Array  # float32[T, E], the residual stream
    normed: Array  # act[T, E]
    qkv: Array  # float32[T, (H + 2G)·D]
    queries: Array  # act[T, H·D]
    attended: Array  # act[T, H·D]
    inner: Array  # act[T, F]

    @classmethod
    def allocate(cls, model: ModelSpec, ops: OpSet, tokens: int) -> Activations:
        """Memory for `tokens` tokens; pages that no step reaches are never touched."""
        act = activation_dtype(ops)
        attention, mlp = parts(model.layers[0])  # the families that run have layers of one size
        heads = attention.heads * attention.head_dim
        return cls(
            hidden=arrays.empty((tokens, model.hidden_size), np.float32),
            normed=arrays.empty((tokens, model.hidden_size), act),
            qkv=arrays.empty((tokens, attention.qkv_rows), np.float32),
            queries=arrays.empty((tokens, heads), act),
            attended=arrays.empty((tokens, heads), act),
            inner=arrays.empty((tokens, mlp.width), act),
        )

    def first(self, tokens: int) -> Activations:
        """Views of the first `tokens` rows."""
        return Activations(
            self.hidden[:tokens],
            self.normed[:tokens],
            self.qkv[:tokens],
            self.queries[:tokens],
            self.attended[:tokens],
            self.inner[:tokens],
        )


def activation_dtype(ops: OpSet) -> type[np.generic]:
    """The numpy type of `act`: uint16 carries bf16."""
    return np.uint16 if ops.dtype == "bfloat16" else np.float32


class Decoder:
    """Runs steps over one arena. Not for several threads at once: a step's arrays are the decoder's own."""

    def __init__(
        self,
        model: ModelSpec,
        weights: ModelWeights,
        ops: OpSet,
        arena: KVArena,
        max_tokens: int,
        max_logit_rows: int,
    ) -> None:
        """`max_tokens` of one step, `max_logit_rows` of one call to `logits`."""
        self._weights, self._ops, self._arena = weights, ops, arena
        self._eps = model.norm.eps
        self._scale = parts(model.layers[0])[0].head_dim ** -0.5
        self.max_tokens = max_tokens
        self.max_logit_rows = max_logit_rows
        self._memory = Activations.allocate(model, ops, max_tokens)
        self._gathered = arrays.empty((max_logit_rows, model.hidden_size), np.float32)
        self._gathered_normed = arrays.empty((max_logit_rows, model.hidden_size), activation_dtype(ops))
        self._logits = arrays.empty((max_logit_rows, model.vocab_size), np.float32)

    @property
    def nbytes(self) -> int:
        """Bytes of activation memory."""
        m = self._memory
        step = (m.hidden, m.normed, m.qkv, m.queries, m.attended, m.inner)
        return sum(array.nbytes for array in (*step, self._gathered, self._gathered_normed, self._logits))

    def forward(self, token_ids: Array, layout: StepLayout) -> Array:
        """Computes all layers for token_ids int32[T] and writes their keys and values.

        Returns the residual stream float32[T, E] before the final norm, a view that the next step overwrites. Raises
        ValueError for more tokens than the decoder was made for.
        """
        tokens = len(token_ids)
        if tokens > self.max_tokens:
            raise ValueError(f"a step of {tokens} tokens does not fit a decoder made for {self.max_tokens}")
        a = self._memory.first(tokens)
        self._ops.embed(self._weights.table, token_ids, a.hidden)
        self._run_layers(a, layout)
        return a.hidden

    def _run_layers(self, a: Activations, layout: StepLayout) -> None:
        # Everything a layer touches is a local name: with small models this loop's own time is what a step costs.
        ops, arena, rope, eps, scale = self._ops, self._arena, self._weights.rope, self._eps, self._scale
        rms_norm, linear, linear_add, gated = ops.rms_norm, ops.linear, ops.linear_add, ops.gated
        rope_and_write_kv, attention = ops.rope_and_write_kv, ops.attention
        hidden, normed, qkv, queries, attended, inner = (a.hidden, a.normed, a.qkv, a.queries, a.attended, a.inner)
        for index, layer in enumerate(self._weights.layers):
            rms_norm(hidden, layer.attention_norm, eps, normed)
            linear(normed, layer.qkv, qkv)
            rope_and_write_kv(qkv, arena, index, layout, rope, layer.q_norm, layer.k_norm, eps, queries)
            attention(queries, arena, index, layout, scale, layer.window, attended)
            linear_add(attended, layer.output, hidden)
            rms_norm(hidden, layer.mlp_norm, eps, normed)
            gated(normed, layer.gated, inner)
            linear_add(inner, layer.down, hidden)

    def logits(self, rows: Array) -> Array:
        """Logits float32[S, V] after the tokens at `rows` int[S] of the last step (indices into its T tokens).

        Final norm and projection are computed for these rows alone. The result is a view that the next call
        overwrites. Raises ValueError for more rows than the decoder was made for.
        """
        count = len(rows)
        if count > self.max_logit_rows:
            raise ValueError(
                f"logits of {count} rows do not fit a decoder made for {self.max_logit_rows}; ask in slabs"
            )
        gathered, normed, logits = self._gathered[:count], self._gathered_normed[:count], self._logits[:count]
        np.take(self._memory.hidden, rows, axis=0, out=gathered)
        self._ops.rms_norm(gathered, self._weights.final_norm, self._eps, normed)
        self._ops.linear(normed, self._weights.output, logits)
        return logits
