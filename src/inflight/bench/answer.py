"""One answer of completions or chat as it comes in: times and number of its tokens, and how it ended.

Sans-IO: times are arguments. Answers are of one sample (`n` 1).
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from typing import Any

from inflight.counted import counted

_SHOWN = 120  # characters of something unexpected that an error quotes
_MAX_TOKENS = 10_000_000  # of one answer; a larger number is ignored


class Answer:
    """tokens: received so far, as far as known. frames: with tokens. prompt_tokens, cached_tokens: None, 0 where usage
    did not report them. done: whether the server ended the answer. error: a sentence. text, token_ids: stored if
    `keep`, where the server sends them.

    The tokens of a frame are counted by usage in the frame, if the server sends that, else by `token_ids`; a frame with
    text and neither counts as one token until the final usage reports the sum.
    """

    def __init__(self, keep: bool = False):
        self._keep = keep
        self._times = array("d")  # of each token
        self._every_frame_counted = True  # whether the server reported the tokens of each frame
        self._whole = False
        self._reported: int | None = None  # output tokens, by usage
        self.prompt_tokens: int | None = None
        self.cached_tokens = 0
        self._texts: list[str] = []
        self.frames = 0
        self.vectors = 0  # in place of tokens
        self.token_ids: list[int] = []
        self.id = ""
        self.done = False
        self.error = ""

    @property
    def tokens(self) -> int:
        return len(self._times)

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def first_token(self) -> float | None:
        return self._times[0] if self._times else None

    @property
    def last_token(self) -> float | None:
        return self._times[-1] if self._times else None

    @property
    def counted(self) -> bool:
        """Whether the server reported the number of tokens."""
        return self._reported is not None or (self._every_frame_counted and bool(self._times))

    @property
    def output_tokens(self) -> int:
        """Return the number in the final usage, or without it the counted one."""
        return self._reported or self.tokens

    def token_times(self) -> Sequence[float]:
        """Return the time of each output token; none for an answer that was not streamed. Where the final usage reports
        another number than was counted, that many are spread evenly over the times of frames."""
        if self._whole or not self._times:
            return ()
        return spread(self._times, self.output_tokens)

    def take(self, data: bytes, now: float) -> None:
        """Read an event of a stream, whose bytes came at `now`."""
        if data == b"[DONE]":
            self.done = True
            return
        self._take(data, now)

    def take_whole(self, data: bytes, now: float) -> None:
        """Read an answer that was not streamed: all of its tokens came at `now`."""
        self._whole = True
        self._take(data, now)
        self.done = True

    def problem(self) -> str:
        """Return why the ended answer failed; empty where it did not."""
        if self.error:
            return self.error
        if not self.done:
            return f"The stream ended after {self._so_far()} with neither a finish_reason nor [DONE]."
        if not self._times and not self.vectors:
            return "The answer ended properly but has no token, which is not counted as completed."
        return ""

    def _so_far(self) -> str:
        return counted(self.tokens, "token")

    def _take(self, data: bytes, now: float) -> None:
        try:
            frame = json.loads(data)
            if not self.id:
                self.id = str(frame.get("id") or "")
            if frame.get("error") or frame.get("object") == "error":
                self.error = f"After {self._so_far()} the server said: {message(frame)}"
                return
            reported = self._note(frame.get("usage") or {})
            self.vectors += sum(bool(row.get("embedding")) for row in frame.get("data") or ())
            for choice in frame.get("choices") or ():
                self._add_tokens(choice, reported, now)
                if choice.get("finish_reason"):
                    self.done = True
        except (ValueError, AttributeError, TypeError, RecursionError):
            self.error = f"After {self._so_far()} the server sent data that is no part of an answer: {shown(data)}"

    def _note(self, usage: dict[str, Any]) -> int | None:
        """Return the number of tokens so far, if usage reports it."""
        reported = _count(usage.get("completion_tokens"))
        if usage:
            self._reported = reported
            self.prompt_tokens = _count(usage.get("prompt_tokens"))
            self.cached_tokens = _count((usage.get("prompt_tokens_details") or {}).get("cached_tokens")) or 0
        return reported

    def _add_tokens(self, choice: dict[str, Any], reported: int | None, now: float) -> None:
        inside = choice.get("delta") or choice.get("message") or {}
        text = choice.get("text") or inside.get("content")
        ids = choice.get("token_ids")
        if reported is not None:
            brought = reported - len(self._times)
        elif ids is not None:
            brought = len(ids)
        else:
            brought = 1 if text or _beside(inside) else 0
            self._every_frame_counted = self._every_frame_counted and not brought
        if brought > 0:
            self._times.extend([now] * brought)
            self.frames += 1
        if self._keep:
            self._texts.append(str(text or ""))
            self.token_ids.extend(ids or ())


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and 0 <= value <= _MAX_TOKENS else None


def _beside(delta: dict[str, Any]) -> bool:
    """Whether a chat's frame brings tokens that are not content: reasoning, calls of tools."""
    return any(delta.get(name) for name in ("reasoning_content", "reasoning", "tool_calls"))


def spread(times: array[float], total: int) -> array[float]:
    """Return `total` times, the first and the last among them, as an even selection or repetition of `times`."""
    seen = len(times)
    if total == seen:
        return times
    if total > seen:
        return array("d", (times[token * seen // total] for token in range(total)))
    return array("d", (times[token * (seen - 1) // max(total - 1, 1)] for token in range(total)))


def message(body: dict[str, Any]) -> str:
    """Return the message of an error's body, in OpenAI's shape or near it."""
    inside = body.get("error") or body
    text = inside.get("message") if isinstance(inside, dict) else inside
    return str(text or body)[: 2 * _SHOWN]


def shown(data: bytes) -> str:
    return repr(data[:_SHOWN].decode("utf-8", "replace")) + ("…" if len(data) > _SHOWN else "")
