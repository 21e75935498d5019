"""When a sequence ends. Runs in `commit` on every new token, so that a replay stops where the run stopped.

Knows token ids and lengths; stop strings need text, so their check is handed in as a `StopText`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from inflight.core.types.events import Finish
from inflight.core.types.request import Request


class StopText(Protocol):
    """Says for each token in turn whether a stop string is complete with it."""

    def push(self, token_id: int) -> str | None: ...


NONE: frozenset[int] = frozenset()  # one for all that have none
StopTextFactory = Callable[[Request], StopText | None]


class StopChecker:
    """The stop rules of one sample; `check` is called once per output token, in order (never, where none is wanted)."""

    __slots__ = ("_ends", "_forced", "_least", "_most", "_output_tokens", "_stops", "_text")

    def __init__(self, request: Request, end_token_ids: frozenset[int], max_output: int, text: StopText | None):
        """max_output: the most tokens this sample may have, from max_tokens and the model's length."""
        params = request.params
        self._forced = request.forced_output_tokens
        self._least = params.min_tokens
        self._most = max_output
        self._ends = NONE if params.ignore_eos else end_token_ids
        self._stops = frozenset(params.stop_token_ids) if params.stop_token_ids else NONE
        self._text = text
        self._output_tokens = 0

    @property
    def guaranteed_tokens(self) -> int:
        """Tokens that come before its last one, whatever they are; 0 where that cannot be known."""
        return 0 if self._forced is None else max(0, min(self._forced, self._most) - self._output_tokens - 1)

    def passed(self, tokens: int) -> None:
        """So many of those are there."""
        self._output_tokens += tokens

    def check(self, token_id: int) -> Finish | None:
        self._output_tokens += 1
        if self._forced is not None:
            # A forced length is the whole rule: the trace says how long the answer was.
            return Finish("length") if self._output_tokens >= min(self._forced, self._most) else None
        stopped_by = self._text.push(token_id) if self._text is not None else None
        if self._output_tokens >= self._least:
            if token_id in self._ends:
                return Finish("stop")
            if token_id in self._stops:
                return Finish("stop", token_id)
            if stopped_by is not None:
                return Finish("stop", stopped_by)
        return Finish("length") if self._output_tokens >= self._most else None
