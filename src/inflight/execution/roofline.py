"""Compute how fast a step of a model can be at best, by a machine's memory bandwidth and peak operations."""

from __future__ import annotations

from dataclasses import dataclass

from inflight.execution.backends.protocol import DType, Quantization
from inflight.execution.sizes import context_bytes, holds_of, kv_bytes_per_token, step_weight_bytes
from inflight.models.arithmetic import attention_flops_per_token, layer_flops_per_token, logit_flops_per_token
from inflight.models.spec import ModelSpec

_ACT: DType = "bfloat16"  # of activations


@dataclass(frozen=True, slots=True)
class Machine:
    """Measured rates: bytes read from memory per second, and operations per second (a multiply-add counts two) of the
    kernels' own instructions, all threads together."""

    read_bytes_per_s: float
    flops_per_s: dict[str, float]  # "bfloat16", "float32", "int8"


@dataclass(frozen=True, slots=True)
class Ceiling:
    """Seconds that a step takes at best, and its bottleneck: max(bytes / read bandwidth, FLOPs / peak), where weights
    are read once, and keys and values of every context once (Williams et al., "Roofline", 2009)."""

    memory_seconds: float
    compute_seconds: float

    @property
    def seconds(self) -> float:
        return max(self.memory_seconds, self.compute_seconds)

    @property
    def bound_by(self) -> str:
        return "memory" if self.memory_seconds >= self.compute_seconds else "compute"


def decode_ceiling(
    model: ModelSpec,
    machine: Machine,
    batch: int,
    context: int,
    quantization: Quantization = "none",
    quantized_kv: bool = False,
    group_size: int = 32,
) -> Ceiling:
    """Return the ceiling of one token for each of `batch` sequences that have `context` tokens."""
    kv_bytes = batch * context_bytes(model, _ACT, context, quantized_kv)
    read = step_weight_bytes(model, _ACT, quantization, group_size, batch) + kv_bytes
    compute = batch * _token_seconds(model, machine, context, quantization, quantized_kv)
    return Ceiling(read / machine.read_bytes_per_s, compute)


def prefill_ceiling(
    model: ModelSpec,
    machine: Machine,
    tokens: int,
    quantization: Quantization = "none",
    quantized_kv: bool = False,
    group_size: int = 32,
) -> Ceiling:
    """Return the ceiling of a prompt of `tokens` tokens, of which the last one is sampled."""
    read = step_weight_bytes(model, _ACT, quantization, group_size, tokens) + tokens * kv_bytes_per_token(
        model, _ACT, quantized_kv
    )
    compute = (tokens - 1) * _token_seconds(model, machine, tokens // 2, quantization, quantized_kv, logits=False)
    compute += _token_seconds(model, machine, tokens, quantization, quantized_kv)
    return Ceiling(read / machine.read_bytes_per_s, compute)


def ridge_tokens(
    model: ModelSpec, machine: Machine, quantization: Quantization = "none", group_size: int = 32
) -> float:
    """Return the tokens per step from which the cores, and no longer the memory, are the limit."""
    memory = step_weight_bytes(model, _ACT, quantization, group_size) / machine.read_bytes_per_s
    return memory / _token_seconds(model, machine, 0, quantization)


def _token_seconds(
    model: ModelSpec,
    machine: Machine,
    context: int,
    quantization: Quantization,
    quantized_kv: bool = False,
    logits: bool = True,
) -> float:
    """Return the seconds of computing for one token: the layers and the output projection at the rate of how they are
    packed (of int4 it is int8's), attention at that of activations, or over int8 keys and values twice as many
    operations in int8; latent attention over compressed vectors, as the kernels have it."""
    rates = machine.flops_per_s
    layers, head = holds_of(model, quantization)
    seconds = layer_flops_per_token(model) / rates[_ACT if layers == "act" else "int8"]
    attention = attention_flops_per_token(model, context, compressed=True)
    seconds += 2 * attention / rates["int8"] if quantized_kv else attention / rates[_ACT]
    if logits:
        seconds += logit_flops_per_token(model) / rates[_ACT if head == "act" else "int8"]
    return seconds
