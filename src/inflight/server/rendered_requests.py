"""Rendered requests: what a body becomes before the engine sees it, as JSON in vLLM's words.

Routers ask for it to compute the keys of a prompt's blocks, as the engine would find them. Knows names; what a body
means, `translating` knows. What depends on the engine's state (a full queue, its lanes) no rendering tells.
"""

from __future__ import annotations

import uuid
from dataclasses import asdict
from typing import Any

import msgspec

from inflight.core.queueing.validation import check_context, max_output_tokens
from inflight.core.types.request import RequestRefused
from inflight.server.endpoints.registry import ENDPOINTS
from inflight.server.errors import refused
from inflight.server.offload import offload
from inflight.server.preprocessing.wire import PreparedChat, PreparedCompletion
from inflight.server.served import Served
from inflight.server.tenants import Tenant
from inflight.server.translating import MANY_TOKEN_BYTES

Renderable = PreparedCompletion | PreparedChat


async def rendered_json(served: Served, prepared: Renderable, tenant: Tenant) -> bytes:
    """A list for completions, whose prompts may be several. Raises ApiError."""

    def encoded() -> bytes:
        requests = _rendered(served, prepared, tenant)
        return msgspec.json.encode(requests if isinstance(prepared, PreparedCompletion) else requests[0])

    many = sum(len(prompt.token_ids) for prompt in prepared.prompts) >= MANY_TOKEN_BYTES
    return await offload(encoded) if many else encoded()


def _rendered(served: Served, prepared: Renderable, tenant: Tenant) -> list[dict[str, Any]]:
    body = prepared.settings
    endpoint = ENDPOINTS["completion" if isinstance(prepared, PreparedCompletion) else prepared.kind]
    params, (model, _) = served.translator.params(prepared), served.translator.called(body.model, tenant)
    shared = {
        "model": model,
        "stream": bool(body.stream),
        "stream_options": body.stream_options if body.stream else None,
        "cache_salt": body.cache_salt,
        "priority": body.priority or 0,
    }
    rendered = []
    for prompt in prepared.prompts:
        token_ids = prompt.ids()
        try:
            check_context(len(token_ids), served.max_model_len, params.max_tokens)
        except RequestRefused as refusal:
            raise refused(refusal, endpoint.prompt_field) from None
        most = max_output_tokens(served.max_model_len - len(token_ids), params.max_tokens)
        rendered.append(
            {
                "request_id": f"{endpoint.call_prefix}{body.request_id or uuid.uuid4().hex}",
                "token_ids": token_ids,
                "sampling_params": {**asdict(params), "max_tokens": most},
                **shared,
            }
        )
    return rendered
