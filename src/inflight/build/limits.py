"""What is decided before a model's weights are read: device, number formats, rows, budget, lengths.

Knows which answers of the machine and the model each of them is resolved from; the rules are `config.engine`'s.
"""

from __future__ import annotations

import logging
import os

from msgspec import Struct

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
from inflight.config.setting import Resolved, SettingsError
from inflight.config.threads import resolve_threads
from inflight.execution.attention_backends import AttentionUse, misfit
from inflight.execution.backends.protocol import DType
from inflight.execution.backends.torch.device import DeviceError, check_fp8, choose
from inflight.execution.graph_limits import NO_GRAPHS, GraphLimits
from inflight.execution.states import states_of
from inflight.models.spec import LatentAttention, ModelSpec

log = logging.getLogger(__name__)
INT4_COST = "20 to 26 %"  # of perplexity: docs/models.md, "int4 from plain weights"


class Limits(Struct, frozen=True):
    """What is decided before a model is loaded, with reasons; as plain values by the properties. whole_texts: each is
    computed in one pass."""

    device: Resolved
    dtype: Resolved
    quantization: Resolved
    kv_cache: Resolved
    threads: Resolved
    rows: Resolved
    budget: Resolved
    length: Resolved
    whole_texts: bool

    @property
    def on_gpu(self) -> bool:
        return self.device.value != "cpu"

    @property
    def device_name(self) -> str:
        return str(self.device.value)

    @property
    def number_format(self) -> DType:
        """Of activations, and of weights that are not quantized."""
        return "float32" if self.dtype.value == "float32" else "bfloat16"

    @property
    def num_threads(self) -> int:
        return int(self.threads.value)

    @property
    def max_rows(self) -> int:
        return int(self.rows.value)

    @property
    def max_tokens(self) -> int:
        """Of one step."""
        return int(self.budget.value)

    @property
    def pass_tokens(self) -> int:
        """Of one forward pass."""
        return max(self.max_tokens, self.max_model_len) if self.whole_texts else self.max_tokens

    @property
    def max_model_len(self) -> int:
        return int(self.length.value)

    @property
    def logit_rows(self) -> int:
        """Most rows of logits at once."""
        return GPU_LOGIT_ROWS if self.on_gpu else LOGIT_ROWS


def resolve_limits(settings: EngineSettings, model: ModelSpec, device: Resolved, strategy: str) -> Limits:
    """strategy: its name. Raises SettingsError."""
    dtype, on_gpu = _dtype(settings, model), device.value != "cpu"
    _check_fp8(settings, device)
    _check_attention(settings, model, device, "float32" if dtype.value == "float32" else "bfloat16")
    rows = resolve_rows(settings, on_gpu)
    return Limits(
        device=device,
        dtype=dtype,
        quantization=resolve_quantization(settings, str(dtype.value), model.weight_format),
        kv_cache=resolve_kv_cache_dtype(settings, str(dtype.value)),
        threads=resolve_threads(settings),
        rows=rows,
        budget=resolve_budget(settings, int(rows.value), strategy, on_gpu),
        length=resolve_max_model_len(settings, model.default_model_len),
        whole_texts=model.pools_whole_texts,
    )


def warn_of_int4(settings: EngineSettings, model: ModelSpec) -> None:
    """Log what int4 costs a model whose matrices come plain, and what costs less."""
    if settings.quantization.startswith("int4") and model.weight_format is None and settings.load_format != "dummy":
        log.warning(
            "--quantization %s rounds weights without calibration, which cost %s of perplexity on models of 135 and "
            "270 million parameters; take --quantization int8, or a checkpoint that was calibrated (GGUF Q4_K_M, AWQ, "
            "GPTQ).",
            settings.quantization,
            INT4_COST,
        )


def resolve_device(settings: EngineSettings) -> Resolved:
    """What computes: the CPU, or one of its GPUs. Raises SettingsError where there is none as set."""
    if settings.backend == "transformers":
        return Resolved("cpu", "where --backend transformers computes")
    try:
        found = choose(settings.device)
    except DeviceError as error:
        raise SettingsError(str(error)) from None
    return Resolved(found.name, found.reason)


def _check_fp8(settings: EngineSettings, device: Resolved) -> None:
    """Raises SettingsError where floats of 8 bits are asked for and the device does not multiply them."""
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


def _check_attention(settings: EngineSettings, model: ModelSpec, device: Resolved, dtype: DType) -> None:
    """Raises SettingsError where attention is to be a library's, which cannot compute it."""
    name = settings.attention_backend
    if name == "auto":
        return
    if device.value == "cpu":
        raise SettingsError(
            f"--attention-backend is {name}, which is for GPUs, but the device is the CPU ({device.reason}); leave it "
            "out."
        )
    quantized = settings.kv_cache_dtype in ("int8", "fp8")
    why = misfit(name, model, AttentionUse(settings.block_size, dtype, quantized, settings.batch_invariant))
    if why is not None:
        raise SettingsError(why)


def graph_limits(settings: EngineSettings, model: ModelSpec) -> GraphLimits:
    """On a GPU. Only models that continue texts have graphs, of as many rows as logits are computed of at once; and of
    chunks of several tokens, where nothing that is launched for them follows from what the host knows of each."""
    if settings.enforce_eager or model.head is None:
        return NO_GRAPHS
    rows = min(int(resolve_rows(settings, on_gpu=True).value), GPU_LOGIT_ROWS)
    if settings.attention_backend != "auto" or states_of(model):
        return GraphLimits(rows, 0)
    most = GPU_GRAPH_TOKENS
    if any(isinstance(layer.mixer, LatentAttention) for layer in model.layers):
        most = GPU_LOGIT_ROWS  # its splits take gigabytes as it is
    return GraphLimits(rows, min(settings.max_num_batched_tokens or most, most))


def _dtype(settings: EngineSettings, model: ModelSpec) -> Resolved:
    if settings.dtype != "auto":
        return Resolved(settings.dtype, "as set")
    found = model.checkpoint_dtype or "no stated type"
    return Resolved("bfloat16", f"half the bytes to read of float32 (the checkpoint has {found})")
