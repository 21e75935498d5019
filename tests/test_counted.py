"""Numbers with their nouns."""

from __future__ import annotations

from inflight.counted import counted, there_are


def test_one_is_no_plural() -> None:
    assert [counted(number, "token") for number in (0, 1, 1000)] == ["0 tokens", "1 token", "1,000 tokens"]
    assert [counted(number, "call is", "calls are") for number in (1, 2)] == ["1 call is", "2 calls are"]
    assert [there_are(number) for number in (0, 1, 2000)] == ["there are 0", "there is 1", "there are 2,000"]
    assert [there_are(number, "expert") for number in (1, 2)] == ["there is 1 expert", "there are 2 experts"]
