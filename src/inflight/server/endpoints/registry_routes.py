"""The registry's endpoints as routes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from inflight.server.answers import ANSWERS, Error, MessagesError
from inflight.server.call import EndpointName
from inflight.server.endpoints.registry import ENDPOINTS
from inflight.server.messages.errors import is_of_messages
from inflight.server.routes import Routes, any_errors


def add_endpoint(
    routes: Routes,
    name: EndpointName,
    answer: Callable[[EndpointName, Request], Awaitable[Response]],
    content: Mapping[str, Any] | None = None,
) -> None:
    """Add an endpoint's route. content: media types of its answers other than JSON, with their schemas."""
    one = ENDPOINTS[name]
    routes.add(
        "POST",
        one.path,
        partial(answer, name),
        name=one.route,
        about=one.about or "",
        result=ANSWERS[name],
        result_is="The answer",
        content=content or {},
        body=one.body.kind,
        errors=any_errors(MessagesError if is_of_messages(one.path) else Error),
    )
