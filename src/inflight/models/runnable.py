"""What this engine's decoder computes of all that a spec can say.

Knows the limits of the decoder, and no more of it. A family that is marked to run is held to them, too: what it would
load without complaint and answer nonsense is refused.
"""

from __future__ import annotations

from inflight.json_file import shown
from inflight.models.errors import ModelError
from inflight.models.spec import CLAMPED_SWIGLU, Attention, Dense, LayerSpec, ModelSpec, MoE


def refuse_what_does_not_run(spec: ModelSpec) -> None:
    """Raises ModelError for the first thing that the decoder does not compute."""
    if spec.weight_format is not None:
        raise ModelError(
            f"the checkpoint is quantized ({spec.weight_format.method}), which is not supported; "
            "take the unquantized one (bfloat16, float16 or float32 weights)."
        )
    found = [
        *(one for layer in dict.fromkeys(spec.layers) for one in _of_layer(layer)),
        (spec.norm.kind != "rms", f"{spec.norm.kind} norms"),
        (spec.norm.offset, "norms whose weights are stored less 1"),
        (spec.embedding_scale != 1, f"embeddings scaled by {spec.embedding_scale:g}"),
        (spec.head.scale != 1, f"logits scaled by {spec.head.scale:g}"),
        (spec.head.bias, "a bias of the projection to logits"),
    ]
    for differs, what in found:
        if differs:
            raise ModelError(
                f"the family {spec.family} has {what}, which is described, but not computed by this decoder; take a "
                "model of another family."
            )


def _of_layer(layer: LayerSpec) -> list[tuple[bool, str]]:
    """Whether the layer has it, and its name."""
    mixer, mlp = layer.mixer, layer.mlp
    if not (isinstance(mixer, Attention) and isinstance(mlp, Dense | MoE)):
        return [(True, f"layers of {type(mixer).__name__} and {type(mlp).__name__}")]
    if mlp.activation not in ("silu", "swish") and not (isinstance(mlp, MoE) and mlp.activation == CLAMPED_SWIGLU):
        raise ModelError(
            f"hidden_act {shown(mlp.activation)} is not supported; the gated MLP of this decoder uses 'silu'."
        )
    if isinstance(mlp, Dense) and mlp.bias:
        raise ModelError("mlp_bias is true, but the gated MLP of this decoder has no biases; take another checkpoint.")
    return [
        (isinstance(mlp, Dense) and not mlp.gated, "an MLP without a gate"),
        (mixer.chunked, "windows that begin anew instead of sliding"),
        (mixer.qk_norm == "all", "norms of queries and keys over all heads at once"),
        (mixer.sinks, "sinks in attention"),
        (mixer.gate, "an output gate of attention"),
        (layer.norms != ("before mixer", "before mlp"), f"norms {', '.join(layer.norms)}"),
    ]
