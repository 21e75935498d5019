"""Where an output's answer starts: behind its reasoning, if it has any.

Knows the texts that open and close reasoning; not tokens, nor what is looked for in the answer. As `frontend.parsers`
has it, reasoning stands in front of all else, and white space behind it belongs to it.
"""

from __future__ import annotations

from collections.abc import Sequence


class AnswerStart:
    """Splits the text of one output as it comes, however it is cut into pieces."""

    __slots__ = ("_begins", "_ends", "_has_reasoning", "_has_started", "_overlap", "_text")

    def __init__(self, begins: Sequence[str], ends: Sequence[str], is_open: bool) -> None:
        """Begin in front of the output.

        Args:
            begins: texts any of which opens reasoning.
            ends: texts any of which closes it.
            is_open: the prompt has opened it.
        """
        self._begins, self._ends = tuple(begins), tuple(ends)
        self._overlap = max(map(len, self._ends)) - 1
        self._has_reasoning = is_open
        self._has_started = False
        self._text = ""  # that may be the beginning of a mark: held, or within reasoning passed on already

    def push(self, text: str) -> tuple[str, str]:
        """Return what of the text is in front of the answer, and what is the answer's. Nothing of either is returned
        while the first characters may open reasoning."""
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
        """Return what was held, at the output's end: it is the answer's."""
        held = "" if self._has_reasoning else self._text
        self._text, self._has_started = "", True
        return held

    def _skip(self, text: str) -> tuple[str, str]:
        """Within reasoning, or the white space behind it."""
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
