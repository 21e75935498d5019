"""The access log: of calls and of HTTP requests that have ended, a line in the log and counts in the metrics."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inflight.core.types.events import finish_reason
from inflight.server.asgi import REQUEST_ID_HEADER, header, notice_headers, request_id_headers, request_ids, state_of
from inflight.server.errors import ApiError
from inflight.server.generating import GONE, Generation
from inflight.server.logs import REQUEST_ID, RequestLine, log_request, without_values
from inflight.server.registry import ENDPOINTS
from inflight.server.service import Ended

Observe = Callable[[str, int, float], None]  # route, status, seconds


def log_call(ended: Ended, refused: Callable[[str], None]) -> None:
    """Log the line of a call that has ended. refused: takes the code of one that did not reach the engine, which counts
    its own refusals."""
    call, generation, error = ended.call, ended.generation, ended.error
    request = call.requests[0]
    line = RequestLine(
        request_id=call.call_id,
        tenant=request.tenant,
        endpoint=ENDPOINTS[call.kind].path,
        lane=request.lane,
        status=ended.status,
        error_code=None if error is None else error.code,
        error_param=None if error is None else error.param,
        reason=None if error is None else without_values(error.message),
        prompt_tokens=sum(len(one.prompt_token_ids) for one in call.requests),
        total_ms=ended.seconds * 1e3,
    )
    if generation is not None:
        line = _served(line, generation)
    elif not ended.refused_by_engine:
        refused(error.code if error is not None and error.code else "other")
    log_request(line)


def _served(line: RequestLine, generation: Generation) -> RequestLine:
    """Return the line with what came of its call. With several prompts: the longest wait, the earliest token."""
    collectors = generation.response.collectors
    finishes = [finish for one in collectors for finish in one.finishes if finish is not None]
    timings = [one.timings for one in collectors if one.timings is not None]
    return replace(
        line,
        finish_reason=finish_reason(finishes) if finishes else "abort",
        cached_tokens=sum(one.cached_tokens for one in timings),
        output_tokens=generation.response.output_tokens,
        queue_ms=max((one.queue_ms for one in timings), default=None),
        ttft_ms=min((one.ttft_ms for one in timings if one.ttft_ms is not None), default=None),
    )


class AccessLog:
    """Around everything else: the request's id, counts by route and status, a line for each refusal. HEAD is GET whose
    answer has no body, which uvicorn leaves out."""

    def __init__(self, app: ASGIApp, observe: Observe, template: Callable[[Scope], str]):
        """Take `template`, which finds the route's path for a request that reached no route."""
        self._app = app
        self._observe = observe
        self._template = template

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        known, state_of(scope)["call_id"] = request_ids(header(scope, REQUEST_ID_HEADER))
        state_of(scope)["request_id"] = known
        REQUEST_ID.set(known)
        inner = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
        started, status = time.monotonic(), GONE

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *request_id_headers(scope), *notice_headers(scope)]
            await send(message)

        try:
            await self._app(inner, receive, noted)
        except Exception:
            status = 500
            raise
        finally:
            self._log(scope["method"], inner, status, time.monotonic() - started)

    def _log(self, method: str, scope: Scope, status: int, seconds: float) -> None:
        # The route's template, not what a client wrote: there must be few.
        route, state = getattr(scope.get("route"), "path", None) or self._template(scope), state_of(scope)
        self._observe(route, status, seconds)
        error = state.get("error")
        if state.get("is_logged") or not isinstance(error, ApiError):
            return  # the service has logged it, or nothing was refused
        line = RequestLine(request_id="-", method=method, endpoint=route, status=status, total_ms=seconds * 1e3)
        reason = without_values(error.message)
        log_request(replace(line, error_code=error.code, error_param=error.param, reason=reason))
