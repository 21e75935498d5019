"""Refuses specs that this engine's decoder does not compute.

Knows the limits of the decoder, and no more of it. A family that is marked to run is held to them, too: what it would
load without complaint and answer nonsense is refused.
"""

from __future__ import annotations

from typing import Literal

from inflight.json_file import shown
from inflight.models.errors import ModelError
from inflight.models.spec import (
    CLAMPED_SWIGLU,
    Attention,
    Dense,
    LatentAttention,
    LayerSpec,
    LinearAttention,
    Mixer,
    ModelSpec,
    MoE,
    ShortConvolution,
)
from inflight.models.weight_format import refuse_unreadable

ComputedMixer = Attention | LatentAttention | LinearAttention | ShortConvolution

# What config.json calls the activation functions of `execution`.
ACTIVATIONS: dict[str, Literal["silu", "gelu", "gelu_tanh", "relu", "relu2", "xielu"]] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "relu": "relu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "relu2": "relu2",
    "xielu": "xielu",
}
_WIDEST = 1024  # keys that the kernels of attention read
MAX_KERNEL = 16  # tokens that a short convolution sees
GATINGS: dict[str, Literal["silu", "gelu_tanh", "clamped_swiglu"]] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    CLAMPED_SWIGLU: "clamped_swiglu",
}
# Of a layer's norms: Llama's, those with one after each part, those with these alone, and one for both parts; BERT's,
# and ModernBERT's first layer, which reads what was normed before it.
_NORMS = (
    ("before mixer", "before mlp"),
    ("before mixer", "after mixer", "before mlp", "after mlp"),
    ("after mixer", "after mlp"),
    ("before mixer",),
    ("mixer sum", "mlp sum"),
    ("before mlp",),
)


def refuse_what_does_not_run(spec: ModelSpec) -> None:
    """Raise ModelError for the first thing that the decoder does not compute."""
    if spec.weight_format is not None:
        refuse_unreadable(spec.weight_format)
    is_rms, mixers = spec.norm.kind == "rms", [layer.mixer for layer in spec.layers]
    has_qk_norms = any(isinstance(mixer, Attention) and mixer.qk_norm != "none" for mixer in mixers)
    found = [
        *(one for layer in dict.fromkeys(spec.layers) for one in _of_layer(layer)),
        (not is_rms and any("after mlp" in layer.norms for layer in spec.layers), "layer norms after MLPs"),
        (not is_rms and has_qk_norms, "layer norms of queries and keys"),
        (
            spec.residual_scale != 1
            and any(isinstance(layer.mlp, MoE) and layer.mlp.shared_gate for layer in spec.layers),
            "scaled residuals with a gated shared expert",
        ),
        (spec.head is not None and spec.head.bias and spec.head.tied, "a bias of a tied projection to logits"),
        (is_rms and any("mixer sum" in layer.norms for layer in spec.layers), "RMS norms of sums"),
        (spec.encoder_only and spec.head is not None, "attention to later tokens in a model that continues texts"),
        (spec.encoder_only != all(_sees_all(mixer) for mixer in mixers), "attention to later tokens in some layers"),
        (not any(isinstance(mixer, Attention | LatentAttention) for mixer in mixers), "no layer of attention"),
    ]
    for differs, what in found:
        if differs:
            raise ModelError(
                f"the family {spec.family} has {what}, which is described, but not computed by this decoder; take a "
                "model of another family."
            )


def _sees_all(mixer: Mixer) -> bool:
    return isinstance(mixer, Attention) and not mixer.causal


def _of_layer(layer: LayerSpec) -> list[tuple[bool, str]]:
    """Whether the layer has it, and its name."""
    mixer, mlp = layer.mixer, layer.mlp
    if not (isinstance(mixer, ComputedMixer) and isinstance(mlp, Dense | MoE)):
        return [(True, f"layers of {type(mixer).__name__} and {type(mlp).__name__}")]
    if isinstance(mlp, MoE):
        computed = mlp.activation in GATINGS
    else:
        of_pairs = ACTIVATIONS.get(mlp.activation) in ("silu", "gelu", "gelu_tanh")
        computed = of_pairs if mlp.gated else mlp.activation in ACTIVATIONS
    if not computed:
        raise ModelError(
            f"hidden_act {shown(mlp.activation)} is not supported; the gated MLP of this decoder uses 'silu', 'gelu' "
            "or 'gelu_pytorch_tanh'."
        )
    if isinstance(mlp, Dense) and mlp.bias and mlp.gated:
        raise ModelError("mlp_bias is true, but the gated MLP of this decoder has no biases; take another checkpoint.")
    return [
        (isinstance(mlp, MoE) and mlp.separate_shared != ("after mlp" in layer.norms), "norms after experts"),
        *_of_mixer(mixer),
        (layer.norms not in _NORMS, f"norms {', '.join(layer.norms)}"),
    ]


def _of_mixer(mixer: ComputedMixer) -> list[tuple[bool, str]]:
    if isinstance(mixer, Attention):
        return [(mixer.chunked, "chunked windows")]
    if isinstance(mixer, LatentAttention):
        return [
            (mixer.kv_lora_rank % 16 > 0, f"a kv_lora_rank of {mixer.kv_lora_rank}, which is no multiple of 16"),
            (mixer.cached_width > _WIDEST, f"kv_lora_rank and qk_rope_head_dim of {mixer.cached_width} together"),
        ]
    return [
        (
            isinstance(mixer, LinearAttention) and mixer.value_heads % mixer.key_heads > 0,
            "linear attention whose heads of values do not share those of keys evenly",
        ),
        (mixer.kernel > MAX_KERNEL, f"convolutions of over {MAX_KERNEL} tokens"),
    ]
