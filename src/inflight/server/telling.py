"""What is told of calls and of HTTP requests that have ended: a line in the log, counts in the metrics.

Knows which fact goes where; nothing of how a call was served.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inflight.server.generating import Generation
from inflight.server.logs import RequestLine, log_request
from inflight.server.metrics import Metrics
from inflight.server.metrics.requests import finish_reason
from inflight.server.service import GONE, Ended

GENERATION = ("/v1/completions", "/v1/chat/completions")  # of which every request has its line
Observe = Callable[[str, int, float], None]  # route, status, seconds


def tell(ended: Ended, metrics: Metrics | None) -> None:
    """metrics: None while no engine was loaded yet."""
    call, generation = ended.call, ended.generation
    request = call.requests[0]
    line = RequestLine(
        request_id=call.call_id,
        tenant=request.tenant,
        endpoint=call.endpoint,
        lane=request.lane,
        status=ended.status,
        error_code=ended.code,
        prompt_tokens=sum(len(one.prompt_token_ids) for one in call.requests),
        total_ms=ended.seconds * 1e3,
    )
    if generation is not None:
        line = _served(line, generation)
    elif metrics is not None and not ended.refused_by_engine:
        metrics.refused(ended.code or "other")
    log_request(line)


def _served(line: RequestLine, generation: Generation) -> RequestLine:
    """With what came of it. With several prompts: the longest wait, the earliest token."""
    collectors = generation.assembly.collectors
    finishes = [finish for one in collectors for finish in one.finishes if finish is not None]
    timings = [one.timings for one in collectors if one.timings is not None]
    return replace(
        line,
        finish_reason=finish_reason(finishes) if finishes else "abort",
        cached_tokens=sum(one.cached_tokens for one in timings),
        output_tokens=generation.assembly.output_tokens,
        queue_ms=max((one.queue_ms for one in timings), default=None),
        ttft_ms=min((one.ttft_ms for one in timings if one.ttft_ms is not None), default=None),
    )


class HttpWatch:
    """Counts requests by route and status, around everything else."""

    def __init__(self, app: ASGIApp, observe: Observe):
        self._app = app
        self._observe = observe

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        started, status = time.monotonic(), GONE

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            # The route's template, not what a client wrote: there must be few.
            route, seconds = getattr(scope.get("route"), "path", "other"), time.monotonic() - started
            self._observe(route, status, seconds)
            if route in GENERATION and not scope.get("state", {}).get("told"):  # refused before it was a call
                log_request(RequestLine(request_id="-", endpoint=route, status=status, total_ms=seconds * 1e3))
