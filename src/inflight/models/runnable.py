"""Refuse specs that this engine's decoder does not compute.

A family that is marked to run is held to the decoder's limits, too: a model that would load without complaint and
answer nonsense is refused.
"""

from __future__ import annotations

from inflight.models.parts import not_computed
from inflight.models.spec import ModelSpec
from inflight.models.weight_format import refuse_unreadable

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
    """Raise ModelError for the first thing that the decoder does not compute: what the parts of layers refuse, and what
    does not go together."""
    if spec.weight_format is not None:
        refuse_unreadable(spec.weight_format)
    for layer in dict.fromkeys(spec.layers):
        layer.mlp.refuse(spec, layer)
        layer.mixer.refuse(spec, layer)
        if layer.norms not in _NORMS:
            raise not_computed(spec, f"norms {', '.join(layer.norms)}")
    is_rms, norms = spec.norm.kind == "rms", {norm for layer in spec.layers for norm in layer.norms}
    mixers = [layer.mixer for layer in spec.layers]
    found = [
        (not is_rms and "after mlp" in norms, "layer norms after MLPs"),
        (spec.head is not None and spec.head.bias and spec.head.tied, "a bias of a tied projection to logits"),
        (is_rms and "mixer sum" in norms, "RMS norms of sums"),
        (spec.encoder_only and spec.head is not None, "attention to later tokens in a model that continues texts"),
        (spec.encoder_only and any(mixer.causal for mixer in mixers), "attention to later tokens in some layers"),
        (not any(mixer.reads for mixer in mixers), "no layer of attention"),
    ]
    for differs, what in found:
        if differs:
            raise not_computed(spec, what)
