"""Rendering: the engine requests that a body becomes, as routers ask for them."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import asdict

import msgspec

from inflight.core.queueing.validation import check_context, max_output_tokens
from inflight.core.types.request import RequestRefused
from inflight.server.common.endpoint import RenderedRequest
from inflight.server.common.prepared import PreparedChat, PreparedCompletion
from inflight.server.errors import refused
from inflight.server.registry import ENDPOINTS
from inflight.server.served import ServedEngine
from inflight.server.tenants import Tenant
from inflight.server.translating import MANY_TOKEN_BYTES

Renderable = PreparedCompletion | PreparedChat


async def rendered_json(served: ServedEngine, prepared: Renderable, tenant: Tenant) -> bytes:
    """Return the engine requests of a body: a list for completions, whose prompts may be several. Raises ApiError."""

    def encoded() -> bytes:
        requests = _rendered(served, prepared, tenant)
        return msgspec.json.encode(requests if isinstance(prepared, PreparedCompletion) else requests[0])

    many = sum(len(prompt.token_ids) for prompt in prepared.prompts) >= MANY_TOKEN_BYTES
    return await asyncio.to_thread(encoded) if many else encoded()


def _rendered(served: ServedEngine, prepared: Renderable, tenant: Tenant) -> list[RenderedRequest]:
    body = prepared.settings
    endpoint = ENDPOINTS[prepared.kind]
    params, (model, _) = served.translator.params(body), served.translator.called(body.model, tenant)
    rendered = []
    for prompt in prepared.prompts:
        token_ids = prompt.ids()
        try:
            check_context(len(token_ids), served.max_model_len, params.max_tokens)
        except RequestRefused as refusal:
            raise refused(refusal, endpoint.prompt_field) from None
        most = max_output_tokens(served.max_model_len - len(token_ids), params.max_tokens)
        rendered.append(
            RenderedRequest(
                request_id=f"{endpoint.call_prefix}{body.request_id or uuid.uuid4().hex}",
                token_ids=token_ids,
                sampling_params={**asdict(params), "max_tokens": most},
                model=model,
                stream=bool(body.stream),
                stream_options=body.stream_options if body.stream else None,
                cache_salt=body.cache_salt,
                priority=body.priority or 0,
            )
        )
    return rendered
