"""Models computed by the modules of the `transformers` library (`--backend transformers`), on our paged cache.

`paged_attention` takes the place of a model's attention: one of our backends writes keys and values, as the modules
make them, into its cache and attends to them. A model that keeps anything else cannot be run, which a trial shows.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from torch import Tensor
from torch.nn.functional import pad
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM, GenerationConfig

from inflight.core.types.plan import Capacity, Chunk, NewRequest
from inflight.core.types.sampling import SamplingParams
from inflight.counted import counted
from inflight.cpus import ThreadCpus
from inflight.execution import ops
from inflight.execution.backends import open_backend
from inflight.execution.backends.host import HostBackend
from inflight.execution.backends.null import NullBackend
from inflight.execution.backends.protocol import Backend, Device, DType
from inflight.execution.backends.torch.device import gpu_memory
from inflight.execution.backends.torch.memory import DeviceActivation
from inflight.execution.graphs import NO_GRAPHS, GraphLimits
from inflight.execution.memory import gib, kv_shape, machine_memory
from inflight.execution.packer import Progress, WeightSlice
from inflight.execution.program import Program, Workspace
from inflight.execution.weights import check_positions
from inflight.models.errors import ModelError
from inflight.models.mixers.attention import Attention
from inflight.models.mlps.dense import Dense
from inflight.models.spec import Head, LayerSpec, ModelSpec, Norm

_NAME = "inflight_paged"  # of `paged_attention` in the library's registry
_KINDS = ("full_attention", "sliding_attention")
_NO_PLACE = ", and a paged cache has no place for that"
_NO_INTERFACE = f"does not use the library's attention interface{_NO_PLACE}"
_MAX_ERROR = 0.05  # of the logits' norm: bf16 errs by a tenth of it
_library: Any = AutoModelForCausalLM  # which the library does not type
# (layer, its shape, query [1, H, T, D], key [1, G, T, D], value [1, G, T, M], sinks [H]) → [1, T, H, M]
_Attend = Callable[[int, Attention, Tensor, Tensor, Tensor, Tensor | None], Tensor]


def paged_attention(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **given: Any
) -> tuple[Tensor, None]:
    """Attend as the library's attention interface asks for it. given: its arguments by name; and `paged`, an `_Attend`
    of the pass that modules pass on to their layers. Raises ModelError for what the paged cache does not have."""
    paged, layer = given.get("paged"), getattr(module, "layer_idx", None)
    if paged is None or layer is None:
        raise ModelError(f"{type(module).__name__} does not pass on what its attention needs to find the paged cache")
    biased = attention_mask is not None or given.get("position_bias") is not None
    if biased or not getattr(module, "is_causal", True) or given.get("is_causal") is False:
        raise ModelError(f"{type(module).__name__} adds a mask of its own to its attention")
    width = max(key.shape[3], value.shape[3])
    spec = Attention(
        heads=query.shape[1],
        kv_heads=key.shape[1],
        head_dim=width + width % 2,  # of keys and values: both are filled up with zeros to an even number
        window=given.get("sliding_window") or 0,
        scale=given.get("scaling") or query.shape[3] ** -0.5,
        soft_cap=given.get("softcap") or 0.0,
        sinks=given.get("s_aux") is not None,
    )
    return paged(layer, spec, query, key, value, given.get("s_aux")), None


class TransformersDecoder:
    """Decoder over a causal language model of the library. The modules are called once for all tokens of a pass, side
    by side as one text, then for the logits, over a base model that answers with the wanted rows of the first call."""

    weight_slices: Mapping[str, WeightSlice] = {}  # weights are the modules' own

    def __init__(self, modules: Any, spec: ModelSpec, backend: Backend, max_tokens: int, max_logit_rows: int) -> None:
        self.max_tokens, self.max_logit_rows = max_tokens, max_logit_rows
        self._base, self._layers, self._backend = modules.base_model, [one.mixer for one in spec.layers], backend
        self._found: Any = None  # the base model's output of the pass; `_wanted` has the rows whose logits are computed
        answer: Any = lambda *arguments, **named: self._wanted  # noqa: E731
        answer.decoder = answer.language_model = answer  # whichever of its parts is called
        self._head = copy.copy(modules)
        self._head._modules = {**modules._modules, modules.base_model_prefix: answer}
        self._workspace, self._attention = Workspace(backend.activation, max_tokens), dict[int, Any]()
        begin = Program()
        for width in {one.qkv_rows for one in self._layers if isinstance(one, Attention)}:
            ops.clear(begin, self._workspace.take("qkv", width, "float32"))  # with a row for each token of the pass
        self._begin = backend.compile(begin)

    def forward(self, batch: Any) -> None:
        ids, at = (torch.as_tensor(one).long()[None] for one in (batch.token_ids, batch.positions))
        batch.run(self._begin)
        self._found = self._base(position_ids=at, paged=partial(self._attend, batch), use_cache=False, input_ids=ids)

    def pooled(self, batch: Any, texts: Sequence[range]) -> Any:
        return self._activation(self._found.last_hidden_state[0, [text[-1] for text in texts]].float())

    def logits(self, batch: Any, places: Sequence[int]) -> Any:
        """Return logits float32[S, V] after the tokens at `places`."""
        self._wanted = copy.copy(self._found)
        self._wanted["last_hidden_state"] = self._found.last_hidden_state[:, list(places)]
        ids = torch.as_tensor(batch.token_ids)[None, : len(places)].long()  # they are not looked up
        return self._activation(self._head(input_ids=ids, use_cache=False).logits[0].float().contiguous())

    def _attend(
        self, batch: Any, layer: int, spec: Attention, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None
    ) -> Tensor:
        if spec != self._layers[layer]:
            raise ModelError(f"layer {layer} changes its attention from pass to pass")
        take, tokens, width = self._workspace.take, query.shape[2], spec.heads * spec.head_dim
        qkv, q, out = take("qkv", spec.qkv_rows, "float32"), take("q", width), take("attended", width)
        if layer not in self._attention:
            vector = None if sinks is None else self._backend.pack_vector(sinks.float().flatten().cpu().numpy())
            program = Program()
            ops.rope_and_write_kv(program, qkv, layer, None, None, None, 0.0, q)
            ops.attention(program, q, layer, spec.scale, spec.window, out, spec.soft_cap, vector)
            self._attention[layer] = self._backend.compile(program)
        filled = torch.cat([pad(one[0], (0, spec.head_dim - one.shape[3])) for one in (query, key, value)])
        _numbers(qkv)[:tokens] = filled.transpose(0, 1).flatten(1)
        batch.run(self._attention[layer])
        attended = _numbers(out)[:tokens].view(1, tokens, spec.heads, spec.head_dim)
        return attended[..., : value.shape[3]].to(query.dtype, copy=True)

    def _activation(self, rows: Tensor) -> Any:  # of float32[S, N], contiguous
        if isinstance(self._backend, HostBackend):
            return self._backend.activation_of(rows.numpy())
        return DeviceActivation(rows, len(rows))


def _numbers(activation: Any) -> Tensor:  # its memory
    if isinstance(activation, DeviceActivation):
        return activation.tensor
    found = torch.from_numpy(activation.array)
    return found.view(torch.bfloat16) if found.dtype == torch.uint16 else found


@dataclass(frozen=True, slots=True)
class TransformersModel:
    """modules: the causal language model on its device."""

    spec: ModelSpec
    modules: Any
    device: str
    parameters: int
    graphs: GraphLimits = NO_GRAPHS

    def open_backend(self, dtype: DType, threads: int, cpus: ThreadCpus) -> Device:
        torch.set_num_threads(threads)
        backend = open_backend(dtype, threads, cpus=cpus, device=self.device)
        backend.name += f", modules of transformers by torch {torch.__version__}"
        backend.batch_invariant = False  # products are PyTorch's
        return backend

    def decoder(
        self, backend: Device, max_positions: int, max_tokens: int, max_logit_rows: int, progress: Progress | None
    ) -> TransformersDecoder:
        """Try the model and return its decoder. Raises ModelError where its logits over a paged cache differ."""
        assert isinstance(backend, Backend)
        if isinstance(backend, NullBackend):
            raise ModelError(
                "INFLIGHT_ISA=null computes nothing, but --backend transformers does; leave one of them out."
            )
        check_positions(self.spec, max_positions)
        _fix_rotations(self.modules, max_positions)
        try:
            share = self.difference(backend)
        except Exception as error:  # whatever the model's own code raises
            raise _refused(self.spec.family, f"it ends with {type(error).__name__}: {str(error)[:200]}") from None
        if not share < _MAX_ERROR:
            off = f"{100 * share:.3g} % off those without one, so that some of its layers keep state elsewhere"
            raise _refused(self.spec.family, f"its logits over a paged cache are {off}")
        return TransformersDecoder(self.modules, self.spec, backend, max_tokens, max_logit_rows)

    def difference(self, backend: Backend) -> float:
        """Return how far two texts' logits over a paged cache are from those without one, as a share of their norm."""
        texts = [[(31 * row + 7 * at) % self.spec.vocab_size for at in range(32)] for row in (0, 1)]
        self.modules.set_attn_implementation("eager")
        right = self.modules(torch.tensor(texts, device=self.device), use_cache=False).logits.float()
        self.modules.set_attn_implementation(_NAME)
        state = backend.input_batch(Capacity(4, 16, 2, 33, self.spec.vocab_size), 0)
        decoder = TransformersDecoder(self.modules, self.spec, backend, 32, 32)
        new = [NewRequest(row, tuple(text), len(text), SamplingParams(), 0, 0) for row, text in enumerate(texts)]
        cache, errors, starts = backend.kv_cache(kv_shape(self.spec, 16), 4), [], [0, 0]
        for counts in ((7, 19), (8, 1), (5, 3)):  # tokens of both texts that one pass computes
            chunks = [Chunk(row, row, starts[row], counts[row], (row, row + 2) if new else (), 0) for row in (0, 1)]
            state.update(chunks, new)
            batch = backend.prepare(state, cache, chunks)
            decoder.forward(batch)
            found = _numbers(decoder.logits(batch, range(sum(counts))))
            wanted = torch.cat([right[row, starts[row] : starts[row] + counts[row]] for row in (0, 1)])
            errors.append((found - wanted).norm() / wanted.norm())
            starts, new = [starts[row] + counts[row] for row in (0, 1)], []
        return float(torch.stack(errors).max())


def load(folder: Path, dtype: DType | Literal["auto"], dummy: bool, seed: int, device: str) -> TransformersModel:
    """Load a folder. Raises ModelError where `transformers` cannot, and where layers keep more than keys and values."""
    AttentionInterface.register(_NAME, paged_attention)
    transformers.logging.set_verbosity_error()  # what is wrong, we say
    transformers.logging.disable_progress_bar()
    config = _config(folder)
    text = config.get_text_config()
    _check_memory(config, dtype, device)
    options = {"dtype": getattr(torch, "bfloat16" if dtype == "auto" else dtype), "attn_implementation": _NAME}
    try:
        if dummy:
            torch.manual_seed(seed)
            modules = _library.from_config(config, **options)
        else:
            options |= {"config": config, "use_safetensors": True, "output_loading_info": True}
            options["ignore_mismatched_sizes"] = True  # which are named below
            modules, loading = _library.from_pretrained(folder, **options)
            if missing := sorted(loading["missing_keys"]):
                raise KeyError(f"its files lack {counted(len(missing), 'tensor')}, {missing[0]} among them")
            for name, found, wanted in sorted(loading["mismatched_keys"]):
                raise ValueError(f"{name} is {list(found)} in its files and {list(wanted)} by its config.json")
    except Exception as error:  # whatever the library and the model's own code raise
        if isinstance(error, KeyError) and _NAME in str(error):
            raise _refused(text.model_type, f"it {_NO_INTERFACE}") from None
        raise ModelError(f"transformers cannot load {folder} ({_reason(error)}).") from None
    modules = modules.eval().requires_grad_(False).to(device)
    spec = _spec(folder, config, text, _layers(modules, text, device))
    return TransformersModel(spec, modules, device, sum(one.numel() for one in modules.parameters()))


def _fix_rotations(modules: torch.nn.Module, max_positions: int) -> None:
    """Let rotations whose frequencies follow the longest text of a call take those of `max_positions`.

    A pass computes several texts and a cache keeps rotated keys, so the frequencies can only be those of the longest
    text (`execution/rope.py` has the same). Such a module is called with one more position, the last there can be.
    """

    def add_last(_: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        def longer(at: Tensor) -> Tensor:
            return pad(at, (0, 1), value=max_positions - 1)

        if "position_ids" in named:
            return arguments, {**named, "position_ids": longer(named["position_ids"])}
        hidden, at, *others = arguments
        return (hidden, longer(at), *others), named

    for one in modules.modules():
        if any(kind in str(getattr(one, "rope_type", "")) for kind in ("dynamic", "longrope")):
            one.register_forward_pre_hook(add_last, with_kwargs=True)
            one.register_forward_hook(lambda *call: tuple(part[..., :-1, :] for part in call[-1]))


def _config(folder: Path) -> Any:
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:
        if "custom code" in str(error):
            why = "its code comes with its files, and no model's code is run here"
            raise _refused(f"the model in {folder}", why) from None
        why = f"does not know the model in {folder} ({_reason(error)})"
        raise ModelError(f"transformers {transformers.__version__} {why}.") from None
    text = config.get_text_config()
    others = sorted(set(getattr(text, "layer_types", None) or _KINDS) - set(_KINDS))
    if others:
        why = f"it has layers of {', '.join(others)}, which keep their state outside of attention{_NO_PLACE}"
        raise _refused(text.model_type, why)
    if getattr(text, "is_encoder_decoder", False):
        raise _refused(text.model_type, f"it is an encoder and a decoder{_NO_PLACE}")
    return config


def _check_memory(config: Any, dtype: str, device: str) -> None:
    """Raise ModelError for weights that do not fit, before they are allocated."""
    try:
        with torch.device("meta"):
            modules = _library.from_config(config)
    except Exception:  # `load` says what is wrong
        return
    needed = sum(one.numel() for one in modules.parameters()) * (4 if dtype == "float32" else 2)
    total = machine_memory().total if device == "cpu" else gpu_memory(torch.device(device)).total
    if needed > total:
        there = f"there are {gib(total)} of memory in all; take a smaller model"
        raise ModelError(f"the model needs {gib(needed)} for its weights, but {there}.")


def _layers(modules: Any, text: Any, device: str) -> tuple[LayerSpec, ...]:
    """Return each layer's shape as a pass over a few tokens calls its attention; the MLP stands for any."""
    found = dict[int, LayerSpec]()
    mlp = Dense(width=getattr(text, "intermediate_size", None) or 4 * text.hidden_size, activation="silu")
    if modules._is_stateful or not modules._supports_attention_backend:
        raise _refused(text.model_type, f"{type(modules).__name__} {_NO_INTERFACE}")

    def probe(layer: int, spec: Attention, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None) -> Tensor:
        found[layer] = LayerSpec(spec, mlp)
        return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3])

    at = torch.arange(12, device=device)[None]
    try:
        modules(input_ids=at % text.vocab_size, position_ids=at, use_cache=False, paged=probe)
    except Exception as error:
        why = f"trying {at.numel()} tokens failed in the library or the model's code ({_reason(error)})"
        raise _refused(text.model_type, why, "leave --backend out if inflight models lists this family") from None
    if sorted(found) != list(range(text.num_hidden_layers)):
        why = f"{len(found)} of its {text.num_hidden_layers} layers use the library's attention interface{_NO_PLACE}"
        raise _refused(text.model_type, why)
    return tuple(found[index] for index in sorted(found))


def _spec(folder: Path, config: Any, text: Any, layers: tuple[LayerSpec, ...]) -> ModelSpec:
    try:
        generation = GenerationConfig.from_pretrained(folder)
    except OSError:
        generation = GenerationConfig.from_model_config(config)
    longest, length = _lengths(text)
    ends = generation.eos_token_id if generation.eos_token_id is not None else text.eos_token_id
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
        max_position_embeddings=longest,
        end_token_ids=tuple(ends if isinstance(ends, list) else [] if ends is None else [ends]),
        bos_token_id=text.bos_token_id,
        checkpoint_dtype=str(config.dtype).removeprefix("torch.") if config.dtype is not None else None,
        weight_format=None,
        length=length,
    )


def _lengths(text: Any) -> tuple[int, int | None]:
    """Return the longest text in tokens, and the default where that is less: as `RopeSettings` and `ModelSpec` do."""
    positions = int(text.max_position_embeddings)
    rope = getattr(text, "rope_parameters", None) or {}
    rope = rope.get("full_attention", rope)
    match rope.get("rope_type"):
        case "yarn":
            original = rope.get("original_max_position_embeddings") or positions
            return max(positions, int(original * (rope.get("factor") or 1))), None
        case "dynamic":
            return max(positions, int(positions * (rope.get("factor") or 1))), positions
        case "longrope":
            return positions, min(positions, rope.get("original_max_position_embeddings") or positions)
    return positions, None


def _reason(error: Exception) -> str:
    """Return the kind of error and its first line, with the next one where that ends in a colon."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no reason given"]
    return f"{type(error).__name__}: {' '.join(lines[: 1 + lines[0].endswith(':')])[:300].rstrip('.')}"


def _refused(family: str, why: str, do: str = "take a model of a family that runs without it") -> ModelError:
    return ModelError(f"--backend transformers cannot run {family}: {why}; {do}.")
