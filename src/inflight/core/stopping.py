"""When a sequence ends. Runs in `commit` on every new token, so that a replay stops where the run stopped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from inflight.core.types.events import Finish
from inflight.core.types.request import Request


class StopText(Protocol):
    """Finds stop strings, which need the text."""

    def push(self, token_id: int) -> str | None:
        """Add a token; return the stop string that is complete with it, if any."""


NO_TOKENS: frozenset[int] = frozenset()  # shared by all requests without stop tokens
StopTextFactory = Callable[[Request], StopText | None]


class StopChecker:
    """The stop rules of one sample. `check` is called once per output token, in order."""

    __slots__ = ("_end_ids", "_forced", "_max_tokens", "_min_tokens", "_output_tokens", "_stop_ids", "_text")

    def __init__(self, request: Request, end_token_ids: frozenset[int], max_output: int, text: StopText | None):
        """Create the rules.

        Args:
            request: Its sampling settings and forced length.
            end_token_ids: The model's.
            max_output: Limit of output tokens, from max_tokens and the model's length.
            text: Finds the request's stop strings, if it has any.
        """
        params = request.params
        forced = request.forced_output_tokens
        self._forced = None if forced is None else min(forced, max_output)
        self._min_tokens, self._max_tokens = params.min_tokens, max_output
        self._end_ids = NO_TOKENS if params.ignore_eos else end_token_ids
        self._stop_ids = frozenset(params.stop_token_ids) if params.stop_token_ids else NO_TOKENS
        self._text = text
        self._output_tokens = 0

    @property
    def guaranteed_tokens(self) -> int:
        """Tokens before the last one, whatever they are; 0 if unknown."""
        return 0 if self._forced is None else max(0, self._forced - self._output_tokens - 1)

    def passed(self, tokens: int) -> None:
        """Count so many guaranteed tokens without checking them."""
        self._output_tokens += tokens

    def check(self, token_id: int) -> Finish | None:
        """Count a token; return how the sample ends with it, if it does."""
        self._output_tokens += 1
        if self._forced is not None:
            # A forced length is the whole rule: the trace says how long the answer was.
            return Finish("length") if self._output_tokens >= self._forced else None
        stopped_by = self._text.push(token_id) if self._text is not None else None
        if self._output_tokens >= self._min_tokens:
            if token_id in self._end_ids:
                return Finish("stop")
            if token_id in self._stop_ids:
                return Finish("stop", token_id)
            if stopped_by is not None:
                return Finish("stop", stopped_by)
        return Finish("length") if self._output_tokens >= self._max_tokens else None
