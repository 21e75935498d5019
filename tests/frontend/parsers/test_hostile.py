"""For any text of a model nothing raises, no word is lost, and the work is in proportion to the text."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

import pytest
from breadth import usual_of
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight.frontend.parsers.json_scanner import JsonScanner
from inflight.frontend.parsers.parser_choice import ParserNames
from inflight.frontend.parsers.registry import TOOL_FORMATS, ChosenParsers
from inflight.frontend.parsers.text_buffer import TextBuffer
from tests.frontend.parsers.examples import CALLS, TOOLS, deltas_of, parsed

_ALL_MARKS = sorted({mark for one in TOOL_FORMATS.values() for mark in one.marks})
_FRAGMENTS = (
    *('{"name": "f", "arguments": {', "{", "}", "[", "]", '"', "'", "\\", "\n", " ", ",", ";", "(", ")", "=", "f(a="),
    *("call:f{", "f{a:", "<function=f>", "<parameter=a>", "</parameter>", '<invoke name="f">', "```json\n", "\u2028"),
    *("<tool_", "_call>", "</", "<|", "|>", "[TOOL", "_CALLS]", "functools[", "é😀", "\x00", "\x1c", "NaN", "1e999"),
)
_TEXTS = st.lists(st.sampled_from([*_ALL_MARKS, *_FRAGMENTS]) | st.text(max_size=5), max_size=30).map("".join)
_LONG = 100 * settings.default.max_examples  # ten times as long with ./check --all
_MAX_WORK = 40  # characters that are copied, searched or looked at, for one of the text


def _names(name: str) -> ParserNames:
    return ParserNames(name, "openai_gptoss" if name == "openai" else "qwen3")


def _example(name: str) -> str:
    return CALLS["qwen3_coder" if name == "qwen3_xml" else name]


@pytest.mark.parametrize("name", TOOL_FORMATS)
@settings(max_examples=60, deadline=None)
@given(garbage=_TEXTS, begin=st.integers(0, 10**4), length=st.integers(0, 40), size=st.integers(1, 9))
def test_no_text_is_too_strange(name: str, garbage: str, begin: int, length: int, size: int) -> None:
    """A piece of the format's example is replaced by anything, and read piece by piece."""
    example = _example(name)
    begin %= len(example)
    for text in (garbage, example[:begin] + garbage + example[begin + length :], f"<think>{garbage}"):
        pieces = [text[place : place + size] for place in range(0, len(text), size)]
        assert deltas_of(pieces, _names(name)) == deltas_of([text], _names(name))


def _pieces_of(name: str) -> tuple[str, ...]:
    """Return the words that must be kept. Members of a call's object other than name and arguments are left out: they
    are dropped."""
    marks = TOOL_FORMATS[name].marks
    return (*marks, *(one for one in _FRAGMENTS if "\x00" not in one and one not in ('"', "'", "\\")), _example(name))


@pytest.mark.parametrize("name", [name for name in TOOL_FORMATS if name != "openai"])
@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_no_word_is_lost(name: str, seed: int) -> None:
    chance = random.Random(seed)
    parts = [f" word{number} " if chance.random() < 0.4 else chance.choice(_pieces_of(name)) for number in range(14)]
    text = "".join(parts)
    _, content, calls = parsed([text], ParserNames(name))
    seen = content + "".join([f" {called} {arguments} " for called, arguments in calls])
    lost = [word for word in (part.strip() for part in parts) if word.startswith("word") and word not in seen]
    assert not lost, text


def test_no_word_of_a_message_is_lost() -> None:
    for channel in ("analysis", "commentary", "final", "strange", "commentary to=functions.f"):
        text = f"a0 <|channel|>{channel}<|message|>a1 {{ <|constrain|> a2<|end|> a3 <|start|>assistant"
        reasoning, content, calls = parsed([text], ParserNames("openai", "openai_gptoss"))
        seen = reasoning + content + json.dumps(calls)
        assert all(word in seen for word in ("a0", "a1", "a2", "a3")), channel


class _Work:
    """Counts what parsers do with text, in characters, and one for each doing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.done = 0
        for method in ("push", "put_back", "take", "take_white", "find", "starts_with", "length_of_beginning"):
            monkeypatch.setattr(TextBuffer, method, self._counted(method))
        feed = JsonScanner.feed

        def counted_feed(scanner: JsonScanner, text: str, place: int = 0) -> int | None:
            end = feed(scanner, text, place)
            self._add((len(text) if end is None else end) - place)
            return end

        monkeypatch.setattr(JsonScanner, "feed", counted_feed)

    def _add(self, characters: int) -> None:
        self.done += 1 + characters

    def _counted(self, method: str):  # type: ignore[no-untyped-def]
        plain = getattr(TextBuffer, method)

        def counted(buffer: TextBuffer, *arguments):  # type: ignore[no-untyped-def]
            left = len(buffer)
            found = plain(buffer, *arguments)
            if method == "push":
                self._add(len(buffer))  # what is left is copied
            elif method == "put_back":
                # Either the place is moved, or what is left is copied.
                self._add(len(arguments[0]) + (len(buffer) if buffer._place == 0 else 0))
            elif method == "find":
                self._add(left if found is None else found[0] + len(found[1]))
            else:
                self._add(len(found) if isinstance(found, str) else 8)
            return found

        return counted


def _long_texts(name: str) -> Iterator[str]:
    example, marks = _example(name), TOOL_FORMATS[name].marks
    units = [
        "<",
        "{",
        "[",
        '"',
        "\\",
        " ",
        "\n",
        "a",
        "<tool_call",
        '{"name"',
        *marks,
        *(f"{mark}\n" for mark in marks),
    ]
    units += [example, '",{[', "</parameter></arg_value>", "a=1,", "a:1,", "(", "-"]
    for unit in units:
        yield unit * (_LONG // len(unit))
    for cut in range(15, len(example), 41):
        yield example[:cut] * (_LONG // cut)
        for unit in ("a", '",{[', "1,", "</parameter></arg_value>", "-", "(", *marks):
            yield example[:cut] + unit * (_LONG // len(unit))


@pytest.mark.parametrize(
    "name", usual_of(TOOL_FORMATS, "hermes", "qwen3_coder", "openai", "glm45", "pythonic", "deepseek_v3")
)
def test_work_is_in_proportion_to_the_text(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    work = _Work(monkeypatch)
    for number, text in enumerate(_long_texts(name)):
        size = (len(text), 5)[number % 2]
        parser = ChosenParsers(_names(name)).parser(TOOLS, in_reasoning=False)
        before, emitted = work.done, 0
        for place in range(0, len(text), size):
            emitted += sum(len(repr(one)) for one in parser.push(text[place : place + size]))
        emitted += sum(len(repr(one)) for one in parser.finish())
        assert work.done - before < _MAX_WORK * len(text), (text[:80], size)
        assert emitted < 100 * len(text)


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_a_name_that_never_ends_is_no_call(name: str) -> None:
    for mark in TOOL_FORMATS[name].marks[:1]:
        text = f"{mark}{'n' * 100_000}"
        reasoning, content, calls = parsed([text], ParserNames(name))
        assert not calls and not reasoning
        assert content in (text, text.removeprefix(mark)) or name == "openai"  # a header that was cut off


def test_a_megabyte_of_a_mark_that_never_comes_to_its_end() -> None:
    text = "<tool_call" * 100_000
    for name in ("hermes", "qwen3_coder", "glm45"):
        assert parsed([text], ParserNames(name)) == ("", text, [])
