"""Lines of batch jobs as calls: the body of a line means what it would mean at its endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from inflight.server.asgi import call_id_of
from inflight.server.common.answers import ResponseBuilder
from inflight.server.common.prepared import Call, PreparedAnswer
from inflight.server.errors import ApiError, invalid
from inflight.server.generating import GONE, Generation
from inflight.server.jobs.attempts import Answer, EngineEnded, InFlight, NotNow, StepFailed
from inflight.server.jobs.store import LineUsage
from inflight.server.registry import OF_LINES
from inflight.server.served import ModelLease
from inflight.server.service import Service
from inflight.server.tenants import Tenant


def of_a_line(call: Call) -> Call:
    """Return the call, if a line may ask for it. Raises ApiError."""
    if call.stream:
        raise invalid("stream is true, but the answer to a line is written whole; leave it out.", "stream")
    return call


class ServiceLineHandler:
    """Answers lines of batch jobs over the engine, in the batch lane."""

    def __init__(self, service: Service):
        self._service = service

    async def answer(self, url: str, body: bytes, tenant: Tenant, request_id: str, in_flight: InFlight) -> Answer:
        with _errors_of_a_line():
            model_lease = await self._service.acquire(OF_LINES[url], body)
        try:
            async with in_flight():
                with _errors_of_a_line():
                    return await self._answered(model_lease, url, body, tenant, request_id)
        finally:
            model_lease.release()

    async def _answered(
        self, model_lease: ModelLease, url: str, body: bytes, tenant: Tenant, request_id: str
    ) -> Answer:
        served = model_lease.served
        prepared = await served.preprocessing.prepare(OF_LINES[url], body, f"tenant {tenant.name}")
        assert not isinstance(prepared, PreparedAnswer), "lines ask for generation"
        call = of_a_line(
            await served.translator.call_without_blocking(prepared, tenant, own_id=call_id_of(request_id), batch=True)
        )
        async with self._service.answer_memory.for_line(call, served.max_model_len):
            generation = await self._service.open(call, model_lease, batch=True)
            answer = await _of_the_engine(generation)
            return Answer(200, answer, _usage_of(call, generation.response))


async def _of_the_engine(generation: Generation) -> bytes:
    """Return the answer, which counts no more, and close the call whatever happens. Raises ApiError; EngineEnded where
    the engine died with the line in flight."""
    status = 500
    try:
        answer = await generation.answer()
        status = 200
        return answer
    except asyncio.CancelledError:
        status = GONE
        raise
    except ApiError as error:
        if error.code != "engine_stopped":
            raise
        raise EngineEnded(error.message) from None
    finally:
        await generation.close(status)


def _usage_of(call: Call, response: ResponseBuilder) -> LineUsage:
    timings = [one.timings for one in response.collectors if one.timings is not None]
    return LineUsage(
        model=call.model,
        input_tokens=sum(len(one.prompt_token_ids) for one in call.requests),
        cached_tokens=sum(one.cached_tokens for one in timings),
        output_tokens=response.output_tokens,
    )


@contextmanager
def _errors_of_a_line() -> Iterator[None]:
    try:
        yield
    except ApiError as error:
        raise _as_of_a_line(error) from None


def _as_of_a_line(error: ApiError) -> Exception:
    """Return the error of a client as one of a line, which can be tried again."""
    if error.code == "step_failed":
        return StepFailed(error)
    # Full; loading, draining or ended by the server; broken down.
    if error.status in (429, 503) or error.code == "engine_stopped":
        return NotNow(error.message, error.retry_after)
    return error
