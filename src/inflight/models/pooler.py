"""Choose a model's pooler by its architecture: how a text becomes a vector or a classifier's scores.

Families say which pooler their classes have; `sentence_transformers` reads what a folder adds.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from inflight.json_file import shown
from inflight.models.errors import ModelError
from inflight.models.fields import Fields
from inflight.models.spec import ModelSpec, NextTokens, Pooler, PoolerActivation, PoolerLayer, Pooling, ScoreActivation

CLASSIFIER, BASE, GENERATES = "ForSequenceClassification", "Model", "ForCausalLM"
_MAX_LABELS = 4096
_ACTIVATIONS: dict[str, ScoreActivation] = {"Identity": "none", "Sigmoid": "sigmoid", "Softmax": "softmax"}


def of_decoder(architecture: str, fields: Fields) -> Pooler | None:
    """Return the pooler of an embedding or classifier class of a generating family, which reads the last token's
    hidden state; None for a class that generates."""
    if architecture.endswith(CLASSIFIER):
        return classifier(fields, Pooler(pooling="last"), last="score", bias=False)
    return Pooler(pooling="last") if architecture.endswith(BASE) else None


def with_pooling(spec: ModelSpec, pooling: Pooling) -> ModelSpec:
    """Return the model with another pooling, whatever its files say. With other poolings than the last token's it has
    no head: a text is computed in one step, and not continued. Raises ModelError for a classifier."""
    if spec.pooler is not None and spec.pooler.labels:
        raise ModelError(
            f"the model is a classifier of {len(spec.pooler.labels)} labels, whose pooling is its own; leave --pooling "
            "out."
        )
    pooler = replace(spec.pooler or Pooler(pooling=pooling), pooling=pooling)
    return replace(spec, pooler=pooler, head=spec.head if pooling == "last" else None)


def by_next_token(spec: ModelSpec, tokens: tuple[str, str], token_ids: tuple[int, int]) -> ModelSpec:
    """Make a generating model a classifier of one label: the probability of one next token against another. softmax
    over two logits is the sigmoid of their difference, so one row is left of the output projection: the difference
    of two. Raises ModelError for a model without a head or with capped logits."""
    head = spec.head
    if head is None:
        raise ModelError(
            "the model continues no texts, so that no next token can be a score; leave --score-tokens out."
        )
    if head.soft_cap:
        raise ModelError(
            f"the model caps its logits at {head.soft_cap:g}, so that the difference of two is no score; leave "
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


def of_encoder(name: str, scores: str, activation: PoolerActivation = "tanh") -> Callable[[str, Fields], Pooler]:
    """Return the pooler of an encoder's classes: the first token's vector, and of classifiers a product `name`, an
    activation function, and the product `scores`."""

    def pooler_of(architecture: str, fields: Fields) -> Pooler:
        first = Pooler(pooling="cls")
        if not architecture.endswith(CLASSIFIER):
            return first
        hidden = fields.size("hidden_size")
        layer = PoolerLayer(name=name, inputs=hidden, outputs=hidden, activation=activation)
        return classifier(fields, replace(first, layers=(layer,)), scores)

    return pooler_of


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
    """Return the default activation of scores: as the model's files say; else none for regression, a
    sigmoid for one label or labels that exclude no other, and a softmax."""
    given = fields.raw("sentence_transformers")
    named = given.get("activation_fn") if isinstance(given, dict) else None
    named = named or fields.raw("sbert_ce_default_activation_function")
    if isinstance(named, str) and (found := _ACTIVATIONS.get(named.rpartition(".")[2])) is not None:
        return found
    several = fields.raw("problem_type") == "multi_label_classification"
    if fields.raw("problem_type") == "regression":
        return "none"
    return "sigmoid" if len(labels) == 1 or several else "softmax"
