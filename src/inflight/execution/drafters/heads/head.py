"""One head as a backend holds it: what it reads of the model, its one layer, and its way to logits.

A head computes position p from the model's hidden state there and from the token at p + 1, and yields the logits of the
token at p + 2; what it yields beside them stands for the hidden state at p + 1, which the model has not computed yet,
so that it drafts on from there.
"""

from __future__ import annotations

from dataclasses import dataclass

from inflight.execution.backends.protocol import Array, KVLayer, KVShape, Linear, Table
from inflight.execution.kv.kv_groups import kept
from inflight.execution.layers.norm import NormWeights
from inflight.execution.weights import LayerWeights
from inflight.models.spec import Head as LogitRule


@dataclass(frozen=True, slots=True)
class HeadWeights:
    """E: the head's hidden size, M: the model's. All norms are RMS norms."""

    name: str  # in metrics and records
    hidden_size: int
    vocab_size: int  # of the model
    taps: tuple[int, ...]  # layers of the model whose input is read; as many as there are: what the last one leaves
    combine: tuple[Linear, ...]  # [E, M] of each tap, whose products add up to the hidden state; none: it is the tap
    tap_norm: NormWeights | None  # of the tap, where nothing combines
    table: Table  # of tokens, [V, E]
    embedding_scale: float
    token_norm: NormWeights
    hidden_norm: NormWeights | None
    join: tuple[Linear, Linear] | None  # [E, E] of token and hidden state, both normed; None: the layer reads both
    layer: LayerWeights
    layer_index: int  # in the KV cache
    final_norm: NormWeights
    own_norm: NormWeights | None  # of what it yields, before it stands for a hidden state
    output: Linear
    logit_rule: LogitRule
    token_ids: Array | None  # int64, the model's token of each of the head's; None: the same

    def kv_shape(self, block_size: int, quantized: bool) -> KVShape:
        """Return the shape of the head's blocks, which lie beside the model's."""
        place: KVLayer | None = kept(self.layer.spec.mixer)
        assert place is not None, "a head's layer attends"
        return KVShape(block_size, (None,) * self.layer_index + (place,), quantized)
