"""A family of models: the names by which its config.json is recognized, what it makes of the fields, and pieces that
most families share.

Knows attention, MLPs and experts as most config.json files spell them. What differs stands in the family's own file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from inflight.counted import there_are
from inflight.models.errors import ModelError
from inflight.models.fields import Fields
from inflight.models.mixers.attention import Attention, QkNorm
from inflight.models.mlps.dense import Dense
from inflight.models.mlps.moe import MoE, Router
from inflight.models.pooler import BASE, CLASSIFIER, GENERATES, of_decoder
from inflight.models.rope import RopeSettings
from inflight.models.spec import LayerSpec, LearnedPositions, NormKind, Pooler

FULL, SLIDING = "full_attention", "sliding_attention"
SOFTMAX = Router()


class Family(Struct, frozen=True, kw_only=True):
    """architectures, model_types: names in config.json that mean it. layers: of the fields, one for all layers or each.
    understands: fields that change the arithmetic (`fields`) and that `layers` reads. defaults: for fields that are
    left out. runs: whether this engine's decoder computes it. eps: the field's name. head_bias: whether the projection
    to logits has one; None: no. rope: of the fields and a layer's attention, what rotates it; asked of families that
    run. names: parts of tensors' names that its checkpoints spell differently, usual → theirs; several that mean one
    tensor are its rows, one after the other. wrappers: architectures of which it is the text part, beside images and
    the like.

    aliases: fields that it names otherwise, usual → its own.

    Of families that continue no text: generates is False; pooler: of the architecture's name and the fields, what is
    pooled from a text; positions, token_types, embedding_norm, final_norm, roots: as `ModelSpec` has them."""

    name: str
    architectures: tuple[str, ...]
    model_types: tuple[str, ...]
    layers: Callable[[Fields], LayerSpec | Sequence[LayerSpec]]
    understands: frozenset[str] = frozenset()
    defaults: Mapping[str, Any] = {}
    runs: bool = False
    norm: NormKind = "rms"
    norm_offset: bool = False
    eps: str = "rms_norm_eps"
    head_bias: Callable[[Fields], bool] | None = None
    embedding_scale: Callable[[Fields], float] | None = None
    logit_scale: Callable[[Fields], float] | None = None
    logit_cap: Callable[[Fields], float] | None = None
    residual_scale: Callable[[Fields], float] | None = None
    rope: Callable[[Fields, Attention, int], RopeSettings | None] = lambda fields, mixer, layer: rope(fields, mixer)
    names: Mapping[str, str] = {}
    wrappers: tuple[str, ...] = ()
    aliases: Mapping[str, str] = {}
    generates: bool = True
    pooler: Callable[[str, Fields], Pooler | None] = of_decoder
    positions: Callable[[Fields], LearnedPositions] | None = None
    token_types: Callable[[Fields], int] | None = None
    embedding_norm: bool = False
    final_norm: bool = True
    roots: tuple[str, ...] = ()

    @property
    def all_architectures(self) -> tuple[str, ...]:
        """Return the architectures that continue texts, and those of the same layers that embed or classify texts."""
        if not self.generates:
            return self.architectures
        stems = [one.removesuffix(GENERATES) for one in self.architectures if one.endswith(GENERATES)]
        return (*self.architectures, *(stem + end for stem in stems for end in (BASE, CLASSIFIER)))


def rope(
    fields: Fields, mixer: Attention, *, partial: bool = False, interleaved: bool = False, kind: str | None = None
) -> RopeSettings:
    """partial: the family may rotate a part of the head. interleaved: as its checkpoints hold queries and keys. kind:
    of the layer, where each kind has a rope object of its own (`rope_parameters` by FULL and SLIDING)."""
    data = fields.data
    by_kind = data.get("rope_parameters")
    if kind is not None and isinstance(by_kind, Mapping) and isinstance(by_kind.get(kind), Mapping):
        data = {**data, "rope_scaling": None, "rope_parameters": by_kind[kind]}
    length = fields.size("max_position_embeddings")
    return RopeSettings.from_dict(data, mixer.head_dim, length, partial=partial, interleaved=interleaved)


def attention(
    fields: Fields,
    *,
    heads: str = "num_attention_heads",
    kv_heads: str = "num_key_value_heads",
    window: int = 0,
    chunked: bool = False,
    qk_norm: QkNorm = "none",
    qk_norm_last: bool = False,
    bias: str | None = None,
    qkv_bias: bool = False,
    output_bias: bool = False,
    sinks: bool = False,
    gate: bool = False,
    scale: float = 0.0,
    soft_cap: float = 0.0,
    causal: bool = True,
) -> Attention:
    """heads, kv_heads, bias: names of fields; bias is a flag of all four projections. Raises ModelError where heads do
    not fit together."""
    num_heads, hidden = fields.size(heads), fields.size("hidden_size")
    num_kv_heads = fields.size(kv_heads, num_heads)
    head_dim = fields.size("head_dim", hidden // num_heads)
    if num_heads % num_kv_heads:
        raise ModelError(
            f"{heads} ({num_heads}) must be a multiple of {kv_heads} ({num_kv_heads}), so that each key head serves as "
            "many query heads."
        )
    if head_dim % 2:
        raise ModelError(
            f"the head dimension must be even to be rotated in pairs, but it is {head_dim} "
            f"(hidden_size {hidden}, {heads} {num_heads})."
        )
    return Attention(
        heads=num_heads,
        kv_heads=num_kv_heads,
        head_dim=head_dim,
        causal=causal,
        window=window,
        chunked=chunked and window > 0,
        qk_norm=qk_norm,
        qk_norm_last=qk_norm_last,
        qkv_bias=qkv_bias or (bias is not None and fields.flag(bias)),
        output_bias=output_bias or (bias is not None and fields.flag(bias)),
        sinks=sinks,
        gate=gate,
        scale=scale,
        soft_cap=soft_cap,
    )


def activation(fields: Fields) -> str:
    return fields.text("hidden_act", fields.text("hidden_activation", "silu"))


def dense(
    fields: Fields,
    width: str = "intermediate_size",
    *,
    gated: bool = True,
    bias: bool = False,
    act: str | None = None,
) -> Dense:
    """act: the activation function, where no field that all families share says it."""
    return Dense(width=fields.size(width), activation=act or activation(fields), gated=gated, bias=bias)


def experts(
    fields: Fields,
    count: str,
    *,
    top_k: str = "num_experts_per_tok",
    width: str = "moe_intermediate_size",
    router: Router = SOFTMAX,
    bias: bool = False,
    shared_width: int = 0,
    shared_gate: bool = False,
    act: str | None = None,
) -> MoE:
    """count, top_k, width: the fields' names. act: the activation, where no field says it. Raises
    ModelError where more experts are picked than there are, or can be, and for groups that they do not fill."""
    number, picked = fields.size(count), fields.size(top_k)
    if picked > number:
        raise ModelError(f"{top_k} is {picked}, but {there_are(number, 'expert')}.")
    groups, taken = router.groups, router.top_groups
    unequal = groups > 1 and (number % groups or number // groups < router.group_best)
    if unequal or taken > groups:
        raise ModelError(
            f"{number} experts do not make {groups} equal groups of at least {router.group_best}, of which {taken} are "
            f"taken; n_group and topk_group in config.json must fit {count}."
        )
    if picked > number // groups * taken:
        raise ModelError(
            f"{top_k} is {picked}, but {taken} of {groups} groups have {number // groups * taken} experts; n_group and "
            "topk_group in config.json must leave enough."
        )
    return MoE(
        experts=number,
        top_k=picked,
        width=fields.size(width),
        activation=act or activation(fields),
        router=router,
        bias=bias,
        shared_width=shared_width,
        shared_gate=shared_gate and shared_width > 0,
    )


def windows_of(fields: Fields, default: Callable[[int], bool]) -> list[int]:
    """Window of each layer in tokens, 0 for none: by `layer_types`, else where `default` says so of its number."""
    window = fields.window
    types = fields.layer_types((FULL, SLIDING))
    if types is None:
        return [window if default(index) else 0 for index in range(fields.layers)]
    return [window if kind == SLIDING else 0 for kind in types]
