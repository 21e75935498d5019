"""An answer parser that is written as one walk over the text, from its beginning to its end.

Knows how to wait for text, to look for marks, and what is held back until it is known. What a format's marks mean, its
own file knows: it writes the walk (`walk`), whose steps wait by `yield from`. As a step decides by text alone, never by
where a piece ended, an answer is parsed the same however it was cut.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from msgspec.structs import replace

from inflight.frontend.parsers.answer_parser import AnswerDelta, ContentDelta, ReasoningDelta, ToolCallDelta
from inflight.frontend.parsers.json_scanner import JsonScanner

T = TypeVar("T")
Steps = Generator[None, None, T]  # waits at each yield; returns T


class PullParser(ABC):
    """White space in front of a call, and around a call at the answer's end, is nobody's content."""

    def __init__(self) -> None:
        self.in_reasoning = False
        self._text = ""  # what has come and is not consumed
        self._ended = False
        self._deltas: list[AnswerDelta] = []
        self._white = ""  # of the content, until it is known whether a call follows
        self._recorded: list[str] | None = None
        self._calls = 0
        self._walk = self.walk()

    @abstractmethod
    def walk(self) -> Steps[None]:
        """Over the whole answer."""

    def push(self, text: str) -> list[AnswerDelta]:
        self._text += text
        return self._advance()

    def finish(self) -> list[AnswerDelta]:
        self._ended = True
        deltas = self._advance()
        if self._calls == 0 and self._white:
            deltas.append(ContentDelta(self._white))
        return deltas

    def _advance(self) -> list[AnswerDelta]:
        next(self._walk, None)
        deltas, self._deltas = self._deltas, []
        return deltas

    # -- what is told -----------------------------------------------------------------------------------------------

    def content(self, text: str) -> None:
        text = self._white + text
        told = text.rstrip()
        self._white = text[len(told) :]
        if told:
            self._deltas.append(ContentDelta(told))

    def reasoning(self, text: str) -> None:
        if text:
            self._deltas.append(ReasoningDelta(text))

    def begin_call(self, name: str, arguments: str = "", call_id: str | None = None) -> None:
        self._white = ""
        self._deltas.append(ToolCallDelta(self._calls, name, arguments, call_id))
        self._calls += 1

    def arguments(self, text: str) -> None:
        """Of the call that began last. Those of one piece of text are told as one."""
        last = self._deltas[-1] if self._deltas else None
        if isinstance(last, ToolCallDelta):
            self._deltas[-1] = replace(last, arguments=last.arguments + text)
        elif text:
            self._deltas.append(ToolCallDelta(self._calls - 1, None, text))

    def no_call(self, before: str) -> None:
        """What was recorded behind `before` is no call after all."""
        self.content(before + self.recorded())

    # -- what is read -----------------------------------------------------------------------------------------------

    def record(self) -> None:
        """From here on, until it is known to be a call."""
        self._recorded = []

    def recorded(self) -> str:
        """What has been consumed since; it is no longer recorded."""
        text = "".join(self._recorded or ())
        self._recorded = None
        return text

    def put_back(self, text: str) -> None:
        """What was consumed last, which is to be read again."""
        self._text = text + self._text
        if self._recorded is not None:
            self._recorded = ["".join(self._recorded).removesuffix(text)]

    def take(self, length: int) -> str:
        text, self._text = self._text[:length], self._text[length:]
        if self._recorded is not None:
            self._recorded.append(text)
        return text

    def more(self) -> Steps[bool]:
        """Waits; False: the answer has ended."""
        if not self._ended:
            yield
        return not self._ended

    def next_character(self) -> Steps[str]:
        """The next one, not consumed; none at the answer's end."""
        while not self._text and (yield from self.more()):
            pass
        return self._text[:1]

    def white(self) -> Steps[str]:
        """Consumes white space."""
        found = ""
        while True:
            rest = self._text.lstrip()
            found += self.take(len(self._text) - len(rest))
            if self._text or not (yield from self.more()):
                return found

    def literal(self, *texts: str) -> Steps[str]:
        """Consumes whichever of `texts` comes next, the longest; empty where none does."""
        while True:
            waiting = any(len(one) > len(self._text) and one.startswith(self._text) for one in texts)
            if not waiting or not (yield from self.more()):
                break
        found = max((one for one in texts if self._text.startswith(one)), key=len, default="")
        return self.take(len(found))

    def until(self, marks: Sequence[str], tell: Callable[[str], None]) -> Steps[str]:
        """Tells the text in front of the first mark and consumes both. The mark; empty at the answer's end. No
        mark may begin another."""
        while True:
            found = [(place, -len(mark), mark) for mark in marks if (place := self._text.find(mark)) >= 0]
            if found:
                place, _, mark = min(found)
                tell(self.take(place))
                return self.take(len(mark))
            if self._ended:
                tell(self.take(len(self._text)))
                return ""
            tell(self.take(len(self._text) - _beginning_of_mark(self._text, marks)))
            yield from self.more()

    def collect_until(self, marks: Sequence[str]) -> Steps[tuple[str, str]]:
        """The text in front of the first mark, and the mark."""
        parts: list[str] = []
        mark = yield from self.until(marks, parts.append)
        return "".join(parts), mark

    def json_value(self, tell: Callable[[str], None]) -> Steps[bool]:
        """Consumes one value and tells it as it is written, as it comes. False: it is cut off by the answer's end."""
        yield from self.white()
        scanner = JsonScanner()
        while True:
            if (end := scanner.feed(self._text)) is not None:
                tell(self.take(end))
                return True
            tell(self.take(len(self._text)))
            if not (yield from self.more()):
                return scanner.is_scalar


def _beginning_of_mark(text: str, marks: Sequence[str]) -> int:
    """Length of the longest end of `text` that begins a mark."""
    longest = min(len(text), max(map(len, marks)) - 1)
    for length in range(longest, 0, -1):
        tail = text[len(text) - length :]
        if any(mark.startswith(tail) for mark in marks):
            return length
    return 0
