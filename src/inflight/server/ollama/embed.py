"""/api/embed and the older /api/embeddings: vectors of texts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, Raw, Struct, UnsetType

from inflight.server.common.bodies import BodyDecoder
from inflight.server.common.endpoint import Endpoint
from inflight.server.common.fields import Name, Positive, Text, TextSettings
from inflight.server.common.logprobs import encode
from inflight.server.common.prepared import PreparedAnswer, PreparedTexts, check_model
from inflight.server.common.texts import Texts, TextSerializer, TextUsage, prepare_texts
from inflight.server.ollama.answers import durations
from inflight.server.ollama.schema import Duration, OllamaOptions, keep_alive_of, seconds_of

if TYPE_CHECKING:
    from inflight.server.preprocessing.worker import Preprocessor


class OllamaEmbedBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """truncate: a text that is too long is cut at its end, which is so where it is left out. Options change nothing."""

    model: Name
    input: Texts | None = None
    truncate: bool | None = None
    dimensions: Positive | None = None
    options: OllamaOptions | None = None
    keep_alive: Duration | None = None


class OllamaEmbeddingsBody(Struct, kw_only=True, forbid_unknown_fields=True):
    model: Name
    prompt: Text | None = None
    options: OllamaOptions | None = None
    keep_alive: Duration | None = None


class OllamaVectors(Struct, kw_only=True):
    """Durations are in nanoseconds."""

    model: str
    embeddings: list[list[float]]
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET


class OllamaVector(Struct, kw_only=True):
    embedding: list[float]


def prepare_embed(
    preprocessor: Preprocessor, body: OllamaEmbedBody, history: bytes | memoryview
) -> PreparedTexts | PreparedAnswer:
    """Return the texts; without one the model is loaded alone. Raises ApiError."""
    texts = [body.input] if isinstance(body.input, str) else body.input or []
    if not texts or texts == [""]:
        return _loaded(preprocessor, body, OllamaVectors(model=body.model, embeddings=[]))
    truncate = body.truncate is not False
    settings = TextSettings(model=body.model, truncate=truncate, dimensions=body.dimensions, normalize=True)
    return prepare_texts(preprocessor, settings, "ollama_embed", "vectors", texts, "input")


def prepare_embeddings(
    preprocessor: Preprocessor, body: OllamaEmbeddingsBody, history: bytes | memoryview
) -> PreparedTexts | PreparedAnswer:
    """Return the text; without one the model is loaded alone. Raises ApiError."""
    if not body.prompt:
        return _loaded(preprocessor, body, OllamaVector(embedding=[]))
    settings = TextSettings(model=body.model, truncate=True)
    return prepare_texts(preprocessor, settings, "ollama_embeddings", "vectors", [body.prompt], "prompt")


def _loaded(preprocessor: Preprocessor, body: OllamaEmbedBody | OllamaEmbeddingsBody, answer: Struct) -> PreparedAnswer:
    check_model(body.model, preprocessor.limits.models)
    if body.keep_alive is not None:
        seconds_of(body.keep_alive)
    return PreparedAnswer(encode(answer))


class EmbedSerializer(TextSerializer):
    def answer(self, usage: TextUsage) -> OllamaVectors:
        spans = durations(self._collectors, self._call.waited)
        return OllamaVectors(
            model=self._call.model,
            embeddings=Raw(encode(self._vectors)),  # type: ignore[arg-type]
            total_duration=spans["total_duration"],
            load_duration=spans["load_duration"],
            prompt_eval_count=usage.prompt_tokens,
        )


class EmbeddingsSerializer(TextSerializer):
    def answer(self, usage: TextUsage) -> Any:
        return OllamaVector(embedding=list(self._vectors[0]))


EMBED_ENDPOINT = Endpoint(
    name="ollama_embed",
    path="/api/embed",
    body=BodyDecoder(OllamaEmbedBody),
    prepare=prepare_embed,
    result=OllamaVectors,
    serializer=EmbedSerializer,
    is_for_lines=False,
    keep_alive=keep_alive_of,
    prompt_field="input",
    call_prefix="ollama-",
    operation="ollama_embed",
    about="Vectors of texts, of length 1. ollama's endpoint.",
)
EMBEDDINGS_ENDPOINT = replace(
    EMBED_ENDPOINT,
    name="ollama_embeddings",
    path="/api/embeddings",
    body=BodyDecoder(OllamaEmbeddingsBody),
    prepare=prepare_embeddings,
    result=OllamaVector,
    serializer=EmbeddingsSerializer,
    prompt_field="prompt",
    operation="ollama_embeddings",
    about="The vector of a text. ollama's older endpoint.",
)
