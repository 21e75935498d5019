"""Bodies about whole texts: /v1/embeddings as OpenAI has it, /score, /v1/score and /classify as vLLM, /v1/rerank and
/v2/rerank as Cohere and Jina, /embed and /rerank as text-embeddings-inference.

Knows names of fields, and what they are in the words of `as_texts`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from inflight.server.bodies.as_texts import AsTexts, TextForm, TextSettings
from inflight.server.bodies.common import CallSettings
from inflight.server.bodies.decoding import BodyDecoder
from inflight.server.bodies.types import MAX_TOKEN_IDS, Count, Name, Positive, Text, TokenId, TokenIds
from inflight.server.errors import invalid

MOST_TEXTS = 1 << 14  # of one body; how many one may ask for, the server's settings say
# A list holds texts only, token ids only, or lists of token ids only; which, is looked at when it is cut.
Input = Text | Annotated[list[TokenId | Text | TokenIds], Meta(max_length=MAX_TOKEN_IDS)]
Texts = Text | Annotated[list[Text], Meta(max_length=MOST_TEXTS)]
TextList = Annotated[list[Text], Meta(max_length=MOST_TEXTS)]


class DocumentText(Struct, forbid_unknown_fields=True):
    text: Text


Documents = Annotated[list[Text | DocumentText], Meta(max_length=MOST_TEXTS)]
_HINTS = frozenset({"metadata", "extra_body", "safety_identifier", "vllm_request_id", "rid", "session_id"})
_NOT_TOLD = {"embed_dtype": (("float32",), "vectors are float32."), "endianness": (("native", "little"), "little.")}


# -- vectors -----------------------------------------------------------------------------------------------------------
class EmbeddingsBody(CallSettings, kw_only=True, forbid_unknown_fields=True):
    """input: text, texts, token ids, or several lists of token ids. dimensions: the first so many numbers of vectors.
    normalize: to length 1; where it is left out, as the model's files say."""

    input: Input
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Positive | None = None
    normalize: bool | None = None
    prompt_name: Name | None = None
    truncate: bool | None = None


class EmbedBody(Struct, kw_only=True, forbid_unknown_fields=True):
    inputs: Texts
    dimensions: Positive | None = None
    normalize: bool | None = True
    prompt_name: Name | None = None
    truncate: bool | None = None


def embeddings(body: EmbeddingsBody) -> AsTexts:
    form = TextForm(base64=body.encoding_format == "base64")
    return AsTexts(
        told="vectors", settings=_settings(body), texts=listed(body.input, "input"), field="input", form=form
    )


def embed(body: EmbedBody) -> AsTexts:
    return AsTexts(
        told="vectors", settings=_settings(body), texts=listed(body.inputs, "inputs"), field="inputs", form=TextForm()
    )


# -- scores of pairs ---------------------------------------------------------------------------------------------------
class ScoreBody(CallSettings, kw_only=True, forbid_unknown_fields=True):
    """text_1 (or queries) and text_2 (or documents): texts, as many of both, or one first."""

    text_1: Texts | None = None
    text_2: Texts | None = None
    queries: Texts | None = None
    documents: Texts | None = None
    activation: bool | None = None
    truncate: bool | None = None


class RerankBody(CallSettings, kw_only=True, forbid_unknown_fields=True):
    """top_n: how many of the documents are told; all, where it is left out."""

    query: Text
    documents: Documents
    top_n: Count | None = None
    return_documents: bool | None = None
    truncate: bool | None = None


class TextRerankBody(Struct, kw_only=True, forbid_unknown_fields=True):
    query: Text
    texts: TextList
    raw_scores: bool | None = None
    return_text: bool | None = None
    truncate: bool | None = None


def score(body: ScoreBody) -> AsTexts:
    field, firsts = _one_of(body, "text_1", "queries")
    second_field, seconds = _one_of(body, "text_2", "documents")
    texts: list[str | list[int]] = list(firsts)
    if len(texts) not in (1, len(seconds)):
        raise invalid(
            f"{field} has {len(texts)} texts and {second_field} {len(seconds)}; give one, or as many of both.", field
        )
    form = TextForm(raw=body.activation is False)
    return AsTexts(
        told="scores",
        settings=_settings(body),
        texts=texts,
        field=field,
        seconds=seconds,
        second_field=second_field,
        form=form,
    )


def rerank(body: RerankBody) -> AsTexts:
    documents = [one if isinstance(one, str) else one.text for one in body.documents]
    shown = tuple(documents) if body.return_documents is not False else ()
    return AsTexts(
        told="scores",
        settings=_settings(body),
        texts=[body.query],
        field="query",
        seconds=_some(documents, "documents"),
        second_field="documents",
        form=TextForm(top_n=body.top_n or None, documents=shown),
    )


def text_rerank(body: TextRerankBody) -> AsTexts:
    return AsTexts(
        told="scores",
        settings=_settings(body),
        texts=[body.query],
        field="query",
        seconds=_some(body.texts, "texts"),
        second_field="texts",
        form=TextForm(raw=bool(body.raw_scores), documents=tuple(body.texts) if body.return_text else ()),
    )


# -- classes -----------------------------------------------------------------------------------------------------------
class ClassifyBody(CallSettings, kw_only=True, forbid_unknown_fields=True):
    input: Input
    activation: bool | None = None
    truncate: bool | None = None


def classify(body: ClassifyBody) -> AsTexts:
    form = TextForm(raw=body.activation is False)
    return AsTexts(
        told="classes", settings=_settings(body), texts=listed(body.input, "input"), field="input", form=form
    )


# -- all ---------------------------------------------------------------------------------------------------------------
def listed(given: str | list[Any], field: str) -> list[str | list[int]]:
    """One text, or several. A list holds texts, token ids, or lists of token ids, and one kind only. Raises
    ApiError."""
    if isinstance(given, str):
        return [given]
    kind = type(_some(given, field)[0])
    wrong = next((place for place, one in enumerate(given) if type(one) is not kind), None)
    if wrong is not None:
        raise invalid(
            f"{field} holds {_NAMES[kind]} at 0 and {_NAMES[type(given[wrong])]} at {wrong}; give one kind only.", field
        )
    return [given] if kind is int else given


def _some(given: list[Any], field: str) -> list[Any]:
    if not given:
        raise invalid(f"{field} has 0 entries; give one text or more.", field)
    return given


def _one_of(body: ScoreBody, usual: str, other: str) -> tuple[str, list[str]]:
    """Texts of one of two fields, and which it is."""
    given = [(name, value) for name in (usual, other) if (value := getattr(body, name)) is not None]
    if len(given) != 1:
        raise invalid(f"Give either {usual} or {other}; {len(given)} of them are there.", usual, "missing_field")
    ((field, texts),) = given
    return field, [texts] if isinstance(texts, str) else _some(texts, field)


def _settings(body: Struct) -> TextSettings:
    """Return what the body says beside its texts and the form of its answer."""
    return TextSettings(**{name: getattr(body, name, None) for name in TextSettings.__struct_fields__})


_NAMES: dict[type, str] = {str: "text", int: "a token id", list: "a list of token ids"}
EMBEDDINGS = BodyDecoder(EmbeddingsBody, neutral=_NOT_TOLD, hints=_HINTS)
EMBED = BodyDecoder(EmbedBody, neutral={"truncation_direction": (("Right", "right"), "texts are cut at their end.")})
SCORE = BodyDecoder(ScoreBody, hints=_HINTS)
RERANK = BodyDecoder(
    RerankBody,
    neutral={
        "max_tokens_per_doc": ((), "texts are cut to what the model takes, with truncate."),
        "top_k": ((), "top_n says how many documents are told."),  # a router's, always null
    },
    hints=_HINTS,
)
TEXT_RERANK = BodyDecoder(
    TextRerankBody, neutral={"truncation_direction": (("Right", "right"), "texts are cut at their end.")}
)
CLASSIFY = BodyDecoder(ClassifyBody, hints=_HINTS)
