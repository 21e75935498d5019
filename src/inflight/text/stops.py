"""Stop strings, found in a text that arrives in pieces.

Knows how to find the first of several strings in a stream and how much text must wait because it may yet become one.
Does not know tokens (`detokenizer`) or what stopping means to a request.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache


class StopStringFinder:
    """Looks for stop strings in a stream of text, however the stream is cut into pieces.

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
        """Take more text; give what certainly comes before any stop string, and the stop string if one is complete.

        After a match nothing more comes out, and the match is given again. Where text may not stop yet, what it
        completes is text like any other; what it begins may be completed later.
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
        """Give the text that was held back, when the stream has ended and no stop string can come any more."""
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
        """Hold back the longest ending that begins a stop string; if stop strings stay in the text, nothing must."""
        text = self._held + delta
        waiting = 0 if self._include else max((progress.length for progress in self._progress), default=0)
        certain = len(text) - waiting
        self._held = text[certain:]
        return text[:certain]


@lru_cache(maxsize=1024)  # a hundred samples of a request look for the same strings
def _fallback(stop: str) -> tuple[int, ...]:
    """By length: the longest shorter beginning of `stop` that its first characters end with."""
    fallback, known = [0], 0
    for character in stop[1:]:
        while known and stop[known] != character:
            known = fallback[known - 1]
        known += stop[known] == character
        fallback.append(known)
    return tuple(fallback)


class _Progress:
    """How much of one stop string the stream ends with (Knuth, Morris, Pratt)."""

    __slots__ = ("_fallback", "length", "stop")

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.length = 0  # characters of `stop` that the stream ends with
        self._fallback = _fallback(stop)

    def step(self, character: str) -> bool:
        """Take one character; True if it completes the stop string."""
        length = self.length
        while length and self.stop[length] != character:
            length = self._fallback[length - 1]
        length += self.stop[length] == character
        is_complete = length == len(self.stop)
        # A complete one that does not count may hold the beginning of the next.
        self.length = self._fallback[-1] if is_complete else length
        return is_complete
