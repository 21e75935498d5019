"""The ceiling: how fast a step of a model can be at best on a machine with this bandwidth and this peak.

Knows sizes and rates, not kernels. A step can be no faster than max(bytes / read bandwidth, FLOPs / peak): weights are
read once, keys and values of every context once; see Williams et al., "Roofline", 2009.
"""

from __future__ import annotations

from dataclasses import dataclass

from inflight.execution.config import ModelConfig
from inflight.execution.ops.protocol import DType


@dataclass(frozen=True, slots=True)
class Machine:
    """Measured rates: bytes read from memory per second, and floating-point operations per second (a multiply-add
    counts two) of the kernels' own instructions, all threads together."""

    read_bytes_per_s: float
    flops_per_s: dict[str, float]  # "bfloat16", "float32", "int8"


@dataclass(frozen=True, slots=True)
class Ceiling:
    """Seconds that a decode step takes at best, and what binds it."""

    memory_seconds: float
    compute_seconds: float

    @property
    def seconds(self) -> float:
        return max(self.memory_seconds, self.compute_seconds)

    @property
    def bound_by(self) -> str:
        return "memory" if self.memory_seconds >= self.compute_seconds else "compute"


def decode_ceiling(model: ModelConfig, dtype: DType, machine: Machine, batch: int, context: int) -> Ceiling:
    """One token for each of `batch` sequences that have `context` tokens."""
    read = model.step_weight_bytes(dtype) + batch * context * model.kv_bytes_per_token(dtype)
    flops = batch * model.flops_per_token(context)
    return Ceiling(read / machine.read_bytes_per_s, flops / machine.flops_per_s[dtype])


def prefill_ceiling(model: ModelConfig, dtype: DType, machine: Machine, tokens: int) -> Ceiling:
    """A prompt of `tokens` tokens, of which the last one is sampled."""
    flops = (tokens - 1) * model.flops_per_token(tokens // 2, logits=False) + model.flops_per_token(tokens)
    read = model.step_weight_bytes(dtype) + tokens * model.kv_bytes_per_token(dtype)
    return Ceiling(read / machine.read_bytes_per_s, flops / machine.flops_per_s[dtype])


def ridge_tokens(model: ModelConfig, dtype: DType, machine: Machine) -> float:
    """Tokens per step from which the cores, and no longer the memory, are the limit."""
    memory = model.step_weight_bytes(dtype) / machine.read_bytes_per_s
    return memory / (model.flops_per_token() / machine.flops_per_s[dtype])
