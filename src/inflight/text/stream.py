"""Stream the text of one output up to its stop string, which is looked for behind its reasoning."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from inflight.text.detokenizer import IncrementalDetokenizer

if TYPE_CHECKING:
    from inflight.text.tokenizer import Tokenizer


class StopStringFinder:
    """Find stop strings in a stream of text, however it is cut into pieces.

    The match that ends first wins; of those that end together, the one that began first. Work is one comparison or so
    per character and stop string, also for long strings with repeated prefixes.
    """

    __slots__ = ("_held", "_include", "_matched", "_openers", "_progress")

    def __init__(self, stops: Sequence[str], include_in_output: bool = False) -> None:
        """Look for `stops`; with `include_in_output` the one that matched stays in the text.

        Raises:
            ValueError: a stop string is empty, or `stops` is one string where several are expected.
        """
        if isinstance(stops, str):
            raise ValueError(f"Stop strings come as a sequence, not as the one string {stops!r}; pass ({stops!r},).")
        for position, stop in enumerate(stops):
            if not stop:
                raise ValueError(
                    f"Stop string {position} of {len(stops)} is empty and would stop at once; leave it out."
                )
        # Longest first, so that of those that end together the first found is the one that began first.
        self._progress = tuple(_Progress(stop) for stop in sorted(set(stops), key=lambda stop: (-len(stop), stop)))
        self._openers = frozenset(stop[0] for stop in stops)
        self._include = include_in_output
        self._held = ""
        self._matched: str | None = None

    @property
    def matched(self) -> str | None:
        """The stop string that ended the text, or None so far."""
        return self._matched

    def push(self, delta: str, may_stop: bool = True) -> tuple[str, str | None]:
        """Take more text; return the text that certainly precedes any stop string, and a complete stop string.

        After a match, return no text and the match again. While `may_stop` is False, a completed stop string is plain
        text; one that begins may be completed later.
        """
        if self._matched is not None:
            return "", self._matched
        if not self._is_within() and self._openers.isdisjoint(delta):
            return delta, None
        for position, character in enumerate(delta):
            complete = [progress for progress in self._progress if progress.step(character)]
            if complete and may_stop:
                return self._stop(complete[0].stop, delta[: position + 1])
        return self._release(delta), None

    def flush(self) -> str:
        """Return the withheld text at the stream's end."""
        text, self._held = self._held, ""
        for progress in self._progress:
            progress.length = 0
        return text

    def _is_within(self) -> bool:
        return any(progress.length for progress in self._progress)

    def _stop(self, stop: str, delta: str) -> tuple[str, str]:
        text, self._held, self._matched = self._held + delta, "", stop
        return (text if self._include else text[: len(text) - len(stop)]), stop

    def _release(self, delta: str) -> str:
        """Withhold the longest ending that begins a stop string; nothing if stop strings stay in the text."""
        text = self._held + delta
        waiting = 0 if self._include else max((progress.length for progress in self._progress), default=0)
        certain = len(text) - waiting
        self._held = text[certain:]
        return text[:certain]


@lru_cache(maxsize=1024)  # a hundred samples of a request look for the same strings
def _fallback(stop: str) -> tuple[int, ...]:
    """Return, for each length, the longest shorter beginning of `stop` that its first characters end with."""
    fallback, known = [0], 0
    for character in stop[1:]:
        while known and stop[known] != character:
            known = fallback[known - 1]
        known += stop[known] == character
        fallback.append(known)
    return tuple(fallback)


class _Progress:
    """The length of one stop string's beginning that the stream ends with (Knuth, Morris, Pratt)."""

    __slots__ = ("_fallback", "length", "stop")

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.length = 0  # characters of `stop` that the stream ends with
        self._fallback = _fallback(stop)

    def step(self, character: str) -> bool:
        """Take one character; return True if it completes the stop string."""
        length = self.length
        while length and self.stop[length] != character:
            length = self._fallback[length - 1]
        length += self.stop[length] == character
        is_complete = length == len(self.stop)
        # A complete one that does not count may hold the beginning of the next.
        self.length = self._fallback[-1] if is_complete else length
        return is_complete


class AnswerStart:
    """Split the text of one output, piece by piece, at the start of its answer.

    As in `frontend.parsers`, reasoning comes first, and white space after it belongs to it.
    """

    __slots__ = ("_begins", "_ends", "_has_reasoning", "_has_started", "_overlap", "_text")

    def __init__(self, begins: Sequence[str], ends: Sequence[str], is_open: bool) -> None:
        """Start before the output.

        Args:
            begins: Texts any of which opens reasoning.
            ends: Texts any of which closes it.
            is_open: Whether the prompt has opened it.
        """
        self._begins, self._ends = tuple(begins), tuple(ends)
        self._overlap = max(map(len, self._ends)) - 1
        self._has_reasoning = is_open
        self._has_started = False
        self._text = ""  # may be the beginning of a mark: withheld, or, within reasoning, already returned

    def push(self, text: str) -> tuple[str, str]:
        """Return the part of the text before the answer, and the answer's part. Both are empty while the first
        characters may open reasoning."""
        if self._has_started:
            return "", text
        if self._has_reasoning:
            return self._skip(text)
        self._text += text
        begun = self._text.lstrip()
        if begun.startswith(self._begins):
            whole, self._text, self._has_reasoning = self._text, "", True
            return self._skip(whole)
        if any(begin.startswith(begun) for begin in self._begins):
            return "", ""
        return "", self.flush()

    def flush(self) -> str:
        """Return the withheld text at the output's end: it belongs to the answer."""
        held = "" if self._has_reasoning else self._text
        self._text, self._has_started = "", True
        return held

    def _skip(self, text: str) -> tuple[str, str]:
        """Skip reasoning and the white space after it."""
        seen = self._text + text
        if self._ends:
            found = min((at + len(end) for end in self._ends if (at := seen.find(end)) >= 0), default=None)
            if found is None:
                self._text = seen[len(seen) - min(self._overlap, len(seen)) :]
                return text, ""
            self._ends, seen = (), seen[found:]
        answer = seen.lstrip()
        self._text, self._has_started = "", bool(answer)
        return text[: len(text) - len(answer)], answer


class TextStream:
    """Convert tokens to text until a stop string is complete or the output ends.

    Text that may become a stop string is withheld. The client's stream and the scheduler's stop check both use this
    class, so they cannot disagree.
    """

    __slots__ = ("_answer_start", "_detokenizer", "_finder", "_parts", "_stops_from", "_tokens")

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_token_ids: Sequence[int] = (),
        stops: Sequence[str] = (),
        include_stop: bool = False,
        skip_special_tokens: bool = True,
        stops_from: int = 0,
        shown_token_ids: Collection[int] = (),
        answer_start: AnswerStart | None = None,
    ) -> None:
        """Start after a prompt. Stop strings are matched in the output only.

        Args:
            tokenizer: the model's tokenizer.
            prompt_token_ids: what the output continues.
            stops: strings that end the text.
            include_stop: leave the stop string in the text.
            skip_special_tokens: leave special tokens out of the text, and out of the search for stop strings.
            stops_from: number of the first output token, counted from 1, that may complete a stop string; one that
                an earlier token completes is text like any other.
            shown_token_ids: special tokens that are text all the same.
            answer_start: where stop strings are looked for from; None: the output's first character.

        Raises:
            ValueError: a stop string is empty.
        """
        self._detokenizer = IncrementalDetokenizer(tokenizer, prompt_token_ids, skip_special_tokens, shown_token_ids)
        self._finder = StopStringFinder(stops, include_stop)
        self._answer_start = answer_start
        self._parts: list[str] = []
        self._stops_from = stops_from
        self._tokens = 0

    @property
    def stopped_by(self) -> str | None:
        """The complete stop string, or None; set by the push that completes it."""
        return self._finder.matched

    @property
    def text(self) -> str:
        self._parts = ["".join(self._parts)]
        return self._parts[0]

    def push(self, token_ids: Sequence[int]) -> str:
        """Take the next tokens; return the new text that is certain, none after a stop string."""
        text = ""
        for token_id in token_ids:
            if self._finder.matched is not None:
                break
            self._tokens += 1
            text += self._find(self._detokenizer.push(token_id))
        return self._keep(text)

    def finish(self) -> str:
        """End the output; return the withheld text, and U+FFFD for an incomplete character."""
        text = self._find(self._detokenizer.flush())
        if self._answer_start is not None:
            text += self._look_through(self._answer_start.flush())
        return self._keep(text + self._finder.flush())

    def _find(self, text: str) -> str:
        if self._answer_start is None:
            return self._look_through(text)
        reasoning, text = self._answer_start.push(text)
        return reasoning + self._look_through(text)

    def _look_through(self, text: str) -> str:
        return self._finder.push(text, may_stop=self._tokens >= self._stops_from)[0]

    def _keep(self, text: str) -> str:
        if text:
            self._parts.append(text)
        return text
