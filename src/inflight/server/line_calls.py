"""Lines of batch jobs as calls: the body of a line means what it would mean at its endpoint.

Knows which endpoint takes which body; where lines come from and where answers go, batch jobs and the command line know.
"""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from inflight.server.asking import Asker, Call
from inflight.server.batch.answering import Answer, NotNow, StepFailed
from inflight.server.batch.lines import CHAT_COMPLETIONS
from inflight.server.bodies.chat import ChatBody
from inflight.server.bodies.completions import CompletionBody
from inflight.server.bodies.mistakes import mistake
from inflight.server.errors import ApiError, invalid
from inflight.server.service import Service
from inflight.server.tenants import Tenant


def line_call(asker: Asker, url: str, body: dict[str, Any], tenant: Tenant, *, batch: bool = True) -> Call:
    """The call that a line asks for. Raises ApiError."""
    try:
        if url == CHAT_COMPLETIONS:
            call = asker.chat(ChatBody.model_validate(body), tenant, batch=batch)
        else:
            call = asker.completion(CompletionBody.model_validate(body), tenant, batch=batch)
    except ValidationError as error:
        raise mistake(error.errors()) from None
    if call.stream:
        raise invalid("stream is true, but the answer to a line is written whole; leave it out.", "stream")
    return call


class LineAnswerer:
    """Answers lines of batch jobs over the engine, in the batch lane."""

    def __init__(self, service: Service):
        self._service = service

    async def answer(self, url: str, body: dict[str, Any], tenant: Tenant, request_id: str) -> Answer:
        try:
            call = line_call(self._service.served.asker, url, body, tenant)
            opened = await self._service.open(call, batch=True)
            return Answer(200, await opened.answer())
        except ApiError as error:
            raise _as_of_a_line(error) from None


def _as_of_a_line(error: ApiError) -> Exception:
    """What a client would be told, where nobody waits for the answer and the line can be tried again."""
    if error.code == "step_failed":
        return StepFailed(error)
    # Full; loading, draining or ended by the server; broken down.
    if error.status in (429, 503) or error.code == "engine_stopped":
        return NotNow(error.message, error.retry_after)
    return error
