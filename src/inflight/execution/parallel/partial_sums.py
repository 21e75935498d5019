"""Which of a model's products are parts of a sum: those of matrices that are cut by their inputs.

Knows layers and their last products. What a backend makes of the mark is `backends.torch.summing`'s to say.
"""

from __future__ import annotations

import dataclasses
from typing import TypeVar

from msgspec.structs import replace

from inflight.execution.backends.torch.weights import DeviceExperts, DeviceLinear
from inflight.execution.mixers.attention import AttentionWeights
from inflight.execution.mlps.dense import DenseWeights
from inflight.execution.mlps.moe import MoEWeights
from inflight.execution.parallel.shards import is_cut
from inflight.execution.weights import LayerWeights, ModelWeights

Product = TypeVar("Product", DeviceLinear, DeviceExperts)


def with_partial_sums(weights: ModelWeights) -> ModelWeights:
    """Return the weights of one device among several, with these products marked."""
    return replace(weights, layers=tuple(_marked_layer(layer) for layer in weights.layers))


def _marked_layer(layer: LayerWeights) -> LayerWeights:
    mixer = layer.mixer
    if isinstance(mixer, AttentionWeights) and is_cut(mixer.spec):
        mixer = replace(mixer, output=_partial(mixer.output))
    return replace(layer, mixer=mixer, mlp=_marked_mlp(layer.mlp))


def _marked_mlp(mlp: DenseWeights | MoEWeights) -> DenseWeights | MoEWeights:
    if isinstance(mlp, DenseWeights):
        return replace(mlp, down=_partial(mlp.down))
    shared = None if mlp.shared is None else replace(mlp.shared, down=_partial(mlp.shared.down))
    return replace(mlp, experts=_partial(mlp.experts), shared=shared)


def _partial(product: Product) -> Product:
    return dataclasses.replace(product, is_partial=True)
