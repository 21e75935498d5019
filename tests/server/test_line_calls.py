"""Lines as calls: what the engine's refusals and faults mean where no client waits for the answer."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from inflight.server.answer_memory import AnswerMemory
from inflight.server.errors import ApiError, invalid
from inflight.server.jobs.attempts import EngineEnded, NotNow, StepFailed
from inflight.server.jobs.store import LineUsage
from inflight.server.line_calls import ServiceLineHandler
from inflight.server.served import ModelLease
from inflight.server.service import Service
from inflight.server.settings import ServerSettings
from inflight.server.tenants import ANYONE

CALL = SimpleNamespace(stream=False, model="m", requests=[])
RESPONSE = SimpleNamespace(collectors=[], output_tokens=7)


def ask(service: Any) -> Any:
    answerer = ServiceLineHandler(cast(Service, service))
    return asyncio.run(answerer.answer("/v1/completions", b'{"prompt": "x"}', ANYONE, "line", nullcontext))


def serving(
    *, prepared: ApiError | None = None, opened: ApiError | None = None, answered: ApiError | None = None
) -> Any:
    """A service that raises in one of three places, or answers."""

    async def prepare(*_: Any) -> Any:
        return _or_raise(prepared, None)

    async def open_(*_: Any, **__: Any) -> Any:
        return _or_raise(opened, SimpleNamespace(answer=answer, close=close, response=RESPONSE))

    async def answer() -> bytes:
        return cast(bytes, _or_raise(answered, b"{}"))

    async def close(_: int) -> None:
        pass

    async def call(*_: Any, **__: Any) -> Any:
        return CALL

    served = SimpleNamespace(
        preprocessing=SimpleNamespace(prepare=prepare),
        translator=SimpleNamespace(call_without_blocking=call),
        max_model_len=100,
    )

    async def acquire(*_: Any) -> Any:
        return ModelLease(cast(Any, served))

    return SimpleNamespace(acquire=acquire, open=open_, answer_memory=AnswerMemory(1 << 20))


def _or_raise(error: ApiError | None, value: Any) -> Any:
    if error is not None:
        raise error
    return value


def service_that_is(state: str) -> Service:
    service = Service(ServerSettings(drain_timeout=20), lambda _: None)
    if state == "failed":
        service.fail("The engine has broken down.")
    elif state == "draining":
        asyncio.run(service.drain())
    return service


@pytest.mark.parametrize(("state", "seconds"), [("loading", 1.0), ("draining", 20), ("failed", None)])
def test_a_server_that_cannot_answer_now_has_not_answered(state: str, seconds: float | None) -> None:
    with pytest.raises(NotNow) as reason:
        ask(service_that_is(state))
    assert reason.value.retry_after == seconds and str(reason.value).endswith(".")


@pytest.mark.parametrize("place", ["prepared", "opened", "answered"])
@pytest.mark.parametrize(("status", "code"), [(429, "rate_limit_exceeded"), (503, "aborted"), (503, "something_new")])
def test_what_says_nothing_about_the_line_is_no_answer(place: str, status: int, code: str) -> None:
    with pytest.raises(NotNow, match="Why") as reason:
        ask(serving(**{place: ApiError(status, "Why.", code=code, retry_after=3.0)}))
    assert reason.value.retry_after == 3.0


def test_an_engine_that_ends_is_reported_as_one_where_the_line_was_in_flight() -> None:
    stopped = ApiError(500, "Killed.", code="engine_stopped")
    with pytest.raises(EngineEnded, match="Killed"):
        ask(serving(answered=stopped))
    for place in ("prepared", "opened"):
        with pytest.raises(NotNow):
            ask(serving(**{place: stopped}))


def test_a_failed_step_is_reported_as_one() -> None:
    failed = ApiError(500, "The step failed.", code="step_failed")
    with pytest.raises(StepFailed) as failure:
        ask(serving(answered=failed))
    assert failure.value.answer is failed


@pytest.mark.parametrize("place", ["prepared", "opened", "answered"])
def test_refusals_of_the_line_are_passed_on(place: str) -> None:
    refusal = invalid("Too long.", "prompt")
    with pytest.raises(ApiError) as raised:
        ask(serving(**{place: refusal}))
    assert raised.value is refusal


def test_an_answer() -> None:
    answer = ask(serving())
    assert (answer.status, answer.body, answer.usage) == (200, b"{}", LineUsage("m", 0, 0, 7))
