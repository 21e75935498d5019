"""/v1/embeddings: its schema, its translation into engine requests, and its answers."""

from __future__ import annotations

import struct
from base64 import b64encode
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Raw, Struct

from inflight.server.common.bodies import BodyDecoder
from inflight.server.common.endpoint import Endpoint
from inflight.server.common.fields import CallSettings, Name, Positive, TextForm
from inflight.server.common.logprobs import encode
from inflight.server.common.prepared import EndpointName, PreparedTexts
from inflight.server.common.texts import TEXT_HINTS, Input, TextAnswer, TextSerializer, TextUsage, listed, prepare_texts

if TYPE_CHECKING:
    from inflight.server.preprocessing.worker import Preprocessor


class EmbeddingsBody(CallSettings, kw_only=True, forbid_unknown_fields=True):
    """input: text, texts, token ids, or several lists of token ids. dimensions: the first so many numbers of vectors.
    normalize: to length 1; where it is left out, as the model's files say."""

    input: Input
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Positive | None = None
    normalize: bool | None = None
    prompt_name: Name | None = None
    truncate: bool | None = None


EMBEDDINGS = BodyDecoder(
    EmbeddingsBody,
    neutral={
        "embed_dtype": (("float32",), "vectors are float32."),
        "endianness": (("native", "little"), "little."),
    },
    hints=TEXT_HINTS,
)


def prepare(
    preprocessor: Preprocessor, body: EmbeddingsBody, history: bytes | memoryview, kind: EndpointName = "embeddings"
) -> PreparedTexts:
    """Return the texts. Raises ApiError."""
    form = TextForm(base64=body.encoding_format == "base64")
    texts = listed(body.input, "input")
    return prepare_texts(preprocessor, body, kind, "vectors", texts, "input", form=form)


class Embedding(Struct, kw_only=True):
    """embedding: numbers, or in base64 as float32."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class Embeddings(TextAnswer, kw_only=True):
    object: Literal["list"]
    data: list[Embedding]


class EmbeddingsSerializer(TextSerializer):
    result: type[TextAnswer] = Embeddings

    def answer(self, usage: TextUsage) -> Any:
        data = [self._item(index, self._shown(vector)) for index, vector in enumerate(self._vectors)]
        return self.result(data=data, usage=usage, **self._envelope)

    def _item(self, index: int, vector: Any) -> Struct:
        return Embedding(object="embedding", index=index, embedding=vector)

    def _shown(self, vector: tuple[float, ...]) -> Any:
        if self._call.text_form.base64:
            return b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode("ascii")
        return Raw(encode(vector))


class PooledText(Struct, kw_only=True):
    """data: numbers, or in base64 as float32."""

    object: Literal["pooling"]
    index: int
    data: list[float] | str


class Pooled(TextAnswer, kw_only=True):
    object: Literal["list"]
    data: list[PooledText]


class PoolingSerializer(EmbeddingsSerializer):
    result = Pooled

    def _item(self, index: int, vector: Any) -> Struct:
        return PooledText(object="pooling", index=index, data=vector)


EMBEDDINGS_ENDPOINT = Endpoint(
    name="embeddings",
    path="/v1/embeddings",
    body=EMBEDDINGS,
    prepare=prepare,
    result=Embeddings,
    serializer=EmbeddingsSerializer,
    prompt_field="input",
    call_prefix="embd-",
    operation="embeddings",
    about="Vectors of texts. OpenAI's endpoint.",
)
POOLING_ENDPOINT = replace(
    EMBEDDINGS_ENDPOINT,
    name="pooling",
    path="/pooling",
    prepare=partial(prepare, kind="pooling"),
    result=Pooled,
    serializer=PoolingSerializer,
    call_prefix="pool-",
    operation="pooling",
    about="Vectors of texts. vLLM's endpoint.",
)
