"""Read the config.json of an EAGLE-3 head: its one layer, its tokens, and the hidden states of the model that it reads.

A head that cannot be of the given model is refused.
"""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from inflight.models.errors import ModelError
from inflight.models.family import attention, dense, rope
from inflight.models.fields import Fields
from inflight.models.registry import read_json
from inflight.models.runnable import refuse_what_does_not_run
from inflight.models.spec import Head, LayerSpec, ModelSpec, Norm
from inflight.models.weight_format import weight_format

_DEFAULTS = {"max_position_embeddings": 2048}
_TAPS = 3


class Eagle3Spec(Struct, frozen=True):
    """decoder: its one layer, over the model's tokens, as if it were a model. taps: layers of the model whose input it
    reads. draft_vocab_size: tokens that it has logits of."""

    decoder: ModelSpec
    taps: tuple[int, ...]
    draft_vocab_size: int


def read_eagle3(folder: Path, model: ModelSpec) -> Eagle3Spec:
    """Read the EAGLE-3 head in a folder, for a model.

    Raises:
        ModelError: The folder holds something else, a head of another model, or one that is computed in another way.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise ModelError(f"{folder} holds no head: it has no config.json; give the folder of an EAGLE-3 head.")
    data = read_json(path)
    named = data.get("architectures") or [None]
    if not (isinstance(named, list) and isinstance(named[0], str) and "eagle3" in named[0].lower()):
        raise ModelError(
            f"{path} names {named!r} as its architecture, which is no EAGLE-3 head (LlamaForCausalLMEagle3); for a "
            "model of its own take --speculation draft:MODEL."
        )
    if "transformer_layer_config" in data:
        raise ModelError(
            f"{path} is in the layout of the speculators library, which is not read; take the head as its authors "
            "published it, or convert it."
        )
    fields = Fields(data, _DEFAULTS)
    _refuse_others(fields, model, folder)
    mixer = attention(fields)
    layer = LayerSpec(replace(mixer, rope=rope(fields, mixer)), dense(fields))
    decoder = ModelSpec(
        name=folder.name,
        family="eagle3",
        runs=True,
        vocab_size=model.vocab_size,
        hidden_size=fields.size("hidden_size"),
        layers=(layer,),
        norm=Norm("rms", fields.small("rms_norm_eps", 1e-6)),
        head=Head(scale=fields.number("logit_scale")),
        embedding_scale=1.0,
        max_position_embeddings=fields.size("max_position_embeddings"),
        end_token_ids=(),
        bos_token_id=None,
        checkpoint_dtype=fields.dtype,
        weight_format=weight_format(data),
    )
    refuse_what_does_not_run(decoder)
    tokens = fields.size("draft_vocab_size", model.vocab_size)
    return Eagle3Spec(decoder, _taps(fields, len(model.layers), path), tokens)


def _refuse_others(fields: Fields, model: ModelSpec, folder: Path) -> None:
    """Raise ModelError for a head of another model, or with other arithmetic."""
    width = fields.size("target_hidden_size", fields.size("hidden_size"))
    for what, own, needed in (
        ("reads hidden states of a width of", width, model.hidden_size),
        ("knows a vocabulary of", fields.size("vocab_size"), model.vocab_size),
    ):
        if own != needed:
            raise ModelError(
                f"the head in {folder} was trained for another model: it {what} {own:,}, but the model has "
                f"{needed:,}; take the head that was trained for this model."
            )
    if fields.size("num_hidden_layers", 1) != 1:
        raise ModelError(f"the head in {folder} has {fields.layers} layers; those of one are read.")
    for key in ("norm_before_residual", "attention_bias", "qkv_bias", "mlp_bias", "bias"):
        if fields.flag(key):
            raise ModelError(f"the head in {folder} sets {key}, which is not computed; take another head.")


def _taps(fields: Fields, layers: int, path: Path) -> tuple[int, ...]:
    """Return the layers whose output is read: behind 2, half and all but 3 of the layers, as the authors of EAGLE-3
    chose them, or as `eagle_config` says."""
    if fields.raw("eagle_aux_hidden_state_layer_ids") is not None:
        raise ModelError(
            f"{path} sets eagle_aux_hidden_state_layer_ids outside of eagle_config, where some count layers by what "
            "they read and others by what they leave; put the numbers of layers whose output is read into eagle_config."
        )
    inner = fields.raw("eagle_config")
    given = inner.get("eagle_aux_hidden_state_layer_ids") if isinstance(inner, dict) else None
    if isinstance(inner, dict) and inner.get("use_aux_hidden_state") is False:
        raise ModelError(f"{path} reads the last hidden state alone (use_aux_hidden_state), which is not computed.")
    taps = (2, layers // 2, layers - 3) if given is None else given
    is_numbers = isinstance(taps, list | tuple) and all(type(one) is int for one in taps)
    if not is_numbers or len(taps) != _TAPS:
        raise ModelError(f"{path} reads hidden states of the layers {taps!r}; {_TAPS} numbers are wanted.")
    taps = tuple(one if given is None else one + 1 for one in taps)
    if not all(0 <= one <= layers for one in taps):
        raise ModelError(
            f"the head of {path} reads hidden states behind {', '.join(map(str, taps))} layers, but the model has "
            f"{layers} layers; take the head that was trained for this model."
        )
    return taps
