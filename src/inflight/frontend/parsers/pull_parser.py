"""Base class of answer parsers that are one walk over the text, from start to end.

A format implements `walk`, whose steps wait for text by `yield from`. Steps decide by text alone, not by where a piece
ends, so an answer is parsed the same however it was cut.
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
    """Base class. White space before a call, and around a call at the answer's end, is dropped."""

    def __init__(self) -> None:
        self.in_reasoning = False
        self._text = TextBuffer()
        self._ended = False
        self._deltas: list[AnswerDelta] = []
        self._added_arguments: list[str] = []  # of the last delta, a call's
        self._white: list[str] = []  # white space of the content, until it is known whether a call follows
        self._recorded: list[str] | None = None
        self._calls = 0
        self._walk = self.walk()

    @abstractmethod
    def walk(self) -> Steps[None]:
        """Parse the whole answer."""

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

    # -- output -----------------------------------------------------------------------------------------------------

    def content(self, text: str) -> None:
        stripped = text.rstrip()
        if stripped:
            self._emit(ContentDelta("".join([*self._white, stripped])))
            self._white = []
        if len(stripped) < len(text):
            self._white.append(text[len(stripped) :])

    def reasoning(self, text: str) -> None:
        if text:
            self._emit(ReasoningDelta(text))

    def begin_call(self, name: str, arguments: str = "", call_id: str | None = None) -> None:
        self._white = []
        self._emit(ToolCallDelta(self._calls, name, arguments, call_id))
        self._calls += 1

    def arguments(self, text: str) -> None:
        """Emit arguments of the last call; those of one piece of text become one delta."""
        if self._deltas and isinstance(self._deltas[-1], ToolCallDelta):
            self._added_arguments.append(text)
        elif text:
            self._emit(ToolCallDelta(self._calls - 1, None, text))

    def cut_off_name(self, name: str) -> None:
        """Emit an argument's name that the answer's end truncates."""
        if name.strip():
            self.arguments(json.dumps(name.strip(), ensure_ascii=False)[:-1])

    def no_call(self, before: str) -> None:
        """Emit `before` and the recorded text as content: they are no call."""
        self.content(before + self.recorded())

    def _emit(self, delta: AnswerDelta) -> None:
        self._join_arguments()
        self._deltas.append(delta)

    def _join_arguments(self) -> None:
        if self._added_arguments and isinstance(last := self._deltas[-1], ToolCallDelta):
            self._deltas[-1] = replace(last, arguments="".join([last.arguments, *self._added_arguments]))
            self._added_arguments = []

    # -- input ------------------------------------------------------------------------------------------------------

    def record(self) -> None:
        """Start recording the consumed text, until it is known whether it is a call."""
        self._recorded = []

    def recorded(self) -> str:
        """Stop recording; return the text consumed since `record`."""
        text = "".join(self._recorded or ())
        self._recorded = None
        return text

    def put_back(self, text: str) -> None:
        """Put back the text that was consumed last, to be read again."""
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
        """Wait for text; return False at the answer's end."""
        if not self._ended:
            yield
        return not self._ended

    def next_character(self) -> Steps[str]:
        """Return the next character without consuming it; empty at the answer's end."""
        while not self._text and (yield from self.more()):
            pass
        return self._text.peek()

    def white(self) -> Steps[str]:
        """Consume white space."""
        found: list[str] = []
        while True:
            found.append(self._consumed(self._text.take_white()))
            if self._text or not (yield from self.more()):
                return "".join(found)

    def literal(self, *texts: str) -> Steps[str]:
        """Consume the longest of `texts` that comes next; return it, or an empty text if none does."""
        while True:
            if not any(map(self._text.is_beginning_of, texts)) or not (yield from self.more()):
                break
        found = max(filter(self._text.starts_with, texts), key=len, default="")
        return self.take(len(found))

    def until(self, marks: Sequence[str], emit: Callable[[str], None]) -> Steps[str]:
        """Emit the text before the first mark and consume both. Return the mark; empty at the answer's end.

        No mark may be the beginning of another.
        """
        while True:
            if (found := self._text.find(marks)) is not None:
                emit(self.take(found[0]))
                return self.take(len(found[1]))
            if self._ended:
                emit(self.take(len(self._text)))
                return ""
            emit(self.take(len(self._text) - self._text.length_of_beginning(marks)))
            yield from self.more()

    def collect_until(self, marks: Sequence[str]) -> Steps[tuple[str, str]]:
        """Consume and return the text before the first mark, and the mark."""
        parts: list[str] = []
        mark = yield from self.until(marks, parts.append)
        return "".join(parts), mark

    def json_value(self, emit: Callable[[str], None]) -> Steps[bool]:
        """Consume one value and emit its text as it comes. Return False if the answer ends within it."""
        yield from self.white()
        scanner = JsonScanner()
        while True:
            if (length := self._text.length_of_json(scanner)) is not None:
                emit(self.take(length))
                return True
            emit(self.take(len(self._text)))
            if not (yield from self.more()):
                return scanner.is_scalar
