"""/v1/models, /tokenize and /detokenize: what is served, and how it cuts text."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Depends

from inflight.server import answers
from inflight.server.beside import beside, length_of
from inflight.server.bodies.tokens import DetokenizeBody, TokenizeBody
from inflight.server.errors import invalid
from inflight.server.json import JsonResponse, documented
from inflight.server.service import Served, Service
from inflight.server.tenants import Tenant
from inflight.text import Tokenizer


def model_routes(service: Service, tenant_of: Callable[..., Tenant]) -> APIRouter:
    routes = APIRouter(tags=["model"], dependencies=[Depends(tenant_of)])
    started = int(time.time())

    def described(name: str, served: Served) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": started,
            "owned_by": "inflight",
            "root": served.asker.models[0],
            "max_model_len": served.max_model_len,
        }

    @routes.get("/v1/models", responses=documented(answers.Models))
    async def models() -> JsonResponse:
        served = service.served
        return JsonResponse({"object": "list", "data": [described(name, served) for name in served.asker.models]})

    @routes.get("/v1/models/{name:path}", responses=documented(answers.Model))
    async def model(name: str) -> JsonResponse:
        served = service.served
        return JsonResponse(described(served.asker.check_model(name), served))

    @routes.post("/tokenize", responses=documented(answers.Tokenized))
    async def tokenize(body: TokenizeBody) -> JsonResponse:
        """A prompt's token ids, or those of what the chat template makes of messages."""
        served = service.served
        served.asker.check_model(body.model)
        return await beside(length_of(body.prompt, body.messages), lambda: _tokenized(served, body))

    @routes.post("/detokenize", responses=documented(answers.Detokenized))
    async def detokenize(body: DetokenizeBody) -> JsonResponse:
        served = service.served
        served.asker.check_model(body.model)
        tokenizer = _tokenizer(served)
        text = await beside(len(body.tokens), lambda: tokenizer.decode(body.tokens, skip_special_tokens=False))
        return JsonResponse({"prompt": text})

    return routes


def _tokenized(served: Served, body: TokenizeBody) -> JsonResponse:
    tokens = _tokens(served, body)
    answer: dict[str, Any] = {"count": len(tokens), "max_model_len": served.max_model_len, "tokens": tokens}
    if body.return_token_strs:
        tokenizer = _tokenizer(served)
        answer["token_strs"] = [tokenizer.id_to_token(token) or "" for token in tokens]
    return JsonResponse(answer)


def _tokens(served: Served, body: TokenizeBody) -> list[int]:
    if (body.prompt is None) == (body.messages is None):
        raise invalid("Give either a prompt or messages.", "prompt")
    tokenizer = _tokenizer(served)
    if body.messages is None:
        added = True if body.add_special_tokens is None else body.add_special_tokens
        return _encoded(tokenizer, body.prompt or "", added, "prompt")
    begins = True if body.add_generation_prompt is None else body.add_generation_prompt
    text = served.asker.chat_text(body.messages, body.chat_template_kwargs, add_generation_prompt=begins)
    return _encoded(tokenizer, text, bool(body.add_special_tokens), "messages")


def _encoded(tokenizer: Tokenizer, text: str, add_special_tokens: bool, field: str) -> list[int]:
    try:
        return tokenizer.encode(text, add_special_tokens=add_special_tokens)
    except ValueError as error:  # half a surrogate pair
        raise invalid(str(error), field) from None


def _tokenizer(served: Served) -> Tokenizer:
    if served.tokenizer is None:
        raise invalid("This model has no tokenizer; use token ids.")
    return served.tokenizer
