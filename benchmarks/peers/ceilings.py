"""Compute what no engine could exceed on this machine, by the bandwidth of the moment and the peak of its dot products.

A ratio to the best peer can be no higher than the ceiling's, however good the kernels are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from inflight.execution.backends.protocol import Quantization
from inflight.execution.roofline import Machine, decode_ceiling, prefill_ceiling
from inflight.models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Ceilings:
    """flops_per_s: by how numbers are held, "bfloat16" and "int8". bandwidth, below: bytes/s."""

    model: ModelSpec
    quantization: Quantization
    flops_per_s: Mapping[str, float]

    def decode(self, batch: int, context: int, bandwidth: float) -> float:
        """Tokens/s."""
        machine = Machine(bandwidth, dict(self.flops_per_s))
        return batch / decode_ceiling(self.model, machine, batch, context, self.quantization).seconds

    def prefill(self, tokens: int, bandwidth: float) -> float:
        """Tokens/s of a prompt with so many."""
        machine = Machine(bandwidth, dict(self.flops_per_s))
        return tokens / prefill_ceiling(self.model, machine, tokens, self.quantization).seconds
