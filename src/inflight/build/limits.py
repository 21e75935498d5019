"""Resolve what is decided before a model's weights are read: device, number formats, rows, budget, lengths."""

from __future__ import annotations

import logging
import os

from msgspec import Struct

from inflight.config.assembly import longest_chunk
from inflight.config.engine import (
    GPU_GRAPH_TOKENS,
    GPU_LOGIT_ROWS,
    LOGIT_ROWS,
    EngineSettings,
    resolve_budget,
    resolve_kv_cache_dtype,
    resolve_max_model_len,
    resolve_quantization,
    resolve_rows,
)
from inflight.config.scheduling import SchedulingSettings
from inflight.config.setting import Resolved, SettingsError
from inflight.config.threads import resolve_threads
from inflight.execution.backends.protocol import DType
from inflight.execution.backends.torch.device import DeviceError, check_fp8, choose
from inflight.execution.graphs import NO_GRAPHS, GraphLimits
from inflight.execution.memory import states_of
from inflight.models.spec import ModelSpec

log = logging.getLogger(__name__)
INT4_COST = "20 to 26 %"  # of perplexity: docs/models.md, "int4 from plain weights"


class Limits(Struct, frozen=True):
    """Limits that are decided before a model is loaded.

    Attributes:
        device: "cpu", or a GPU's name.
        number_format: of activations, and of weights that are not quantized.
        max_tokens: of one step.
        is_bidirectional: each input is computed in one pass.
        resolved: settings with the reasons of their values.
    """

    device: str
    number_format: DType
    quantization: str
    kv_cache_dtype: str
    num_threads: int
    max_rows: int
    max_tokens: int
    max_model_len: int
    is_bidirectional: bool
    resolved: dict[str, Resolved]

    @property
    def on_gpu(self) -> bool:
        return self.device != "cpu"

    @property
    def pass_tokens(self) -> int:
        """Maximum tokens of one forward pass."""
        return max(self.max_tokens, self.max_model_len) if self.is_bidirectional else self.max_tokens

    @property
    def logit_rows(self) -> int:
        """Maximum rows of logits at once."""
        return GPU_LOGIT_ROWS if self.on_gpu else LOGIT_ROWS

    def longest_chunk(self, scheduling: SchedulingSettings) -> int:
        """Return the most tokens of one sequence that a step computes."""
        return self.pass_tokens if self.is_bidirectional else longest_chunk(scheduling, self.max_tokens)


def resolve_limits(settings: EngineSettings, model: ModelSpec, device: Resolved, strategy: str) -> Limits:
    """Resolve the limits of a model on a device for the strategy of this name. Raises SettingsError."""
    dtype, on_gpu = _dtype(settings, model), device.value != "cpu"
    number_format: DType = "float32" if dtype.value == "float32" else "bfloat16"
    _check_fp8(settings, device)
    rows = resolve_rows(settings, on_gpu)
    budget = resolve_budget(settings, int(rows.value), strategy, on_gpu)
    length = resolve_max_model_len(settings, model.default_model_len)
    quantization = resolve_quantization(settings, str(dtype.value), model.weight_format)
    kv_cache_dtype, threads = resolve_kv_cache_dtype(settings, str(dtype.value)), resolve_threads(settings)
    return Limits(
        device=str(device.value),
        number_format=number_format,
        quantization=str(quantization.value),
        kv_cache_dtype=str(kv_cache_dtype.value),
        num_threads=int(threads.value),
        max_rows=int(rows.value),
        max_tokens=int(budget.value),
        max_model_len=int(length.value),
        is_bidirectional=model.pools_all_tokens,
        resolved={
            "device": device,
            "dtype": dtype,
            "quantization": quantization,
            "kv_cache_dtype": kv_cache_dtype,
            "threads": threads,
            "max_num_seqs": rows,
            "max_num_batched_tokens": budget,
            "max_model_len": length,
        },
    )


def warn_of_int4(settings: EngineSettings, model: ModelSpec) -> None:
    """Log the cost of int4 for a model whose matrices are plain, and a cheaper choice."""
    if settings.quantization.startswith("int4") and model.weight_format is None and settings.load_format != "dummy":
        log.warning(
            "--quantization %s rounds weights without calibration, which cost %s of perplexity on models of 135 and "
            "270 million parameters; take --quantization int8, or a checkpoint that was calibrated (GGUF Q4_K_M, AWQ, "
            "GPTQ).",
            settings.quantization,
            INT4_COST,
        )


def warn_of_attention_backend(settings: EngineSettings) -> None:
    """Log that no library computes attention where `--attention-backend` names one."""
    if settings.attention_backend != "auto":
        log.warning(
            "--attention-backend %s has no effect: inflight's own kernels compute attention, and no longer a library; "
            "leave the option out.",
            settings.attention_backend,
        )


def resolve_device(settings: EngineSettings) -> Resolved:
    """Return the device: the CPU, or a GPU. Raises SettingsError where this machine lacks the one that is set."""
    try:
        found = choose(settings.device)
    except DeviceError as error:
        raise SettingsError(str(error)) from None
    return Resolved(found.name, found.reason)


def _check_fp8(settings: EngineSettings, device: Resolved) -> None:
    """Check that the device multiplies fp8 where it is set. Raises SettingsError."""
    asked = {"--quantization": settings.quantization, "--kv-cache-dtype": settings.kv_cache_dtype}
    for option in (name for name, value in asked.items() if value == "fp8"):
        if device.value == "cpu" and os.environ.get("INFLIGHT_ISA") != "torch":
            raise SettingsError(
                f"{option} is fp8, which GPUs multiply, but the device is the CPU ({device.reason}); take {option} "
                "int8, which takes as much memory."
            )
        try:
            if device.value != "cpu":
                check_fp8(str(device.value), option)
        except DeviceError as error:
            raise SettingsError(str(error)) from None


def graph_limits(settings: EngineSettings, model: ModelSpec) -> GraphLimits:
    """Return the limits of a GPU's graphs.

    Only models that generate have graphs, of as many rows as logits are computed at once; graphs of longer chunks need
    launches that do not depend on what the host knows of each chunk.
    """
    if settings.enforce_eager or model.head is None:
        return NO_GRAPHS
    rows = min(int(resolve_rows(settings, on_gpu=True).value), GPU_LOGIT_ROWS)
    if states_of(model):
        return GraphLimits(rows, 0)
    max_tokens = GPU_GRAPH_TOKENS
    if any(layer.mixer.reads is not None and not layer.mixer.reads.value_dim for layer, _ in model.kinds_of_layers):
        max_tokens = GPU_LOGIT_ROWS  # splits of latent attention take gigabytes as it is
    return GraphLimits(rows, min(settings.max_num_batched_tokens or max_tokens, max_tokens))


def _dtype(settings: EngineSettings, model: ModelSpec) -> Resolved:
    if settings.dtype != "auto":
        return Resolved(settings.dtype, "as set")
    found = model.checkpoint_dtype or "no stated type"
    return Resolved("bfloat16", f"half the bytes to read of float32 (the checkpoint has {found})")
