"""EAGLE-3: a head in a folder of its own, trained on hidden states of three layers (arXiv 2503.01840).

The three hidden states become one by a product; the head's one layer reads it beside the token's embedding, and adds to
it. It may have fewer tokens than the model, its most frequent ones: `d2t` says how far each lies from the model's.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from msgspec.structs import asdict

from inflight.execution import ops
from inflight.execution.backends.protocol import Activation, Array, Backend, Linear, Quantization
from inflight.execution.checkpoints.checkpoint import Checkpoint
from inflight.execution.drafters.heads.head import HeadWeights
from inflight.execution.drafters.heads.head_tensors import HeadTensors, InputPart
from inflight.execution.layers.norm import NormWeights
from inflight.execution.mixers.attention import AttentionWeights
from inflight.execution.mlps.dense import DenseWeights
from inflight.execution.packer import Packer
from inflight.execution.program import Program
from inflight.execution.rope import rope_table
from inflight.execution.weights import LayerWeights, ModelWeights
from inflight.models.eagle3 import Eagle3Spec, read_eagle3
from inflight.models.errors import ModelError
from inflight.models.mixers.attention import Attention
from inflight.models.mlps.dense import Dense
from inflight.models.spec import ModelSpec

_LAYER, _LAYER_NAMES = "model.layers.0.", ("midlayer.", "layers.0.")
_TOKEN, _TABLE = "token_attn.", "model.embed_tokens.weight"


class BesideTokenAttention(AttentionWeights, frozen=True):
    """Attention whose queries, keys and values are products of the token's embedding, too."""

    of_token: Linear  # [(H + 2G)·D, E]

    @classmethod
    def beside(cls, own: AttentionWeights, of_token: Linear) -> BesideTokenAttention:
        return cls(**asdict(own), of_token=of_token)

    def forward(self, program: Program, x: Activation, hidden: Activation) -> None:
        """Read x act[T, E] and the normed embedding, the `token` activation of the head's decoder."""
        qkv = program.take("qkv", self.qkv.rows, "float32")
        ops.linear(program, x, self.qkv, qkv)
        ops.linear_residual(program, program.take("token", self.of_token.columns), self.of_token, qkv)
        self.attend(program, qkv, x, hidden)


def load_eagle3(
    folder: Path,
    model: ModelSpec,
    weights: ModelWeights,
    backend: Backend,
    max_positions: int,
    quantization: Quantization = "none",
    group_size: int = 32,
) -> HeadWeights:
    """Load the head in a folder, its matrices in the types of the model's layers. weights: of the model. max_positions:
    of the longest sequence. Raises ModelError for a folder without such a head, a head of another model, and a missing
    tensor."""
    spec = read_eagle3(folder, model)
    checkpoint = Checkpoint(folder)
    source = HeadTensors(checkpoint, lambda name: _place(name, checkpoint))
    (settings,) = spec.decoder.ropes
    rope = backend.pack_rope(rope_table(settings, max_positions))
    packer = Packer(spec.decoder, source, backend, None, quantization, group_size, {settings: rope})
    width, table_shape = spec.decoder.hidden_size, (model.vocab_size, spec.decoder.hidden_size)
    has_table = _TABLE in source
    if not has_table and width != model.hidden_size:
        raise ModelError(
            f"the head in {folder} is {width} numbers wide and has no embedding table of its own, but the model's is "
            f"{model.hidden_size} wide; take the head that was trained for this model."
        )
    assert spec.decoder.head is not None, "read with one"
    head = HeadWeights(
        name="eagle3",
        hidden_size=width,
        vocab_size=model.vocab_size,
        taps=spec.taps,
        combine=tuple(
            packer.linear([(f"fc.{place}.weight", (width, model.hidden_size))]) for place in range(len(spec.taps))
        ),
        tap_norm=None,
        table=backend.pack_rows(source.pieces(_TABLE, table_shape), *table_shape) if has_table else weights.table,
        embedding_scale=1.0 if has_table else model.embedding_scale,
        token_norm=NormWeights.load(packer, _LAYER + "input_layernorm"),
        hidden_norm=None,
        join=None,
        layer=_layer(packer),
        layer_index=0,
        final_norm=NormWeights.load(packer, "model.norm"),
        own_norm=None,
        output=packer.linear([("lm_head.weight", (spec.draft_vocab_size, width))]),
        logit_rule=spec.decoder.head,
        token_ids=_token_ids(checkpoint, spec, model, folder),
    )
    backend.finish_packing()
    return head


def _layer(packer: Packer) -> LayerWeights:
    layer, width = packer.model.layers[0], packer.model.hidden_size
    mixer, mlp = layer.mixer, layer.mlp
    assert isinstance(mixer, Attention) and isinstance(mlp, Dense)
    rows = (("q_proj", mixer.heads), ("k_proj", mixer.kv_heads), ("v_proj", mixer.kv_heads))
    of_token = packer.linear(
        [(f"{_LAYER}{_TOKEN}{part}.weight", (heads * mixer.head_dim, width)) for part, heads in rows]
    )
    own = AttentionWeights.load(packer, mixer, 0, None)
    return LayerWeights(
        spec=layer,
        mixer_norm=NormWeights.load(packer, _LAYER + "hidden_norm"),
        mixer=BesideTokenAttention.beside(own, of_token),
        mlp_norm=NormWeights.load(packer, _LAYER + "post_attention_layernorm"),
        mlp=DenseWeights.load(packer, mlp, 0),
        token_input=None,
        scalar=1.0,
    )


def _place(name: str, checkpoint: Checkpoint) -> InputPart:
    """fc is cut in as many parts as there are taps; of queries, keys and values the token's part stands first."""
    if name.startswith("fc."):
        return InputPart("fc.weight", int(name.split(".")[1]), 3)
    if not name.startswith(_LAYER):
        return InputPart(name.removeprefix("model."))
    part = name.removeprefix(_LAYER)
    prefix = next((one for one in _LAYER_NAMES if one + "hidden_norm.weight" in checkpoint), _LAYER_NAMES[0])
    if part.startswith(_TOKEN):
        return InputPart(f"{prefix}self_attn.{part.removeprefix(_TOKEN)}", 0, 2)
    is_wide = part in ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight")
    return InputPart(prefix + part, 1, 2) if is_wide else InputPart(prefix + part)


def _token_ids(checkpoint: Checkpoint, spec: Eagle3Spec, model: ModelSpec, folder: Path) -> Array | None:
    """Return the model's token of each of the head's. Raises ModelError for one that is missing there, or named
    twice."""
    count = spec.draft_vocab_size
    if "d2t" not in checkpoint:
        if count == model.vocab_size:
            return None
        raise ModelError(
            f"the head in {folder} has {count:,} tokens and the model {model.vocab_size:,}, but no tensor d2t says "
            "which they are; take the head's complete checkpoint."
        )
    found: Array = np.arange(count) + checkpoint.whole_numbers("d2t", (count,))
    if found.min() < 0 or found.max() >= model.vocab_size or len(np.unique(found)) < count:
        raise ModelError(
            f"d2t of the head in {folder} names tokens outside of the model's {model.vocab_size:,}, or one of them "
            "twice; take the head that was trained for this model."
        )
    return found
