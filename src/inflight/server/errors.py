"""Errors: the one exception of all APIs, and its JSON as OpenAI's and Anthropic's clients expect it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, TypeVar

from msgspec import UNSET, Struct, UnsetType

from inflight.core.types.request import RequestRefused
from inflight.counted import shortened

MAX_MESSAGE = 1000  # characters of an error's sentence
MAX_PARAM = 200

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)


class ErrorInside(Struct, kw_only=True):
    message: str
    type: str
    param: str | None
    code: str | None
    retry_after_s: float | UnsetType = UNSET


class Error(Struct, kw_only=True):
    """Every error, in answers and in streams."""

    error: ErrorInside


class ApiError(Exception):
    """An error that a client gets instead of an answer.

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
    """Return what `make` makes. Raises ApiError with the sentence of any ValueError that is ours."""
    try:
        return make()
    except ValueError as error:
        if not type(error).__module__.startswith("inflight."):
            raise  # a bug of ours
        raise invalid(str(error), field) from None


def without_frames(error: E) -> E:
    """Return the error to be kept: with its traceback it would keep what the frames held, in a cycle."""
    error.__context__ = error.__cause__ = None
    return error.with_traceback(None)


def refused(refusal: RequestRefused, prompt_field: str = "prompt", form_field: str | None = None) -> ApiError:
    """Return the engine's refusal: 429 where waiting helps, 400 where it never will.

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


# -- ollama's form -----------------------------------------------------------------------------------------------------


class OllamaError(Struct, kw_only=True):
    """Every error of ollama's API, in answers and in streams."""

    error: str


def is_of_ollama(path: str) -> bool:
    """Whether a path belongs to ollama's API."""
    return path.startswith("/api/")


def ollama_status(error: ApiError) -> int:
    """Return the status there: 503 also for a queue that is full."""
    return 503 if error.status == 429 else error.status


def ollama_error(error: ApiError) -> OllamaError:
    return OllamaError(error=error.message)


# -- Anthropic's form --------------------------------------------------------------------------------------------------

MESSAGES_PATH = "/v1/messages"
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_MESSAGES_CODES = {"thread": "thread_unsupported_request"}  # at which tool runners send the whole conversation instead


class MessagesErrorDetails(Struct, kw_only=True):
    error_code: str | UnsetType = UNSET
    param: str | UnsetType = UNSET


class MessagesErrorInside(Struct, kw_only=True):
    type: str
    message: str
    details: MessagesErrorDetails | UnsetType = UNSET


class MessagesError(Struct, kw_only=True):
    """Every error of /v1/messages, in answers and in streams."""

    type: Literal["error"]
    error: MessagesErrorInside
    request_id: str | None


def is_of_messages(path: str) -> bool:
    """Whether a path belongs to Anthropic's API."""
    return path == MESSAGES_PATH or path.startswith(f"{MESSAGES_PATH}/")


def messages_status(error: ApiError) -> int:
    """Return the status there: 529 for a server that cannot take the call now, 504 for a call that takes too long."""
    if error.code == "request_timeout":
        return 504
    return 529 if error.status == 503 else error.status


def messages_error(error: ApiError, request_id: str | None = None) -> dict[str, Any]:
    """Return the body. details: code and param, as our other endpoints have them."""
    status = messages_status(error)
    inside: dict[str, Any] = {
        "type": _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error"),
        "message": error.message,
    }
    code = error.code
    if code == "unsupported_field":
        code = _MESSAGES_CODES.get(error.param or "", code)
    details = {"error_code": code, "param": error.param}
    inside["details"] = {name: value for name, value in details.items() if value is not None}
    return {"type": "error", "error": inside, "request_id": request_id}


def error_type(path: str) -> type[Struct]:
    """Return the struct of errors of a path."""
    return OllamaError if is_of_ollama(path) else MessagesError if is_of_messages(path) else Error
