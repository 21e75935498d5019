"""What a model tells of a whole text, by its architecture: a vector, or the scores of a classifier.

Knows how config.json files name classes, and what stands on the last hidden states of decoders' classifiers. What
stands there in an encoder, its family's file knows; what a folder of sentence-transformers says besides,
`sentence_transformers`.
"""

from __future__ import annotations

from msgspec.structs import replace

from inflight.json_file import shown
from inflight.models.errors import ModelError
from inflight.models.fields import Fields
from inflight.models.spec import ModelSpec, NextTokens, Pooler, PoolerLayer, Pooling, ScoreActivation

CLASSIFIER, BASE, GENERATES = "ForSequenceClassification", "Model", "ForCausalLM"
_MAX_LABELS = 4096
_ACTIVATIONS: dict[str, ScoreActivation] = {"Identity": "none", "Sigmoid": "sigmoid", "Softmax": "softmax"}


def of_decoder(architecture: str, fields: Fields) -> Pooler | None:
    """Of a class that a family which continues texts has beside that: its layers alone, whose last token's state is a
    vector, or a classifier over that. None: it continues texts."""
    if architecture.endswith(CLASSIFIER):
        return classifier(fields, Pooler(pooling="last"), last="score", bias=False)
    return Pooler(pooling="last") if architecture.endswith(BASE) else None


def with_pooling(spec: ModelSpec, pooling: Pooling) -> ModelSpec:
    """The model with vectors that are made so, whatever its files say. Where they are not of the last token, that is
    all that it does: texts are then computed whole. Raises ModelError for a classifier."""
    if spec.pooler is not None and spec.pooler.labels:
        raise ModelError(
            f"the model is a classifier of {len(spec.pooler.labels)} labels, whose pooling is its own; leave --pooling "
            "out."
        )
    pooler = replace(spec.pooler or Pooler(pooling=pooling), pooling=pooling)
    return replace(spec, pooler=pooler, head=spec.head if pooling == "last" else None)


def by_next_token(spec: ModelSpec, tokens: tuple[str, str], token_ids: tuple[int, int]) -> ModelSpec:
    """A model that continues texts as a classifier of one label, the probability of one next token against another's.
    softmax over two logits is the sigmoid of their difference, so that of the output projection one row is left, the
    difference of two. Raises ModelError for a model of which that is not so."""
    head = spec.head
    if head is None:
        raise ModelError(
            "the model continues no texts, so that no next token can be a score; leave --score-tokens out."
        )
    if head.soft_cap:
        raise ModelError(
            f"the model caps its logits at {head.soft_cap:g}, so that the difference of two tells no score; leave "
            "--score-tokens out."
        )
    rows = NextTokens(*token_ids, tied=head.tied, scale=head.scale)
    layer = PoolerLayer(name="lm_head", inputs=spec.hidden_size, outputs=1, bias=head.bias, next_tokens=rows)
    pooler = Pooler(pooling="last", layers=(layer,), normalize=False, labels=(tokens[0],), activation="sigmoid")
    return replace(spec, pooler=pooler, head=None)


def classifier(fields: Fields, before: Pooler, last: str, bias: bool = True) -> Pooler:
    """before: what the projection to scores reads. last: the name of that."""
    labels = labels_of(fields)
    inputs = before.outputs(fields.size("hidden_size"))
    layer = PoolerLayer(name=last, inputs=inputs, outputs=len(labels), bias=bias)
    return replace(
        before, layers=(*before.layers, layer), normalize=False, labels=labels, activation=_activation(fields, labels)
    )


def labels_of(fields: Fields) -> tuple[str, ...]:
    """Names of a classifier's numbers, in their order. Raises ModelError."""
    named = fields.raw("id2label")
    if named is None:
        return tuple(f"LABEL_{number}" for number in range(fields.size("num_labels", 2)))
    if not isinstance(named, dict) or not 0 < len(named) <= _MAX_LABELS:
        raise ModelError(f"id2label in config.json must name 1 to {_MAX_LABELS:,} labels, not {shown(named)}.")
    labels = [named.get(str(number)) for number in range(len(named))]
    if not all(isinstance(one, str) and len(one) <= 1000 for one in labels):
        raise ModelError(f"id2label in config.json must name labels by numbers from 0 on, not {shown(named)}.")
    return tuple(str(one) for one in labels)


def _activation(fields: Fields, labels: tuple[str, ...]) -> ScoreActivation:
    """What becomes of scores where nobody says otherwise: as the model's files say, else one label's probability, or
    all labels' together."""
    told = fields.raw("sentence_transformers")
    named = told.get("activation_fn") if isinstance(told, dict) else None
    named = named or fields.raw("sbert_ce_default_activation_function")
    if isinstance(named, str) and (found := _ACTIVATIONS.get(named.rpartition(".")[2])) is not None:
        return found
    several = fields.raw("problem_type") == "multi_label_classification"
    if fields.raw("problem_type") == "regression":
        return "none"
    return "sigmoid" if len(labels) == 1 or several else "softmax"
