"""Bodies of /tokenize and /detokenize, as vLLM has them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from inflight.server.bodies.chat import Messages
from inflight.server.bodies.decoding import BodyDecoder
from inflight.server.bodies.tools import Tools
from inflight.server.bodies.types import Name, TemplateVariables, TokenId

LONGEST_TOKENIZED = 1 << 20  # characters
MAX_DETOKENIZED = 1 << 18


class TokenizeBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """Either a prompt, or messages for the chat template."""

    model: Name | None = None
    prompt: Annotated[str, Meta(max_length=LONGEST_TOKENIZED)] | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: TemplateVariables | None = None
    tools: Tools | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(Struct, kw_only=True, forbid_unknown_fields=True):
    model: Name | None = None
    tokens: Annotated[list[TokenId], Meta(max_length=MAX_DETOKENIZED)]


TOKENIZE = BodyDecoder(TokenizeBody)
DETOKENIZE = BodyDecoder(DetokenizeBody)
