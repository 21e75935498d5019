"""Define what the stub server does with a request, and the bytes of it.

The script stands in the request's own body, under "stub", so that one server plays every part.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

Fault = Literal["", "reset", "close", "end", "garbage", "bad_json", "error", "stall"]
Usage = Literal["final", "continuous", "none"]


@dataclass(frozen=True, slots=True)
class Script:
    """first_s: until the first token. gap_s: between frames. per_frame: tokens that come together. busy_s: for which it
    has the server to itself; requests wait for that in turn.

    fault: happens once `fault_after` frames with tokens were sent. reset: of the connection. close: of the connection.
    end: of the stream, properly, but without an end of the answer. garbage: bytes that are nothing. bad_json, error: an
    event of that kind. stall: nothing more, for ever.
    status, retry_after: a refusal, for the first `refusals` requests of this name.
    cut: bytes in a write. done: whether [DONE] ends it. role: whether a frame without a token comes first.
    whole: one answer, not a stream. page: sent as the stream, instead of frames.
    """

    tokens: int = 4
    first_s: float = 0.0
    gap_s: float = 0.0
    per_frame: int = 1
    busy_s: float = 0.0
    fault: Fault = ""
    fault_after: int = 0
    status: int = 200
    retry_after: str | None = None
    refusals: int = 1_000_000
    name: str = ""
    usage: Usage = "final"
    token_ids: bool = False
    cached: int = 0
    cut: int = 0
    newline: str = "\n"
    role: bool = False
    done: bool = True
    whole: bool = False
    page: str = ""


@lru_cache(maxsize=4096)
def script_of(body: bytes) -> Script:
    return Script(**json.loads(body).get("stub", {}))


def simple(status: int, body: object, *headers: str) -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} Scripted", "Content-Type: application/json", f"Content-Length: {len(content)}"]
    return "\r\n".join([*lines, *headers, "", ""]).encode() + content


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
TAIL = b"0\r\n\r\n"
GARBAGE = b"\x00\xff what is this? \x01" * 8


def chunk(data: bytes) -> bytes:
    """Return data as one chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class Frames:
    """The events of one answer. Tokens are the letters a, b, c, …; ids their places."""

    def __init__(self, script: Script, name: str, chat: bool):
        self._script, self._name, self._chat = script, name, chat

    def role(self) -> bytes:
        return self._event(self._choice("", [], None))

    def tokens(self, begin: int, end: int) -> bytes:
        reason = "length" if end >= self._script.tokens else None
        usage = self.usage(end) if self._script.usage == "continuous" else None
        return self._event(self._choice(text(begin, end), list(range(begin, end)), reason), usage)

    def end(self) -> bytes:
        """Return what comes after the last token."""
        script, found = self._script, b""
        if script.usage == "final":
            found += self._event(None, self.usage(script.tokens))
        return found + (self.line("[DONE]") if script.done else b"")

    def error(self) -> bytes:
        return self.line(json.dumps({"error": {"message": "the engine fell over", "code": 500}}))

    def whole(self) -> dict[str, Any]:
        shown = text(0, self._script.tokens)
        choice = {"message": {"content": shown}} if self._chat else {"text": shown}
        finished = {"index": 0, **choice, "finish_reason": "length"}
        return {"id": self._name, "choices": [finished], "usage": self.usage(self._script.tokens)}

    def line(self, data: str) -> bytes:
        return f"data: {data}{self._script.newline * 2}".encode()

    def usage(self, tokens: int) -> dict[str, Any]:
        details = {"cached_tokens": self._script.cached}
        return {"prompt_tokens": 7, "completion_tokens": tokens, "prompt_tokens_details": details}

    def _choice(self, shown: str, ids: list[int], reason: str | None) -> dict[str, Any]:
        delta: dict[str, Any] = {"delta": {"role": "assistant", "content": shown}} if self._chat else {"text": shown}
        ids_field = {"token_ids": ids} if self._script.token_ids else {}
        return {"index": 0, **delta, **ids_field, "finish_reason": reason}

    def _event(self, choice: dict[str, Any] | None, usage: dict[str, Any] | None = None) -> bytes:
        choices = [] if choice is None else [choice]
        return self.line(json.dumps({"id": self._name, "object": "stub", "choices": choices, "usage": usage}))


def text(begin: int, end: int) -> str:
    return "".join(chr(97 + token % 26) for token in range(begin, end))
