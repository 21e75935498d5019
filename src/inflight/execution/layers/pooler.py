"""Pool the last hidden states of texts to vectors or scores: one token's, or the mean, through a few products."""

from __future__ import annotations

from msgspec import Struct

from inflight.execution import ops
from inflight.execution.backends.protocol import Activation, Linear
from inflight.execution.layers.norm import NormWeights
from inflight.execution.packer import Packer
from inflight.execution.program import Program
from inflight.models.spec import Pooler, PoolerLayer


class PoolerLayerWeights(Struct, frozen=True):
    spec: PoolerLayer
    weight: Linear
    norm: NormWeights | None

    @classmethod
    def load(cls, packer: Packer, spec: PoolerLayer) -> PoolerLayerWeights:
        if spec.next_tokens is not None:
            weight = packer.next_tokens(spec.next_tokens, spec.bias)
        else:
            weight = packer.plain(
                [(f"{spec.name}.weight", (spec.outputs, spec.inputs))],
                [(f"{spec.name}.bias", spec.outputs)] if spec.bias else [],
            )
        return cls(
            spec=spec,
            weight=weight,
            norm=NormWeights.load(packer, spec.norm, spec.outputs, spec.norm_bias) if spec.norm else None,
        )

    def forward(self, program: Program, x: Activation, name: str) -> Activation:
        """Read x float32[S, K], and return float32[S, N]. name: of the layer's activations."""
        spec = self.spec
        read = program.take(f"{name} input", spec.inputs)
        out = program.take(f"{name} sums", spec.outputs, "float32")
        ops.to_act(program, x, read)
        ops.linear(program, read, self.weight, out)
        if spec.activation != "none":
            bent = program.take(f"{name} activated", spec.outputs, "float32")
            ops.activate(program, out, spec.activation, bent)
            out = bent
        if self.norm is not None:
            normed = program.take(f"{name} normed", spec.outputs, "float32")
            self.norm.forward(program, out, normed)
            out = normed
        return out


class PoolerWeights(Struct, frozen=True):
    """final_norm: of the last hidden states, where the model has one."""

    spec: Pooler
    layers: tuple[PoolerLayerWeights, ...]
    final_norm: NormWeights | None

    @classmethod
    def load(cls, packer: Packer, spec: Pooler, final_norm: NormWeights | None) -> PoolerWeights:
        return cls(spec, tuple(PoolerLayerWeights.load(packer, one) for one in spec.layers), final_norm)

    def forward(self, tokens: Program, texts: Program, hidden: Activation, width: int) -> Activation:
        """Record how texts are pooled, and return float32[S, N]: their vectors or scores.

        Args:
            tokens: Over the pass's tokens; its run gets the texts' ranges.
            texts: Over a row for each text, behind `tokens`; its run gets the token that stands for each (`token_of`).
            hidden: float32[T, width], the residual stream behind the last layer.
        """
        norm, gathered = self.final_norm, texts.take("gathered", width, "float32")
        if self.spec.pooling == "mean":
            normed = hidden if norm is None else tokens.take("last states", width, "float32")
            if norm is not None:
                norm.forward(tokens, hidden, normed)
            ops.mean(tokens, normed, gathered)
        else:
            raw = gathered if norm is None else texts.take("raw", width, "float32")
            ops.gather(texts, hidden, raw)
            if norm is not None:
                norm.forward(texts, raw, gathered)
        found = gathered
        for number, layer in enumerate(self.layers):
            found = layer.forward(texts, found, f"pooler layer {number}")
        return found

    def token_of(self, text: range) -> int:
        """Return the token whose state stands for a text, where not the mean of all does."""
        return text[-1] if self.spec.pooling == "last" else text[0]
