"""Compute what a step takes at best, operation by operation: each reads its weights, keys and values once, or computes.

Finer than `execution.roofline`, which lets a whole step read and compute at once: on a GPU one operation is done before
the next begins, so that their least times add up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.gpu.device import Rates
from inflight.execution.backends.protocol import Quantization
from inflight.models.arithmetic import table_parameters
from inflight.models.sequence_memory import state_bytes
from inflight.models.spec import LayerSpec, ModelSpec

_ITEM = 2  # bytes, of keys and values, of the output projection, and of weights in bf16
# Of layers, scales included.
_WEIGHT: dict[Quantization, float] = {"none": _ITEM, "int8": 1 + 4 / 32, "fp8": 1, "int4": 0.5 + 4 / 32}


@dataclass(frozen=True, slots=True)
class Cost:
    """Count one operation in all layers that are alike. read: bytes. operations: a multiply-add counts two."""

    name: str
    read: float
    operations: float
    count: int = 1

    def seconds(self, rates: Rates) -> float:
        return self.count * rates.seconds(self.read, self.operations)


@dataclass(frozen=True, slots=True)
class StepShape:
    """rows sequences of which each computes `length` tokens, the last with `context` tokens behind it and itself."""

    rows: int
    length: int
    context: int

    @property
    def tokens(self) -> int:
        return self.rows * self.length

    @property
    def pairs(self) -> float:
        """Queries and the positions that they see."""
        first = self.context - self.length + 1
        return self.rows * self.length * (first + self.context) / 2


def step_seconds(model: ModelSpec, step: StepShape, rates: Rates, held: Quantization = "none") -> float:
    """held: how the layers' matrices are. Whole numbers count at the rate of bf16, though a device may multiply them
    faster."""
    return sum(cost.seconds(rates) for cost in step_costs(model, step, held))


def step_costs(model: ModelSpec, step: StepShape, held: Quantization = "none") -> Iterator[Cost]:
    for layer, count in model.kinds_of_layers:
        yield from _layer_costs(model, layer, step, count, _WEIGHT[held])
    head = table_parameters(model)
    yield Cost("logits", head * _ITEM, 2.0 * head * step.rows)
    if state := state_bytes(model):
        yield Cost("states", 2.0 * state * step.rows, 0)


def _layer_costs(
    model: ModelSpec, layer: LayerSpec, step: StepShape, count: int, weight_bytes: float
) -> Iterator[Cost]:
    hidden, tokens = model.hidden_size, step.tokens
    of_mixer, of_mlp = layer.mixer.weights(hidden).matrices, layer.mlp.weights(hidden).matrices
    for outputs, inputs in (*of_mixer, *of_mlp):
        yield Cost("products", outputs * inputs * weight_bytes, 2.0 * outputs * inputs * tokens, count)
    if layer.mlp.experts:
        expert = layer.mlp.expert_weights(hidden).elements
        read = layer.mlp.touched_experts(tokens) * expert * weight_bytes
        yield Cost("experts", read, 2.0 * expert * layer.mlp.top_k * tokens, count)
    if cached := layer.mixer.cached:
        read = step.rows * step.context * cached.elements * _ITEM
        yield Cost("attention", read, layer.mixer.pair_flops(compressed=True) * step.pairs, count)
    elif operations := layer.mixer.state_flops:
        yield Cost("recurrence", 0, float(operations) * tokens, count)
