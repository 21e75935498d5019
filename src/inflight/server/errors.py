"""Errors as OpenAI's clients expect them: one wrapped shape for plain answers, streams and lines of batch jobs.

Knows status codes and names; what went wrong, the one who raises says in a sentence.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

from inflight.core.types.request import RequestRefused
from inflight.counted import shortened

MAX_MESSAGE = 1000  # characters of an error's sentence
MAX_PARAM = 200

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)


class ApiError(Exception):
    """The error that a client gets instead of an answer.

    status: HTTP status. type, code: OpenAI's names; without a code it is the status's. param: the field of the body
    that is to blame, if one is. retry_after: seconds after which it makes sense to ask again. accepts: encodings that a
    body may have, where its own is refused.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
        accepts: str | None = None,
    ):
        self.message = shortened(message, MAX_MESSAGE)  # whatever of a body it quotes
        super().__init__(self.message)
        self.status = status
        self.type = type
        self.param = None if param is None else shortened(param, MAX_PARAM)
        self.code = code or _code_of(status, param)
        self.retry_after, self.accepts = retry_after, accepts

    @property
    def body(self) -> dict[str, Any]:
        inside: dict[str, Any] = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        if self.retry_after is not None:
            inside["retry_after_s"] = round(self.retry_after, 3)
        return {"error": inside}

    @property
    def headers(self) -> dict[str, str]:
        """Retry-After holds whole seconds, and never 0: the client would be back before anything has changed."""
        headers = {} if self.retry_after is None else {"Retry-After": str(max(1, math.ceil(self.retry_after)))}
        if self.accepts is not None:
            headers["Accept-Encoding"] = self.accepts
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return headers


_CODES = {
    401: "invalid_api_key",
    404: "not_found",
    405: "method_not_allowed",
    413: "too_large",
    429: "rate_limit_exceeded",
}


def _code_of(status: int, param: str | None) -> str:
    """Return the code of an error that has no narrower one."""
    if status == 400:
        return "invalid_request" if param is None else "invalid_value"
    return _CODES.get(status, "server_error" if status >= 500 else f"http_{status}")


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code=code)


def clients_fault(make: Callable[[], T], field: str) -> T:
    """Mistakes that text and prompts tell in sentences are the client's."""
    try:
        return make()
    except ValueError as error:
        if not type(error).__module__.startswith("inflight."):
            raise  # a bug of ours
        raise invalid(str(error), field) from None


def without_frames(error: E) -> E:
    """For whoever keeps the error: with its traceback it would keep what the frames held, and be held by them."""
    error.__context__ = error.__cause__ = None
    return error.with_traceback(None)


def refused(refusal: RequestRefused, prompt_field: str = "prompt", form_field: str | None = None) -> ApiError:
    """The engine's refusal: 429 where waiting helps, 400 where it never will.

    prompt_field: what this endpoint calls the prompt. form_field: the field that the request's grammar is from.
    """
    if refusal.retry_after is not None:
        return ApiError(
            429,
            str(refusal),
            type="rate_limit_error",
            code="rate_limit_exceeded",
            retry_after=refusal.retry_after,
        )
    fields = {"prompt": prompt_field, "grammar": form_field}
    return invalid(str(refusal), fields.get(refusal.field or "", refusal.field), refusal.code)
