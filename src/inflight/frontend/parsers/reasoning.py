"""Reasoning between marks, in front of the answer: one parser for all formats that differ by their marks alone.

Knows marks; not calls of tools, which the parser of what follows knows, nor which model writes which (`registry`).
White space around the reasoning belongs to the marks, not to the text.
"""

from __future__ import annotations

from msgspec import Struct

from inflight.frontend.parsers.answer_parser import AnswerDelta, AnswerParser
from inflight.frontend.parsers.pull_parser import PullParser, Steps


class ReasoningMarks(Struct, frozen=True):
    """begins, ends: texts any of which opens or closes the reasoning; the first is what a model is made to write.
    tokens: special tokens that are parts of them."""

    begins: tuple[str, ...]
    ends: tuple[str, ...]
    tokens: tuple[str, ...] = ()

    def open_at_end_of(self, prompt_text: str) -> bool:
        return prompt_text.rstrip().endswith(self.begins)


class ReasoningParser(PullParser):
    """opened: the prompt ends within reasoning. rest: parses what is behind it."""

    def __init__(self, marks: ReasoningMarks, rest: AnswerParser, opened: bool):
        super().__init__()
        self.in_reasoning = opened
        self._marks = marks
        self._rest = rest
        self._rest_begun = False
        self._space: list[str] = []  # of the reasoning, until more of it comes

    def push(self, text: str) -> list[AnswerDelta]:
        if self._rest_begun:
            return self._rest.push(text)
        deltas = super().push(text)
        return [*deltas, *self._pass_on()]

    def finish(self) -> list[AnswerDelta]:
        if self._rest_begun:
            return self._rest.finish()
        deltas = super().finish()
        return [*deltas, *self._pass_on(), *self._rest.finish()]

    def walk(self) -> Steps[None]:
        space = yield from self.white()
        begun = yield from self.literal(*self._marks.begins)
        if not begun and not self.in_reasoning:
            self.put_back(space)
            self._rest_begun = True
            return
        self.in_reasoning = True
        yield from self.white()
        yield from self.until(self._marks.ends, self._reason)
        self.in_reasoning = False
        yield from self.white()
        self._rest_begun = True

    def _reason(self, text: str) -> None:
        told = text.rstrip()
        if told:
            self.reasoning("".join([*self._space, told]))
            self._space = []
        self._space.append(text[len(told) :])

    def _pass_on(self) -> list[AnswerDelta]:
        return self._rest.push(self.take(len(self._text))) if self._rest_begun and self._text else []
