"""The registry of endpoints that take a body about prompts or tokens: all that HTTP, batch lines, the command line's
lines, the tokenizer workers and the OpenAPI document know of them. A new one is a file, and an entry here."""

from __future__ import annotations

from inflight.server.anthropic.messages import COUNT_ENDPOINT, MESSAGES_ENDPOINT
from inflight.server.common.answers import AnswerSerializer
from inflight.server.common.endpoint import Endpoint
from inflight.server.common.prepared import EndpointName
from inflight.server.llama_cpp.apply_template import APPLY_TEMPLATE_ENDPOINT
from inflight.server.llama_cpp.completion import INFILL_ENDPOINT, LLAMA_COMPLETION_ENDPOINT
from inflight.server.mistral_fim import FIM_ENDPOINT
from inflight.server.ollama.chat import CHAT_ENDPOINT as OLLAMA_CHAT
from inflight.server.ollama.chat import GENERATE_ENDPOINT as OLLAMA_GENERATE
from inflight.server.ollama.embed import EMBED_ENDPOINT as OLLAMA_EMBED
from inflight.server.ollama.embed import EMBEDDINGS_ENDPOINT as OLLAMA_EMBEDDINGS
from inflight.server.openai.chat import CHAT_ENDPOINT, CHAT_RENDER
from inflight.server.openai.completions import COMPLETION_ENDPOINT, COMPLETION_RENDER
from inflight.server.openai.embeddings import EMBEDDINGS_ENDPOINT, POOLING_ENDPOINT
from inflight.server.openai.responses import RESPONSES_ENDPOINT
from inflight.server.rerank import RERANK_ENDPOINTS
from inflight.server.tokenize import TOKENIZE_ENDPOINTS

_ALL = (
    COMPLETION_ENDPOINT,
    CHAT_ENDPOINT,
    COMPLETION_RENDER,
    CHAT_RENDER,
    RESPONSES_ENDPOINT,
    MESSAGES_ENDPOINT,
    COUNT_ENDPOINT,
    *TOKENIZE_ENDPOINTS,
    EMBEDDINGS_ENDPOINT,
    POOLING_ENDPOINT,
    *RERANK_ENDPOINTS,
    FIM_ENDPOINT,
    INFILL_ENDPOINT,
    LLAMA_COMPLETION_ENDPOINT,
    APPLY_TEMPLATE_ENDPOINT,
    *(OLLAMA_CHAT, OLLAMA_GENERATE, OLLAMA_EMBED, OLLAMA_EMBEDDINGS),
)
ENDPOINTS: dict[EndpointName, Endpoint] = {one.name: one for one in _ALL}
GENERATION: dict[EndpointName, Endpoint] = {one.name: one for one in _ALL if one.generates}
BY_PATH: dict[str, EndpointName] = {one.path: one.name for one in GENERATION.values()}
OF_LINES: dict[str, EndpointName] = {one.path: one.name for one in GENERATION.values() if one.is_for_lines}


def serializer_of(name: EndpointName) -> type[AnswerSerializer]:
    """Return the serializer of an endpoint that asks the engine."""
    serializer = ENDPOINTS[name].serializer
    assert serializer is not None, "the engine was asked"
    return serializer
