"""Loading a model through `transformers`, and whether it can be run over a paged cache.

Knows the library's configuration, and turns it into the `ModelSpec` that the rest of the engine asks for lengths and
sizes; its layers stand for what they keep, not for what they compute. What cannot be run is found by trying: a few
tokens are computed in one go without a cache, and in pieces with it, and their logits must agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
import transformers
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM, GenerationConfig

from inflight.counted import counted
from inflight.cpus import ThreadCpus
from inflight.execution.backends.protocol import Device, DType
from inflight.execution.graphs import NO_GRAPHS, GraphLimits
from inflight.execution.memory import gib, machine_memory
from inflight.execution.packer import Progress
from inflight.execution.passes import PassDecoder
from inflight.execution.transformers.attention import NAME, LayerShape, ShapeProbe, paged_attention
from inflight.execution.transformers.backend import TransformersBackend
from inflight.execution.transformers.decoder import TransformersDecoder
from inflight.execution.transformers.trial import try_out
from inflight.models.errors import ModelError
from inflight.models.spec import Attention, Dense, Head, LayerSpec, ModelSpec, Norm

if TYPE_CHECKING:
    from inflight.execution.computing import LoadFormat

_KINDS = ("full_attention", "sliding_attention")
# Which the library does not type.
_from_config: Any = AutoModelForCausalLM.from_config
_from_pretrained: Any = AutoModelForCausalLM.from_pretrained
_TRIED = 12  # tokens of the first pass


@dataclass(frozen=True, slots=True)
class TransformersModel:
    """modules: the causal language model, in evaluation mode. kept: what each layer keeps of a token."""

    spec: ModelSpec
    modules: Any
    kept: tuple[LayerShape, ...]

    @property
    def graphs(self) -> GraphLimits:
        return NO_GRAPHS

    @property
    def parameters(self) -> int:
        return sum(one.numel() for one in self.modules.parameters())

    def open_backend(self, dtype: DType, threads: int, cpus: ThreadCpus) -> Device:
        torch.set_num_threads(threads)
        return TransformersBackend(dtype, threads, self.kept)

    def decoder(
        self, backend: Device, max_positions: int, max_tokens: int, max_logit_rows: int, progress: Progress | None
    ) -> PassDecoder:
        """Try the model over a paged cache and return its decoder. Raises ModelError, too, where its logits differ
        there."""
        assert isinstance(backend, TransformersBackend)
        try_out(self.modules, self.spec, backend)
        return TransformersDecoder(self.modules, max_tokens, max_logit_rows)


def load(folder: Path, dtype: DType | Literal["auto"], load_format: LoadFormat, seed: int) -> TransformersModel:
    """Load a folder. Raises ModelError for one that `transformers` cannot load, and for a model whose layers keep more
    than keys and values."""
    AttentionInterface.register(NAME, paged_attention)
    transformers.logging.set_verbosity_error()  # what is wrong, we say
    transformers.logging.disable_progress_bar()
    config = _config(folder)
    _check_memory(config, dtype)
    found = getattr(torch, "bfloat16" if dtype == "auto" else dtype)
    try:
        if load_format == "dummy":
            torch.manual_seed(seed)
            modules = _from_config(config, dtype=found, attn_implementation=NAME)
        else:
            modules, loading = _from_pretrained(
                folder,
                config=config,
                dtype=found,
                attn_implementation=NAME,
                use_safetensors=True,
                output_loading_info=True,
            )
            if missing := sorted(loading["missing_keys"]):
                raise KeyError(f"its files lack {counted(len(missing), 'tensor')}, {missing[0]} among them")
    except Exception as error:  # whatever the library and the model's own code raise
        if isinstance(error, KeyError) and NAME in str(error):
            raise _refused(config.get_text_config(), "it does not use the library's attention interface") from None
        raise ModelError(f"transformers cannot load {folder} ({_first_line(error)}).") from None
    modules.eval()
    kept = _kept(modules, config)
    return TransformersModel(_spec(folder, config, kept), modules, kept)


def _config(folder: Path) -> Any:
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:
        raise ModelError(
            f"transformers {transformers.__version__} does not know the model in {folder} ({_first_line(error)})."
        ) from None
    text = config.get_text_config()
    others = sorted(set(getattr(text, "layer_types", None) or _KINDS) - set(_KINDS))
    if others:
        raise _refused(text, f"it has layers of {', '.join(others)}, which keep their state outside of attention")
    if getattr(text, "is_encoder_decoder", False):
        raise _refused(text, "it is an encoder and a decoder")
    return config


def _check_memory(config: Any, dtype: str) -> None:
    """Before anything is allocated: the modules are made without memory first."""
    try:
        with torch.device("meta"):
            modules = _from_config(config)
    except Exception:  # `load` says what is wrong
        return
    needed = sum(one.numel() for one in modules.parameters()) * (4 if dtype == "float32" else 2)
    total = machine_memory().total
    if needed > total:
        raise ModelError(
            f"the model needs {gib(needed)} for its weights, but there are {gib(total)} of memory in all; take a "
            "smaller model."
        )


def _kept(modules: Any, config: Any) -> tuple[LayerShape, ...]:
    """By a pass over a few tokens."""
    text = config.get_text_config()
    if modules._is_stateful or not modules._supports_attention_backend:
        raise _refused(text, f"{type(modules).__name__} does not use the library's attention interface")
    probe, ids = ShapeProbe(), torch.arange(_TRIED)[None] % text.vocab_size
    try:
        with torch.inference_mode():
            modules(input_ids=ids, position_ids=torch.arange(_TRIED)[None], use_cache=False, paged=probe)
    except Exception as error:
        raise ModelError(
            f"--backend transformers cannot run {text.model_type}: trying {_TRIED} tokens failed in the library or the "
            f"model's code ({_first_line(error)}); leave --backend out if inflight models lists this family."
        ) from None
    layers = text.num_hidden_layers
    missing = [index for index in range(layers) if index not in probe.layers]
    if missing or len(probe.layers) > layers:
        raise _refused(text, f"{len(probe.layers)} of its {layers} layers use the library's attention interface")
    return tuple(probe.layers[index] for index in range(layers))


def _spec(folder: Path, config: Any, kept: Sequence[LayerShape]) -> ModelSpec:
    text = config.get_text_config()
    try:
        generation = GenerationConfig.from_pretrained(folder)
    except OSError:
        generation = GenerationConfig.from_model_config(config)
    ends = generation.eos_token_id if generation.eos_token_id is not None else text.eos_token_id
    mlp = Dense(width=getattr(text, "intermediate_size", None) or 4 * text.hidden_size, activation="silu")
    heads = text.num_attention_heads
    layers = tuple(
        LayerSpec(Attention(heads=heads, kv_heads=one.kv_heads, head_dim=(one.key_dim + one.value_dim) // 2), mlp)
        for one in kept
    )
    return ModelSpec(
        name=folder.name,
        family=str(text.model_type),
        runs=False,
        vocab_size=text.vocab_size,
        hidden_size=text.hidden_size,
        layers=layers,
        norm=Norm(),
        head=Head(tied=bool(getattr(config, "tie_word_embeddings", False))),
        embedding_scale=1.0,
        max_position_embeddings=text.max_position_embeddings,
        end_token_ids=tuple(ends if isinstance(ends, list) else [] if ends is None else [ends]),
        bos_token_id=text.bos_token_id,
        checkpoint_dtype=str(config.dtype).removeprefix("torch.") if config.dtype is not None else None,
        weight_format=None,
    )


def _refused(text: Any, why: str) -> ModelError:
    return ModelError(
        f"--backend transformers cannot run {text.model_type}: {why}, and a paged cache has no place for that; take a "
        "model of a family that runs without it."
    )


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or ['no reason given'])[0][:300]}".rstrip(".")
