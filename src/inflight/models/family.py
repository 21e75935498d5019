"""A family of models: the names by which its config.json is recognized, what it makes of the fields, and pieces that
most families share: attention, MLPs, experts, windows and rotations as most config.json files spell them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from inflight.counted import there_are
from inflight.models.errors import ModelError
from inflight.models.fields import Fields
from inflight.models.mixers.attention import Attention, QkNorm
from inflight.models.mlps.dense import Dense
from inflight.models.mlps.moe import MoE, Router
from inflight.models.pooler import BASE, CLASSIFIER, GENERATES, of_decoder
from inflight.models.rope import RopeSettings
from inflight.models.spec import LayerSpec, LearnedPositions, NormKind, NormPlace, Pooler, TokenInput

FULL, SLIDING = "full_attention", "sliding_attention"
SOFTMAX = Router()
SANDWICH: tuple[NormPlace, ...] = ("before mixer", "after mixer", "before mlp", "after mlp")
# Matrices that checkpoints stack: names={**dict.fromkeys(QKV, "self_attn.qkv_proj")}.
QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
GATE_UP = ("mlp.gate_proj", "mlp.up_proj")


class Family(Struct, frozen=True, kw_only=True):
    """A family of models: its names, and what it makes of the fields of a config.json.

    Attributes:
        architectures: Names in config.json that mean it.
        model_types: The same, of `model_type`.
        layers: Makes of the fields one layer for all, or each.
        understands: Fields that change the arithmetic (`fields`) and that `layers` reads.
        defaults: For fields that are left out.
        runs: This engine's decoder computes it.
        eps: Name of the field of the norms' epsilon.
        head_bias: Whether the projection to logits has a bias; None: no.
        rope: Makes of the fields, a layer's attention and its number what rotates it; asked of families that run.
        names: Parts of tensors' names that its checkpoints spell differently, usual → theirs; several that mean one
            tensor are its rows, one after the other.
        wrappers: Architectures of which it is the text part, beside images and the like.
        aliases: Fields that it names otherwise, usual → its own.
        generates: It continues texts. The fields below are of families that do not.
        pooler: Makes of the architecture's name and the fields what is pooled from a text.
        positions: As of `ModelSpec`, as are `token_types`, `embedding_norm`, `final_norm` and `roots`.
    """

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


def rotation(
    *, partial: bool = False, interleaved: bool = False, by_window: bool = False
) -> Callable[[Fields, Attention, int], RopeSettings]:
    """Return a family's `rope`, with these arguments of `rope`. by_window: layers with a window and the others have a
    rope object each."""

    def rope_of(fields: Fields, mixer: Attention, layer: int) -> RopeSettings:
        kind = (SLIDING if mixer.window else FULL) if by_window else None
        return rope(fields, mixer, partial=partial, interleaved=interleaved, kind=kind)

    return rope_of


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


def share_kv(fields: Fields, mixers: Sequence[Attention]) -> list[Attention]:
    """Let the last `num_kv_shared_layers` layers read keys and values: those of the last layer before them that looks
    back as far. Raises ModelError where there is none, or its heads are others."""
    own = len(mixers) - fields.count("num_kv_shared_layers")
    if own <= 0:
        raise ModelError(
            f"num_kv_shared_layers is {len(mixers) - own}, but there are {len(mixers)} layers, of which one must have "
            "keys and values of its own."
        )
    return [*mixers[:own], *(_reading(mixers, own, layer) for layer in range(own, len(mixers)))]


def _reading(mixers: Sequence[Attention], own: int, layer: int) -> Attention:
    mixer = mixers[layer]
    read = max((index for index in range(own) if mixers[index].window == mixer.window), default=None)
    if read is None:
        raise ModelError(
            f"num_kv_shared_layers leaves {own} layers with keys and values of their own, none of which looks back as "
            f"far as those that are to share them ({mixer.window or 'all'} tokens)."
        )
    other = mixers[read]
    if (mixer.head_dim, mixer.kv_heads) != (other.head_dim, other.kv_heads):
        raise ModelError(
            f"layer {layer} is to share the keys and values of layer {read}, but has {mixer.kv_heads} heads of "
            f"{mixer.head_dim} numbers and that one {other.kv_heads} of {other.head_dim}; head_dim, "
            "num_key_value_heads, per_layer_config and sliding_window in config.json must fit each other."
        )
    return replace(mixer, kv_layer=read, k_eq_v=False, v_norm=False)


def token_input(fields: Fields, act: str) -> TokenInput | None:
    """Return the per-layer embeddings of `hidden_size_per_layer_input` numbers; None where there are none. act: the
    activation of their gate."""
    width = fields.count("hidden_size_per_layer_input")
    if not width:
        return None
    rows, needed = fields.size("vocab_size_per_layer_input"), fields.size("vocab_size")
    if rows < needed:
        raise ModelError(
            f"vocab_size_per_layer_input is {rows}, but a token may be any of {needed}; {rows} rows are too few."
        )
    return TokenInput(width=width, vocab_size=rows, activation=act)


def positions(fields: Fields, unused: int = 0) -> LearnedPositions:
    """Return the table of vectors for positions, of `max_position_embeddings` rows."""
    return LearnedPositions(rows=fields.size("max_position_embeddings"), unused=unused)


def windows_of(fields: Fields, default: Callable[[int], bool], tokens: int | None = None) -> list[int]:
    """Window of each layer in tokens, 0 for none: by `layer_types`, else where `default` says so of its number.
    tokens: of a window, where no `sliding_window` says it."""
    window = fields.window if tokens is None else tokens
    types = fields.layer_types((FULL, SLIDING))
    if types is None:
        return [window if default(index) else 0 for index in range(fields.layers)]
    return [window if kind == SLIDING else 0 for kind in types]
