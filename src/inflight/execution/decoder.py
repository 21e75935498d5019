"""The decoder: one forward pass of every supported family, written once over the backend's operations.

Knows the order of operations in a transformer layer, and names the activations of a pass, which the backend owns. Does
not know what a request or a plan is, how a token is chosen, which device computes, or what an activation looks like
there.

The residual stream and the logits are float32; activations between are in the backend's own format (`act`).
"""

from __future__ import annotations

from collections.abc import Sequence

from inflight.execution.backends.protocol import Activation, Backend, ForwardPass
from inflight.execution.sizes import parts
from inflight.execution.weights import ModelWeights
from inflight.models.spec import ModelSpec


class Decoder:
    """Runs passes, one after the other: their activations are the same memory."""

    def __init__(
        self, model: ModelSpec, weights: ModelWeights, backend: Backend, max_tokens: int, max_logit_rows: int
    ) -> None:
        """`max_tokens` of one pass, `max_logit_rows` of one call to `logits`."""
        self._weights = weights
        self._eps = model.norm.eps
        attention, mlp = parts(model.layers[0])  # the families that run have layers of one size
        heads, hidden = attention.heads * attention.head_dim, model.hidden_size
        self._scale = attention.head_dim**-0.5
        self.max_tokens = max_tokens
        self.max_logit_rows = max_logit_rows
        self._hidden = backend.activation(max_tokens, hidden, "float32")  # [T, E], the residual stream
        self._normed = backend.activation(max_tokens, hidden, "act")  # [T, E]
        self._qkv = backend.activation(max_tokens, attention.qkv_rows, "float32")  # [T, (H + 2G)·D]
        self._queries = backend.activation(max_tokens, heads, "act")  # [T, H·D]
        self._attn_out = backend.activation(max_tokens, heads, "act")  # [T, H·D]
        self._inner = backend.activation(max_tokens, mlp.width, "act")  # [T, F]
        self._gathered = backend.activation(max_logit_rows, hidden, "float32")
        self._final_normed = backend.activation(max_logit_rows, hidden, "act")
        self._logits = backend.activation(max_logit_rows, model.vocab_size, "float32")

    @property
    def nbytes(self) -> int:
        """Bytes of activation memory."""
        of_tokens = (self._hidden, self._normed, self._qkv, self._queries, self._attn_out, self._inner)
        return sum(one.nbytes for one in (*of_tokens, self._gathered, self._final_normed, self._logits))

    def forward(self, batch: ForwardPass) -> None:
        """Computes all layers for the pass's tokens and writes their keys and values. Raises ValueError for more tokens
        than the decoder was made for."""
        if batch.num_tokens > self.max_tokens:
            raise ValueError(f"a step of {batch.num_tokens} tokens does not fit a decoder made for {self.max_tokens}")
        # Everything a layer touches is a local name: with small models this loop's own time is what a pass costs.
        rope, eps, scale = self._weights.rope, self._eps, self._scale
        rms_norm, linear, linear_residual, gate_up = batch.rms_norm, batch.linear, batch.linear_residual, batch.gate_up
        rope_and_write_kv, attention = batch.rope_and_write_kv, batch.attention
        hidden, normed, qkv, queries = self._hidden, self._normed, self._qkv, self._queries
        attn_out, inner = self._attn_out, self._inner
        batch.embed(self._weights.table, hidden)
        for index, layer in enumerate(self._weights.layers):
            rms_norm(hidden, layer.attention_norm, eps, normed)
            linear(normed, layer.qkv, qkv)
            rope_and_write_kv(qkv, index, rope, layer.q_norm, layer.k_norm, eps, queries)
            attention(queries, index, scale, layer.window, attn_out)
            linear_residual(attn_out, layer.output, hidden)
            rms_norm(hidden, layer.mlp_norm, eps, normed)
            gate_up(normed, layer.gate_up, inner)
            linear_residual(inner, layer.down, hidden)

    def last_hidden(self, batch: ForwardPass, places: Sequence[int]) -> Activation:
        """What the last layer made of the tokens at `places` (indices into the pass's tokens), final norm applied:
        act[S, E], which the next call overwrites."""
        batch.gather(self._hidden, places, self._gathered)
        batch.rms_norm(self._gathered, self._weights.final_norm, self._eps, self._final_normed)
        return self._final_normed

    def logits(self, batch: ForwardPass, places: Sequence[int]) -> Activation:
        """Logits float32[S, V] after the tokens at `places`, computed for these alone; the next call overwrites them.
        Raises ValueError for more than the decoder was made for."""
        if len(places) > self.max_logit_rows:
            raise ValueError(
                f"logits of {len(places)} rows do not fit a decoder made for {self.max_logit_rows}; ask in slabs"
            )
        batch.linear(self.last_hidden(batch, places), self._weights.output, self._logits)
        return self._logits
