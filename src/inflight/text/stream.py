"""The text of one output while its tokens arrive, up to its stop string.

Knows how to join the detokenizer and the stop finder. Does not know who asks: a client's stream wants the text, the
scheduler's stop checker only whether a stop string is complete. Both run this class, so that they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .detokenizer import IncrementalDetokenizer
from .stops import StopStringFinder

if TYPE_CHECKING:
    from .tokenizer import Tokenizer


class TextStream:
    """Tokens in, text out, until a stop string is complete or the output ends."""

    __slots__ = ("_detokenizer", "_finder", "_parts", "_stops_from", "_tokens")

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_token_ids: Sequence[int] = (),
        stops: Sequence[str] = (),
        include_stop: bool = False,
        skip_special_tokens: bool = True,
        stops_from: int = 0,
    ) -> None:
        """Begin after a prompt. Stop strings are looked for in the output alone.

        Args:
            tokenizer: the model's tokenizer.
            prompt_token_ids: what the output continues.
            stops: strings that end the text.
            include_stop: leave the stop string in the text.
            skip_special_tokens: leave special tokens out of the text, and out of the search for stop strings.
            stops_from: number of the first output token, counted from 1, that may complete a stop string; one that
                an earlier token completes is text like any other.

        Raises:
            ValueError: a stop string is empty.
        """
        self._detokenizer = IncrementalDetokenizer(tokenizer, prompt_token_ids, skip_special_tokens)
        self._finder = StopStringFinder(stops, include_stop)
        self._parts: list[str] = []
        self._stops_from = stops_from
        self._tokens = 0

    @property
    def stopped_by(self) -> str | None:
        """The stop string that is complete, or None so far; set by the very push that completed it."""
        return self._finder.matched

    @property
    def text(self) -> str:
        """All text given so far."""
        self._parts = ["".join(self._parts)]
        return self._parts[0]

    def push(self, token_ids: Sequence[int]) -> str:
        """Take the next tokens and give the new text that is certain; nothing after a stop string."""
        text = ""
        for token_id in token_ids:
            if self._finder.matched is not None:
                break
            self._tokens += 1
            text += self._find(self._detokenizer.push(token_id))
        return self._keep(text)

    def finish(self) -> str:
        """End the output and give the rest: what was held back, and U+FFFD for half a character."""
        text = self._find(self._detokenizer.flush())
        return self._keep(text + self._finder.flush())

    def _find(self, text: str) -> str:
        return self._finder.push(text, may_stop=self._tokens >= self._stops_from)[0]

    def _keep(self, text: str) -> str:
        if text:
            self._parts.append(text)
        return text
