"""The words of an answer that comes in pieces, on a terminal of some columns."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inflight.cli.chat_session import ChatError, Session
from inflight.cli.chat_terminal import History, Writer
from inflight.core.types.sampling import SamplingParams

Write = Callable[..., str]


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Write:
    def write(columns: int, *pieces: str, wraps: bool = True) -> str:
        monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((columns, 24)))
        monkeypatch.setattr("sys.stdout.isatty", lambda: True)
        writer = Writer(wraps)
        for piece in pieces:
            writer.write(piece)
        writer.end()
        return capsys.readouterr().out

    return write


def test_lines_break_between_words(written: Write) -> None:
    assert written(11, "one two", " thr", "ee four\nfive") == "one two \nthree four\nfive"
    assert written(11, "one two three", wraps=False) == "one two three"
    assert max(map(len, written(11, "a b c d e f g h i j k l m").splitlines())) <= 10


def test_words_longer_than_a_line_and_wide_characters(written: Write) -> None:
    assert written(6, "abcdefghij k").split("\n") == ["abcde", "fghij", "k"]
    assert written(7, "漢字漢字漢字") == "漢字漢\n字漢字"


def test_what_would_steer_the_terminal_is_escaped(written: Write) -> None:
    assert written(40, "a\x1b[2Jb") == "a\\x1b[2Jb"


def test_conversations_at_the_same_time_keep_each_other_s_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    first, second = History(), History()
    first.append("one")
    second.append("two")
    first.append("three \udce9")
    assert second.lines() == History().lines() == ["one", "two", "three \udce9"]
    for number in range(2000):
        second.append(str(number))
    assert first.lines() == History().lines() == [str(number) for number in range(1000, 2000)]
    assert len((tmp_path / "inflight" / "chat_history").read_text("utf-8", "surrogateescape").splitlines()) == 1000


def test_an_interrupt_among_lines_of_a_system_message_leaves_the_conversation() -> None:
    class Interrupted:
        def rest_of(self, begun: str) -> str:
            raise KeyboardInterrupt

    prompt: Any = Interrupted()
    session = Session(None, SamplingParams(), "before", False, True, prompt)  # type: ignore[arg-type]
    with pytest.raises(ChatError, match=r"Nothing is set\."):
        session.command('/set system """Be')
    assert session.system == "before"
