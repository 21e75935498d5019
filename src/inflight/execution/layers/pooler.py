"""Pools the last hidden states of texts to vectors or scores: one token's, or the mean of all, through a few
products.

Knows one text's tokens as a range of the pass's; not what becomes of the numbers (`backends.results`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from inflight.execution.backends.protocol import Activation, Backend, ForwardPass, Linear
from inflight.execution.layers.norm import NormWeights
from inflight.execution.layers.workspace import Workspace
from inflight.execution.packer import Packer
from inflight.models.spec import Pooler, PoolerLayer

# Of a pass, ranges of its tokens that are texts → a row of float32 for each.
Pooling = Callable[[ForwardPass, Sequence[range]], Activation]


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


class PoolerWeights(Struct, frozen=True):
    """final_norm: of the last hidden states, where the model has one."""

    spec: Pooler
    layers: tuple[PoolerLayerWeights, ...]
    final_norm: NormWeights | None

    @classmethod
    def load(cls, packer: Packer, spec: Pooler, final_norm: NormWeights | None) -> PoolerWeights:
        return cls(spec, tuple(PoolerLayerWeights.load(packer, one) for one in spec.layers), final_norm)

    def bind(self, workspace: Workspace, backend: Backend, hidden: Activation, width: int, rows: int) -> Pooling:
        """hidden float32[T, width]: the residual stream behind the last layer. rows: most texts at once."""
        gathered = backend.activation(rows, width, "float32")
        states = self._bind_states(workspace, backend, hidden, gathered, width, rows)
        layers, found = [], gathered
        for one in self.layers:
            run, found = _bind_layer(one, backend, found, rows)
            layers.append(run)

        def run_all(batch: ForwardPass, texts: Sequence[range]) -> Activation:
            states(batch, texts)
            for layer in layers:
                layer(batch)
            return found

        return run_all

    def _bind_states(
        self, workspace: Workspace, backend: Backend, hidden: Activation, gathered: Activation, width: int, rows: int
    ) -> Callable[[ForwardPass, Sequence[range]], None]:
        """Gather the state of each text → gathered."""
        norm, last = self.final_norm, self.spec.pooling == "last"
        if self.spec.pooling == "mean":
            normed = hidden if norm is None else workspace.take("last states", width, "float32")
            norm_all = None if norm is None else norm.bind(hidden, normed)

            def mean(batch: ForwardPass, texts: Sequence[range]) -> None:
                if norm_all is not None:
                    norm_all(batch)
                batch.mean(normed, texts, gathered)

            return mean
        raw = gathered if norm is None else backend.activation(rows, width, "float32")
        norm_one = None if norm is None else norm.bind(raw, gathered)

        def one(batch: ForwardPass, texts: Sequence[range]) -> None:
            batch.gather(hidden, [text[-1] if last else text[0] for text in texts], raw)
            if norm_one is not None:
                norm_one(batch)

        return one


def _bind_layer(
    layer: PoolerLayerWeights, backend: Backend, x: Activation, rows: int
) -> tuple[Callable[[ForwardPass], None], Activation]:
    """x float32[S, K]. Returns what runs the layer, and the activation float32[S, N] that it writes."""
    spec, weight, norm = layer.spec, layer.weight, layer.norm
    read = backend.activation(rows, spec.inputs, "act")
    sums, bent, normed = (backend.activation(rows, spec.outputs, "float32") for _ in range(3))
    bend = spec.activation
    before = sums if bend == "none" else bent
    norm_rows = None if norm is None else norm.bind(before, normed)

    def run(batch: ForwardPass) -> None:
        batch.to_act(x, read)
        batch.linear(read, weight, sums)
        if bend != "none":
            batch.activate(sums, bend, bent)
        if norm_rows is not None:
            norm_rows(batch)

    return run, before if norm is None else normed
