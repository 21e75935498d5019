"""Scores, rankings and classes of texts: /score and /classify as vLLM has them, /v1/rerank and /v2/rerank as Cohere and
Jina, /embed and /rerank as text-embeddings-inference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from inflight.core.types.timings import Timings
from inflight.server.common.bodies import BodyDecoder
from inflight.server.common.endpoint import Endpoint
from inflight.server.common.fields import CallSettings, Count, Name, Positive, Text, TextForm
from inflight.server.common.prepared import EndpointName, PreparedTexts
from inflight.server.common.texts import (
    MAX_LISTED,
    TEXT_HINTS,
    Input,
    TextAnswer,
    TextList,
    Texts,
    TextSerializer,
    TextUsage,
    listed,
    prepare_texts,
    some,
)
from inflight.server.errors import invalid

if TYPE_CHECKING:
    from inflight.server.preprocessing.worker import Preprocessor

History = bytes | memoryview  # of stored responses, of which these endpoints have none
_CUT_AT_END = {"truncation_direction": (("Right", "right"), "texts are cut at their end.")}


# -- scores of pairs ---------------------------------------------------------------------------------------------------


class ScoreBody(CallSettings, kw_only=True, forbid_unknown_fields=True):
    """text_1 (or queries) and text_2 (or documents): texts, as many of both, or one first."""

    text_1: Texts | None = None
    text_2: Texts | None = None
    queries: Texts | None = None
    documents: Texts | None = None
    activation: bool | None = None
    truncate: bool | None = None


class PairScore(Struct, kw_only=True):
    object: Literal["score"]
    index: int
    score: float


class Scores(TextAnswer, kw_only=True):
    object: Literal["list"]
    data: list[PairScore]


def prepare_score(name: EndpointName) -> Callable[[Preprocessor, ScoreBody, History], PreparedTexts]:
    def prepare(preprocessor: Preprocessor, body: ScoreBody, history: History) -> PreparedTexts:
        field, firsts = _one_of(body, "text_1", "queries")
        second_field, seconds = _one_of(body, "text_2", "documents")
        if len(firsts) not in (1, len(seconds)):
            raise invalid(
                f"{field} has {len(firsts)} texts and {second_field} {len(seconds)}; give one, or as many of both.",
                field,
            )
        form = TextForm(raw=body.activation is False)
        return prepare_texts(preprocessor, body, name, "scores", firsts, field, seconds, second_field, form)

    return prepare


def _one_of(body: ScoreBody, usual: str, other: str) -> tuple[str, list[str]]:
    """Return the one of two fields that is given, and its texts."""
    given = [(name, value) for name in (usual, other) if (value := getattr(body, name)) is not None]
    if len(given) != 1:
        raise invalid(f"Give either {usual} or {other}; {len(given)} of them are there.", usual, "missing_field")
    ((field, texts),) = given
    return field, [texts] if isinstance(texts, str) else some(texts, field)


class ScoreSerializer(TextSerializer):
    def answer(self, usage: TextUsage) -> Scores:
        data = [PairScore(object="score", index=index, score=score) for index, score in enumerate(self._scores())]
        return Scores(data=data, usage=usage, **self._envelope)


# -- rankings ----------------------------------------------------------------------------------------------------------


class DocumentText(Struct, forbid_unknown_fields=True):
    text: Text


class RerankBody(CallSettings, kw_only=True, forbid_unknown_fields=True):
    """top_n: documents in the answer; all, where it is left out."""

    query: Text
    documents: Annotated[list[Text | DocumentText], Meta(max_length=MAX_LISTED)]
    top_n: Count | None = None
    return_documents: bool | None = None
    truncate: bool | None = None


class RankedDocumentText(Struct, kw_only=True):
    text: str


class RankedDocument(Struct, kw_only=True):
    index: int
    document: RankedDocumentText | UnsetType = UNSET
    relevance_score: float


class Ranking(Struct, kw_only=True):
    """The best first."""

    id: str
    model: str
    usage: TextUsage
    results: list[RankedDocument]
    timings: Timings | list[Timings] | UnsetType = UNSET


def prepare_rerank(name: EndpointName) -> Callable[[Preprocessor, RerankBody, History], PreparedTexts]:
    def prepare(preprocessor: Preprocessor, body: RerankBody, history: History) -> PreparedTexts:
        documents = some([one if isinstance(one, str) else one.text for one in body.documents], "documents")
        shown = tuple(documents) if body.return_documents is not False else ()
        form = TextForm(top_n=body.top_n or None, documents=shown)
        return prepare_texts(preprocessor, body, name, "scores", [body.query], "query", documents, "documents", form)

    return prepare


class RerankSerializer(TextSerializer):
    def answer(self, usage: TextUsage) -> Ranking:
        shown, call = self._call.text_form.documents, self._call
        results = [
            RankedDocument(
                index=index,
                document=RankedDocumentText(text=shown[index]) if shown else UNSET,
                relevance_score=score,
            )
            for index, score in self._ranked()
        ]
        return Ranking(id=call.call_id, model=call.model, usage=usage, results=results, **self._timings)


class TextRerankBody(Struct, kw_only=True, forbid_unknown_fields=True):
    query: Text
    texts: TextList
    raw_scores: bool | None = None
    return_text: bool | None = None
    truncate: bool | None = None


class RankedText(Struct, kw_only=True):
    index: int
    score: float
    text: str | UnsetType = UNSET


def prepare_text_rerank(preprocessor: Preprocessor, body: TextRerankBody, history: History) -> PreparedTexts:
    texts = some(body.texts, "texts")
    form = TextForm(raw=bool(body.raw_scores), documents=tuple(texts) if body.return_text else ())
    return prepare_texts(preprocessor, body, "text_rerank", "scores", [body.query], "query", texts, "texts", form)


class TextRerankSerializer(TextSerializer):
    def answer(self, usage: TextUsage) -> list[RankedText]:
        shown = self._call.text_form.documents
        return [
            RankedText(index=index, score=score, text=shown[index] if shown else UNSET)
            for index, score in self._ranked()
        ]


# -- classes and vectors -----------------------------------------------------------------------------------------------


class ClassifyBody(CallSettings, kw_only=True, forbid_unknown_fields=True):
    input: Input
    activation: bool | None = None
    truncate: bool | None = None


class TextClass(Struct, kw_only=True):
    """probs: of all labels, in their order."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class Classes(TextAnswer, kw_only=True):
    object: Literal["list"]
    data: list[TextClass]


def prepare_classify(preprocessor: Preprocessor, body: ClassifyBody, history: History) -> PreparedTexts:
    form = TextForm(raw=body.activation is False)
    return prepare_texts(preprocessor, body, "classify", "classes", listed(body.input, "input"), "input", form=form)


class ClassifySerializer(TextSerializer):
    def answer(self, usage: TextUsage) -> Classes:
        labels, data = self._call.labels, []
        for index, chances in enumerate(self._vectors):
            best = max(range(len(chances)), key=chances.__getitem__, default=0)
            probs = list(chances)
            data.append(TextClass(index=index, label=labels[best], probs=probs, num_classes=len(probs)))
        return Classes(data=data, usage=usage, **self._envelope)


class EmbedBody(Struct, kw_only=True, forbid_unknown_fields=True):
    inputs: Texts
    dimensions: Positive | None = None
    normalize: bool | None = True
    prompt_name: Name | None = None
    truncate: bool | None = None


def prepare_embed(preprocessor: Preprocessor, body: EmbedBody, history: History) -> PreparedTexts:
    return prepare_texts(preprocessor, body, "embed", "vectors", listed(body.inputs, "inputs"), "inputs")


class EmbedSerializer(TextSerializer):
    def answer(self, usage: TextUsage) -> Any:
        return self._vectors


# -- endpoints ---------------------------------------------------------------------------------------------------------

_SCORE = Endpoint(
    name="score",
    path="/score",
    body=BodyDecoder(ScoreBody, hints=TEXT_HINTS),
    prepare=prepare_score("score"),
    result=Scores,
    serializer=ScoreSerializer,
    prompt_field="text_2",
    call_prefix="score-",
    operation="score",
    about="How well pairs of texts belong together. vLLM's endpoint.",
)
_RERANK = Endpoint(
    name="rerank",
    path="/v1/rerank",
    body=BodyDecoder(
        RerankBody,
        neutral={
            "max_tokens_per_doc": ((), "texts are cut to what the model takes, with truncate."),
            "top_k": ((), "top_n says how many documents the answer has."),  # a router's, always null
        },
        hints=TEXT_HINTS,
    ),
    prepare=prepare_rerank("rerank"),
    result=Ranking,
    serializer=RerankSerializer,
    prompt_field="documents",
    call_prefix="rerank-",
    operation="v1_rerank",
    about="Documents by how well they answer a query. The endpoint of Cohere and Jina.",
)
RERANK_ENDPOINTS = (
    _SCORE,
    replace(_SCORE, name="score_v1", path="/v1/score", prepare=prepare_score("score_v1"), operation="v1_score"),
    _RERANK,
    replace(_RERANK, name="rerank_v2", path="/v2/rerank", prepare=prepare_rerank("rerank_v2"), operation="v2_rerank"),
    Endpoint(
        name="classify",
        path="/classify",
        body=BodyDecoder(ClassifyBody, hints=TEXT_HINTS),
        prepare=prepare_classify,
        result=Classes,
        serializer=ClassifySerializer,
        prompt_field="input",
        call_prefix="classify-",
        operation="classify",
        about="Classes of texts. vLLM's endpoint.",
    ),
    Endpoint(
        name="embed",
        path="/embed",
        body=BodyDecoder(EmbedBody, neutral=_CUT_AT_END),
        prepare=prepare_embed,
        result=list[list[float]],
        serializer=EmbedSerializer,
        prompt_field="inputs",
        call_prefix="embed-",
        operation="embed",
        about="Vectors of texts. The endpoint of text-embeddings-inference.",
    ),
    Endpoint(
        name="text_rerank",
        path="/rerank",
        body=BodyDecoder(
            TextRerankBody,
            neutral={**_CUT_AT_END, "documents": ((), "this path takes texts; /v1/rerank takes documents.")},
        ),
        prepare=prepare_text_rerank,
        result=list[RankedText],
        serializer=TextRerankSerializer,
        prompt_field="texts",
        call_prefix="rerank-",
        operation="text_rerank",
        about="Texts by how well they answer a query. The endpoint of text-embeddings-inference.",
    ),
)
