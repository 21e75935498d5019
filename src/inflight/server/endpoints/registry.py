"""All endpoints that read a body about prompts or tokens, by name. A new one is its body's file, and an entry here.

Knows where an endpoint is and how its bodies are read: HTTP, batch lines, the command line's lines, the preprocessing
processes and the OpenAPI document take it from there. What is made of a body, `preprocessor` and `translating` know.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from inflight.server.bodies.chat import CHAT
from inflight.server.bodies.completions import COMPLETION
from inflight.server.bodies.decoding import BodyDecoder
from inflight.server.bodies.tokens import DETOKENIZE, TOKENIZE

EndpointName = Literal["completion", "chat", "tokenize", "detokenize"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Endpoint:
    """route: its name in the OpenAPI document, and about: what that says of it. prompt_field: what a body calls the
    prompt that the engine continues, and call_prefix: begins the ids of calls; nothing where no engine is asked."""

    path: str
    body: BodyDecoder[Any]
    route: str
    about: str | None = None
    prompt_field: str = ""
    call_prefix: str = ""


ENDPOINTS: dict[EndpointName, Endpoint] = {
    "completion": Endpoint(
        path="/v1/completions",
        body=COMPLETION,
        route="completions",
        about="Continue text. OpenAI's legacy endpoint, with vLLM's extra fields.",
        prompt_field="prompt",
        call_prefix="cmpl",
    ),
    "chat": Endpoint(
        path="/v1/chat/completions",
        body=CHAT,
        route="chat",
        about="Answer a conversation.",
        prompt_field="messages",
        call_prefix="chatcmpl",
    ),
    "tokenize": Endpoint(
        path="/tokenize",
        body=TOKENIZE,
        route="tokenize",
        about="A prompt's token ids, or those of what the chat template makes of messages.",
    ),
    "detokenize": Endpoint(path="/detokenize", body=DETOKENIZE, route="detokenize"),
}
GENERATION: dict[EndpointName, Endpoint] = {name: one for name, one in ENDPOINTS.items() if one.prompt_field}
OF_LINES: dict[str, EndpointName] = {one.path: name for name, one in GENERATION.items()}  # by path, as lines name them
