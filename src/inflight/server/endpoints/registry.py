"""All endpoints that read a body about prompts or tokens, by name. A new one is its body's file, and an entry here.

Knows where an endpoint is, how its bodies are read and how its answers are written: HTTP, batch lines, the command
line's lines, the preprocessing processes and the OpenAPI document take it from there. What is made of a body,
`preprocessor` and `translating` know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from inflight.server.bodies import texts
from inflight.server.bodies.as_chat import AsChat
from inflight.server.bodies.as_texts import AsTexts
from inflight.server.bodies.chat import CHAT
from inflight.server.bodies.completions import COMPLETION
from inflight.server.bodies.decoding import BodyDecoder
from inflight.server.bodies.messages import COUNT_TOKENS, MESSAGES
from inflight.server.bodies.responses import RESPONSES
from inflight.server.bodies.tokens import DETOKENIZE, TOKENIZE
from inflight.server.call import EndpointName
from inflight.server.messages.as_chat import FIELD_NAMES as MESSAGES_FIELD_NAMES
from inflight.server.messages.as_chat import as_chat as messages_as_chat
from inflight.server.messages.as_chat import counted_as_chat
from inflight.server.messages.errors import PATH as MESSAGES_PATH
from inflight.server.messages.serializer import PREFIX as MESSAGES_PREFIX
from inflight.server.messages.serializer import MessagesSerializer
from inflight.server.responses.as_chat import FIELD_NAMES as RESPONSES_FIELD_NAMES
from inflight.server.responses.as_chat import as_chat as responses_as_chat
from inflight.server.responses.as_chat import continued as responses_continued
from inflight.server.responses.serializer import ResponsesSerializer
from inflight.server.responses.stored import PREFIX as RESPONSES_PREFIX
from inflight.server.serializers.chat import ChatSerializer
from inflight.server.serializers.completions import CompletionSerializer
from inflight.server.serializers.protocol import AnswerSerializer
from inflight.server.serializers.texts import (
    ClassifySerializer,
    EmbeddingsSerializer,
    EmbedSerializer,
    RerankSerializer,
    ScoreSerializer,
    TextRerankSerializer,
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Endpoint:
    """route: its name in the OpenAPI document, and about: what that says of it. prompt_field: what a body calls the
    prompt that the engine continues, call_prefix: begins the ids of calls, serializer: writes its answers; nothing
    where no engine is asked.
    as_chat: where bodies are conversations in words of their own: what they are as those of chat; may raise ApiError.
    Without a prompt_field, its tokens are counted. continued: the same where answers are stored, behind items that are
    JSON.
    field_names: how such bodies call what chat calls otherwise, for sentences about mistakes.
    as_texts: where bodies are about whole texts: what they are in words that those share; may raise ApiError.
    renders: the endpoint whose bodies it takes, to tell what that would ask of the engine."""

    path: str
    body: BodyDecoder[Any]
    route: str
    about: str | None = None
    prompt_field: str = ""
    call_prefix: str = ""
    serializer: type[AnswerSerializer] | None = None
    as_chat: Callable[[Any], AsChat] | None = None
    continued: Callable[[Any, bytes | memoryview], AsChat] | None = None
    field_names: Mapping[str, str] = field(default_factory=dict)
    as_texts: Callable[[Any], AsTexts] | None = None
    renders: EndpointName | None = None


_RERANK = Endpoint(
    path="/v1/rerank",
    body=texts.RERANK,
    route="v1_rerank",
    about="Documents by how well they answer a query. The endpoint of Cohere and Jina.",
    prompt_field="documents",
    call_prefix="rerank-",
    serializer=RerankSerializer,
    as_texts=texts.rerank,
)
_SCORE = Endpoint(
    path="/score",
    body=texts.SCORE,
    route="score",
    about="How well pairs of texts belong together. vLLM's endpoint.",
    prompt_field="text_2",
    call_prefix="score-",
    serializer=ScoreSerializer,
    as_texts=texts.score,
)
ENDPOINTS: dict[EndpointName, Endpoint] = {
    "completion": Endpoint(
        path="/v1/completions",
        body=COMPLETION,
        route="completions",
        about="Continue text. OpenAI's legacy endpoint, with vLLM's extra fields.",
        prompt_field="prompt",
        call_prefix="cmpl-",
        serializer=CompletionSerializer,
    ),
    "chat": Endpoint(
        path="/v1/chat/completions",
        body=CHAT,
        route="chat",
        about="Answer a conversation.",
        prompt_field="messages",
        call_prefix="chatcmpl-",
        serializer=ChatSerializer,
    ),
    "completion_render": Endpoint(
        path="/v1/completions/render",
        body=COMPLETION,
        route="completions_render",
        about="What /v1/completions asks of the engine for such a body: a request for each prompt. vLLM's endpoint.",
        renders="completion",
    ),
    "chat_render": Endpoint(
        path="/v1/chat/completions/render",
        body=CHAT,
        route="chat_render",
        about="What /v1/chat/completions asks of the engine for such a body. vLLM's endpoint.",
        renders="chat",
    ),
    "responses": Endpoint(
        path="/v1/responses",
        body=RESPONSES,
        route="responses",
        about="Answer a conversation of items. OpenAI's Responses API.",
        prompt_field="input",
        call_prefix=RESPONSES_PREFIX,
        serializer=ResponsesSerializer,
        as_chat=responses_as_chat,
        continued=responses_continued,
        field_names=RESPONSES_FIELD_NAMES,
    ),
    "messages": Endpoint(
        path=MESSAGES_PATH,
        body=MESSAGES,
        route="messages",
        about="Answer a conversation of blocks. Anthropic's Messages API.",
        prompt_field="messages",
        call_prefix=MESSAGES_PREFIX,
        serializer=MessagesSerializer,
        as_chat=messages_as_chat,
        field_names=MESSAGES_FIELD_NAMES,
    ),
    "count_tokens": Endpoint(
        path=f"{MESSAGES_PATH}/count_tokens",
        body=COUNT_TOKENS,
        route="count_tokens",
        about="How many tokens the prompt of such a conversation has.",
        as_chat=counted_as_chat,
        field_names=MESSAGES_FIELD_NAMES,
    ),
    "tokenize": Endpoint(
        path="/tokenize",
        body=TOKENIZE,
        route="tokenize",
        about="A prompt's token ids, or those of what the chat template makes of messages.",
    ),
    "detokenize": Endpoint(path="/detokenize", body=DETOKENIZE, route="detokenize"),
    "embeddings": Endpoint(
        path="/v1/embeddings",
        body=texts.EMBEDDINGS,
        route="embeddings",
        about="Vectors of texts. OpenAI's endpoint.",
        prompt_field="input",
        call_prefix="embd-",
        serializer=EmbeddingsSerializer,
        as_texts=texts.embeddings,
    ),
    "score": _SCORE,
    "score_v1": replace(_SCORE, path="/v1/score", route="v1_score"),
    "rerank": _RERANK,
    "rerank_v2": replace(_RERANK, path="/v2/rerank", route="v2_rerank"),
    "classify": Endpoint(
        path="/classify",
        body=texts.CLASSIFY,
        route="classify",
        about="Classes of texts. vLLM's endpoint.",
        prompt_field="input",
        call_prefix="classify-",
        serializer=ClassifySerializer,
        as_texts=texts.classify,
    ),
    "embed": Endpoint(
        path="/embed",
        body=texts.EMBED,
        route="embed",
        about="Vectors of texts. The endpoint of text-embeddings-inference.",
        prompt_field="inputs",
        call_prefix="embed-",
        serializer=EmbedSerializer,
        as_texts=texts.embed,
    ),
    "text_rerank": Endpoint(
        path="/rerank",
        body=texts.TEXT_RERANK,
        route="text_rerank",
        about="Texts by how well they answer a query. The endpoint of text-embeddings-inference.",
        prompt_field="texts",
        call_prefix="rerank-",
        serializer=TextRerankSerializer,
        as_texts=texts.text_rerank,
    ),
}


def serializer_of(name: EndpointName) -> type[AnswerSerializer]:
    serializer = ENDPOINTS[name].serializer
    assert serializer is not None, "the engine was asked"
    return serializer


GENERATION: dict[EndpointName, Endpoint] = {name: one for name, one in ENDPOINTS.items() if one.prompt_field}
OF_LINES: dict[str, EndpointName] = {one.path: name for name, one in GENERATION.items()}  # by path, as lines name them
