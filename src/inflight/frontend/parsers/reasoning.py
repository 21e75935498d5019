"""Parse reasoning between marks at the start of an answer, for all formats that differ only in their marks.

Another parser reads the rest of the answer. White space around the reasoning is dropped.
"""

from __future__ import annotations

from msgspec import Struct

from inflight.frontend.parsers.answer_parser import AnswerDelta, AnswerParser
from inflight.frontend.parsers.pull_parser import PullParser, Steps


class ReasoningMarks(Struct, frozen=True):
    """The marks of one format.

    Attributes:
        begins: Texts any of which opens the reasoning; the first one is forced.
        ends: Texts any of which closes it; the first one is forced.
        tokens: Special tokens that are parts of them.
    """

    begins: tuple[str, ...]
    ends: tuple[str, ...]
    tokens: tuple[str, ...] = ()

    def open_at_end_of(self, prompt_text: str) -> bool:
        return prompt_text.rstrip().endswith(self.begins)


class ReasoningParser(PullParser):
    """Parse reasoning, then pass the text on.

    Args:
        marks: Of the format.
        rest: Parses the text after the reasoning.
        opened: Whether the prompt ends within reasoning.
    """

    def __init__(self, marks: ReasoningMarks, rest: AnswerParser, opened: bool):
        super().__init__()
        self.in_reasoning = opened
        self._marks = marks
        self._rest = rest
        self._rest_begun = False
        self._space: list[str] = []  # white space of the reasoning, until more text comes

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
        stripped = text.rstrip()
        if stripped:
            self.reasoning("".join([*self._space, stripped]))
            self._space = []
        self._space.append(text[len(stripped) :])

    def _pass_on(self) -> list[AnswerDelta]:
        return self._rest.push(self.take(len(self._text))) if self._rest_begun and self._text else []
