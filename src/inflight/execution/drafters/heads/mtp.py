"""MTP: layers behind a model's own, in its checkpoint, that predict a further token (DeepSeek-V3, arXiv 2412.19437).

Of several such layers the first is taken, again and again for further drafts. Table and output projection are the
model's own, whatever copies a checkpoint has. Families that run here name them and differ so:

- DeepSeek-V3, GLM-4.5: `model.layers.L`, L the number of layers; the hidden state that is read is the one behind the
  model's final norm, and the head's own goes on behind the head's.
- MiMo: `model.mtp_layers.0`; hidden states are those before the final norms, and stand before the token in the product.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from inflight.execution.backends.protocol import Backend, Linear, Quantization
from inflight.execution.checkpoints.expert_names import ExpertNames
from inflight.execution.checkpoints.family_names import FamilyTensors
from inflight.execution.drafters.heads.head import HeadWeights
from inflight.execution.drafters.heads.head_tensors import HeadTensors, InputPart
from inflight.execution.layers.norm import NormWeights
from inflight.execution.packer import Packer, TensorSource
from inflight.execution.weights import ModelWeights, load_layer
from inflight.models.errors import ModelError
from inflight.models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class _Layout:
    """Names below the layer's own, which begins with `prefix`, a number of layers in it or none."""

    prefix: str
    token_norm: str
    hidden_norm: str
    join: str
    token_first: bool
    final_norm: str
    behind_norms: bool


_LAYOUTS = (
    _Layout("model.layers.{layers}.", "enorm", "hnorm", "eh_proj", True, "shared_head.norm", True),
    _Layout(
        "model.mtp_layers.0.", "token_layernorm", "hidden_layernorm", "input_proj", False, "final_layernorm", False
    ),
)
_UNREAD = "mtp.fc.weight"  # of families whose layers keep recurrent states


def load_mtp(
    model: ModelSpec,
    weights: ModelWeights,
    source: TensorSource,
    backend: Backend,
    quantization: Quantization = "none",
    group_size: int = 32,
) -> HeadWeights:
    """Load the head in the model's own checkpoint, its matrices in the types of the model's layers. weights: of the
    model. Raises ModelError where there is no head, an unknown one, or a missing tensor."""
    layers = len(model.layers)
    layout = _layout(model, source)
    at = f"model.layers.{layers}."
    longer = replace(model, layers=(*model.layers, model.layers[-1]))  # its layer is as the model's last one is
    named = ExpertNames(FamilyTensors(longer, HeadTensors(source, _renamed(at, layout.prefix, layers))), longer)
    packer = Packer(
        longer, HeadTensors(named, _halves(at, layout)), backend, None, quantization, group_size, weights.ropes
    )

    def joined(part: str) -> Linear:
        return packer.linear([(f"{at}{part}.weight", (model.hidden_size, model.hidden_size))])

    assert model.head is not None, "drafts are for models that continue texts"
    final_norm = NormWeights.load(packer, at + layout.final_norm)
    head = HeadWeights(
        name="mtp",
        hidden_size=model.hidden_size,
        vocab_size=model.vocab_size,
        taps=(layers,),
        combine=(),
        tap_norm=weights.final_norm if layout.behind_norms else None,
        table=weights.table,
        embedding_scale=model.embedding_scale,
        token_norm=NormWeights.load(packer, at + layout.token_norm),
        hidden_norm=NormWeights.load(packer, at + layout.hidden_norm),
        join=(joined("join_token"), joined("join_hidden")),
        layer=load_layer(packer, layers),
        layer_index=layers,
        final_norm=final_norm,
        own_norm=final_norm if layout.behind_norms else None,
        output=weights.output,
        logit_rule=model.head,
        token_ids=None,
    )
    backend.finish_packing()
    return head


def check_mtp(model: ModelSpec, source: TensorSource) -> None:
    """Raise ModelError where the checkpoint has no head, or one that is not read."""
    _layout(model, source)


def _layout(model: ModelSpec, source: TensorSource) -> _Layout:
    for layout in _LAYOUTS:
        if layout.prefix.format(layers=len(model.layers)) + layout.join + ".weight" in source:
            if model.norm.kind != "rms":
                raise ModelError(f"the family {model.family} has layer norms, and heads are read of models without.")
            return layout
    if _UNREAD in source:
        raise ModelError(
            f"the checkpoint names its heads as Qwen3-Next does ({_UNREAD}), which are not read; take --speculation "
            "auto or draft:MODEL."
        )
    tried = ", ".join(one.prefix.format(layers=len(model.layers)) + one.join for one in _LAYOUTS)
    raise ModelError(
        f"the checkpoint has no layers that predict further tokens (looked for: {tried}); many publications leave them "
        "out. Take --speculation heads:FOLDER with a head of its own, draft:MODEL, or auto."
    )


def _renamed(at: str, prefix: str, layers: int) -> Callable[[str], InputPart]:
    stored = prefix.format(layers=layers)
    return lambda name: InputPart(stored + name.removeprefix(at) if name.startswith(at) else name)


def _halves(at: str, layout: _Layout) -> Callable[[str], InputPart]:
    whole = at + layout.join + ".weight"
    of_token, of_hidden = (0, 1) if layout.token_first else (1, 0)
    halves = {
        at + "join_token.weight": InputPart(whole, of_token, 2),
        at + "join_hidden.weight": InputPart(whole, of_hidden, 2),
    }
    return lambda name: halves.get(name, InputPart(name))
