"""An answer parser that is written as one walk over the text, from its beginning to its end.

Knows how to wait for text, to look for marks, and what is held back until it is known. What a format's marks mean, its
own file knows: it writes the walk (`walk`), whose steps wait by `yield from`. As a step decides by text alone, never by
where a piece ended, an answer is parsed the same however it was cut.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from msgspec.structs import replace

from inflight.frontend.parsers.answer_parser import AnswerDelta, ContentDelta, ReasoningDelta, ToolCallDelta
from inflight.frontend.parsers.json_scanner import JsonScanner
from inflight.frontend.parsers.text_buffer import TextBuffer

T = TypeVar("T")
Steps = Generator[None, None, T]  # waits at each yield; returns T


class PullParser(ABC):
    """White space in front of a call, and around a call at the answer's end, is nobody's content."""

    def __init__(self) -> None:
        self.in_reasoning = False
        self._text = TextBuffer()
        self._ended = False
        self._deltas: list[AnswerDelta] = []
        self._added_arguments: list[str] = []  # that belong to the last delta, which is of a call
        self._white: list[str] = []  # of the content, until it is known whether a call follows
        self._recorded: list[str] | None = None
        self._calls = 0
        self._walk = self.walk()

    @abstractmethod
    def walk(self) -> Steps[None]:
        """Over the whole answer."""

    def push(self, text: str) -> list[AnswerDelta]:
        self._text.push(text)
        return self._advance()

    def finish(self) -> list[AnswerDelta]:
        self._ended = True
        deltas = self._advance()
        if self._calls == 0 and self._white:
            deltas.append(ContentDelta("".join(self._white)))
        return deltas

    def _advance(self) -> list[AnswerDelta]:
        next(self._walk, None)
        self._join_arguments()
        deltas, self._deltas = self._deltas, []
        return deltas

    # -- what is told -----------------------------------------------------------------------------------------------

    def content(self, text: str) -> None:
        told = text.rstrip()
        if told:
            self._tell(ContentDelta("".join([*self._white, told])))
            self._white = []
        if len(told) < len(text):
            self._white.append(text[len(told) :])

    def reasoning(self, text: str) -> None:
        if text:
            self._tell(ReasoningDelta(text))

    def begin_call(self, name: str, arguments: str = "", call_id: str | None = None) -> None:
        self._white = []
        self._tell(ToolCallDelta(self._calls, name, arguments, call_id))
        self._calls += 1

    def arguments(self, text: str) -> None:
        """Of the call that began last. Those of one piece of text are told as one."""
        if self._deltas and isinstance(self._deltas[-1], ToolCallDelta):
            self._added_arguments.append(text)
        elif text:
            self._tell(ToolCallDelta(self._calls - 1, None, text))

    def cut_off_name(self, name: str) -> None:
        """Of an argument, at the answer's end."""
        if name.strip():
            self.arguments(json.dumps(name.strip(), ensure_ascii=False)[:-1])

    def no_call(self, before: str) -> None:
        """What was recorded behind `before` is no call after all."""
        self.content(before + self.recorded())

    def _tell(self, delta: AnswerDelta) -> None:
        self._join_arguments()
        self._deltas.append(delta)

    def _join_arguments(self) -> None:
        if self._added_arguments and isinstance(last := self._deltas[-1], ToolCallDelta):
            self._deltas[-1] = replace(last, arguments="".join([last.arguments, *self._added_arguments]))
            self._added_arguments = []

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
        self._text.put_back(text)
        if self._recorded is not None:
            self._recorded = ["".join(self._recorded).removesuffix(text)]

    def take(self, length: int) -> str:
        return self._consumed(self._text.take(length))

    def _consumed(self, text: str) -> str:
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
        return self._text.peek()

    def white(self) -> Steps[str]:
        """Consumes white space."""
        found: list[str] = []
        while True:
            found.append(self._consumed(self._text.take_white()))
            if self._text or not (yield from self.more()):
                return "".join(found)

    def literal(self, *texts: str) -> Steps[str]:
        """Consumes whichever of `texts` comes next, the longest; empty where none does."""
        while True:
            if not any(map(self._text.is_beginning_of, texts)) or not (yield from self.more()):
                break
        found = max(filter(self._text.starts_with, texts), key=len, default="")
        return self.take(len(found))

    def until(self, marks: Sequence[str], tell: Callable[[str], None]) -> Steps[str]:
        """Tells the text in front of the first mark and consumes both. The mark; empty at the answer's end. No
        mark may begin another."""
        while True:
            if (found := self._text.find(marks)) is not None:
                tell(self.take(found[0]))
                return self.take(len(found[1]))
            if self._ended:
                tell(self.take(len(self._text)))
                return ""
            tell(self.take(len(self._text) - self._text.length_of_beginning(marks)))
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
            if (length := self._text.length_of_json(scanner)) is not None:
                tell(self.take(length))
                return True
            tell(self.take(len(self._text)))
            if not (yield from self.more()):
                return scanner.is_scalar
