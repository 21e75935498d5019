"""Find where the answer starts in an output: after its reasoning, if there is any.

As in `frontend.parsers`, reasoning comes first, and white space after it belongs to it.
"""

from __future__ import annotations

from collections.abc import Sequence


class AnswerStart:
    """Split the text of one output, piece by piece."""

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
