"""Numbers with their nouns."""

from __future__ import annotations

from pathlib import Path

import pytest

from inflight.counted import cause_of, counted, printable, there_are


def test_one_is_no_plural() -> None:
    assert [counted(number, "token") for number in (0, 1, 1000)] == ["0 tokens", "1 token", "1,000 tokens"]
    assert [counted(number, "call is", "calls are") for number in (1, 2)] == ["1 call is", "2 calls are"]
    assert [there_are(number) for number in (0, 1, 2000)] == ["there are 0", "there is 1", "there are 2,000"]
    assert [there_are(number, "expert") for number in (1, 2)] == ["there is 1 expert", "there are 2 experts"]


def test_texts_of_others_do_not_steer_the_terminal() -> None:
    assert printable("plain — naïve 日本 🙂") == "plain — naïve 日本 🙂"
    assert printable("a\x1b[2Jb\x07\x9bc\x7f") == "a\\x1b[2Jb\\x07\\x9bc\\x7f"
    assert printable("user\u202etxt.exe\u2066 \u200f") == "user\\u202etxt.exe\\u2066 \\u200f"
    assert printable("one\ntwo\rthree", keep="\n") == "one\ntwo\\rthree"
    assert printable("half \ud800") == "half \\ud800"
    assert printable("👩\u200d🔬 a\u0301") == "👩\u200d🔬 a\u0301", "joined and combined characters are text"


def test_causes_have_neither_number_nor_path() -> None:
    with pytest.raises(OSError) as caught:
        Path("/nowhere/at/all").read_bytes()
    assert cause_of(caught.value) == "No such file or directory"
    assert cause_of(TimeoutError("timed out")) == "timed out"
    assert cause_of(ConnectionResetError()) == "ConnectionResetError"
