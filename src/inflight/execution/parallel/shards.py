"""Cuts a model for several devices: its shape on each, and where each tensor is cut.

Knows specs and names of tensors; no weights, no device. Cut are the heads of attention and the width of MLPs and
experts: the first matrices of both by their outputs, the last ones by their inputs, whose products are then parts of a
sum. Of KV heads that are fewer than devices, several devices hold the same one. Everything else is whole on every
device: tables, the output projection, routers, norms, and mixers that this module does not know how to cut.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from msgspec.structs import replace

from inflight.models.errors import ModelError
from inflight.models.spec import (
    Attention,
    LatentAttention,
    LayerSpec,
    LinearAttention,
    Mamba,
    Mixer,
    Mlp,
    ModelSpec,
    MoE,
    ShortConvolution,
)

MAX_RANKS = 64  # devices that share a model
_NAMED = re.compile(r"model\.layers\.(\d+)\.(self_attn|mlp)\.(?:shared_experts\.|experts\.\d+\.)?(\w+?)(?:\.(\w+))?")
_BY_HEAD = frozenset(("q_proj", "gate_proj", "sinks"))
_BY_KV_HEAD = frozenset(("k_proj", "v_proj"))
_BY_WIDTH = frozenset(("gate_proj", "up_proj"))
_WHOLE: dict[type[Mixer], str] = {
    Attention: "attention whose norms are over all heads, or that learns distances",
    LatentAttention: "latent attention",
    LinearAttention: "linear attention",
    Mamba: "state spaces",
    ShortConvolution: "convolutions",
}


class Cut(NamedTuple):
    """A tensor in `parts` equal pieces along its outputs or its inputs, of which number `place` is meant. sum: of the
    bias of a product that is cut by its inputs, which counts in one of the parts alone."""

    along: Literal["outputs", "inputs", "sum"]
    parts: int
    place: int


@dataclass(frozen=True)
class Shard:
    """The part of a model that one of `ranks` devices holds. Raises ModelError where it cannot be cut so."""

    whole: ModelSpec
    rank: int
    ranks: int

    @cached_property
    def spec(self) -> ModelSpec:
        """The model as this device computes it. The same on each."""
        return cut_model(self.whole, self.ranks)

    def cut_of(self, name: str) -> Cut | None:
        """Return the cut of a tensor, by the name that a layer asks for; None: it is whole everywhere."""
        found = _NAMED.fullmatch(name)
        if found is None:
            return None
        number, within, part, kind = found.groups()
        mixer = self.whole.layers[int(number)].mixer
        last, outputs = "down_proj", _BY_WIDTH
        if within == "self_attn":
            if not isinstance(mixer, Attention) or not is_cut(mixer):
                return None
            last, outputs = "o_proj", _BY_HEAD
            if part in _BY_KV_HEAD:
                parts = min(self.ranks, mixer.kv_heads)
                return Cut("outputs", parts, self.rank * parts // self.ranks)
        if part == last:
            return Cut("sum" if kind == "bias" else "inputs", self.ranks, self.rank)
        return Cut("outputs", self.ranks, self.rank) if part in outputs else None


def cut_model(model: ModelSpec, ranks: int) -> ModelSpec:
    """Return a model as each of so many devices computes it. Raises ModelError where they cannot share it evenly."""
    if reason := _why_not(model, ranks):
        others = [f"{count}" for count in range(2, MAX_RANKS + 1) if not _why_not(model, count)]
        do = f"it can be {_one_of(others)}" if others else "leave it out"
        raise ModelError(f"the model has {reason}, which {ranks} devices cannot share; --tensor-parallel-size: {do}.")
    cut = {layer: _cut_layer(layer, ranks) for layer in dict.fromkeys(model.layers)}
    return replace(model, layers=tuple(cut[layer] for layer in model.layers))


def is_cut(mixer: Mixer) -> bool:
    """Whether devices share its heads. A norm over all heads at once would need those of other devices; numbers for
    distances lie with heads in turns."""
    return isinstance(mixer, Attention) and mixer.qk_norm != "all" and not mixer.relative_buckets


def kept_whole(model: ModelSpec) -> tuple[str, ...]:
    """Describe the model's mixers that every device computes alone."""
    mixers = {layer.mixer: None for layer in model.layers if not is_cut(layer.mixer)}
    return tuple(dict.fromkeys(_WHOLE[type(mixer)] for mixer in mixers))


def _why_not(model: ModelSpec, ranks: int) -> str | None:
    """Describe sizes of the model that are no multiple of the devices; None where all are."""
    for layer in dict.fromkeys(model.layers):
        mixer = layer.mixer
        if isinstance(mixer, Attention) and is_cut(mixer):
            groups = mixer.kv_heads
            if mixer.heads % ranks or (groups % ranks and ranks % groups):
                return f"{mixer.heads} query heads and {groups} KV heads"
        widths = {"an MLP": layer.mlp.width} if not isinstance(layer.mlp, MoE) else _widths(layer.mlp)
        for what, width in widths.items():
            if width % ranks:
                return f"{what} of width {width:,}"
    return None


def _widths(mlp: MoE) -> dict[str, int]:
    return {"experts": mlp.width, "shared experts": mlp.shared_width}


def _cut_layer(layer: LayerSpec, ranks: int) -> LayerSpec:
    mixer = layer.mixer
    if isinstance(mixer, Attention) and is_cut(mixer):
        mixer = replace(mixer, heads=mixer.heads // ranks, kv_heads=max(1, mixer.kv_heads // ranks))
    return replace(layer, mixer=mixer, mlp=_cut_mlp(layer.mlp, ranks))


def _cut_mlp(mlp: Mlp, ranks: int) -> Mlp:
    if isinstance(mlp, MoE):
        return replace(mlp, width=mlp.width // ranks, shared_width=mlp.shared_width // ranks)
    return replace(mlp, width=mlp.width // ranks)


def _one_of(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
